"""`sapo-desktop eval` as people type it: what it says about its own figures."""

from __future__ import annotations

import json
from pathlib import Path

from tests.support.node_process import calm, sapo

NEW = (
    "--base",
    "fake",
    "--trainer",
    "fake",
    "--tasks",
    "basic_arithmetic",
    "--max-new-tokens",
    "4",
    "--eval-every",
    "0",
)


def test_questions_that_may_have_been_trained_on_are_a_warning_and_a_figure(tmp_path: Path) -> None:
    calm(tmp_path)
    for arguments in (("new", "kim", *NEW), ("node", "kim", "--rounds", "1")):
        assert sapo(tmp_path, *arguments).returncode == 0
    for items, beyond in ((5, 0), (402, 2)):
        done = sapo(tmp_path, "eval", "kim", "--items", str(items), "--json")
        assert json.loads(done.stdout)["maybe_trained_on"] == beyond
        assert ("Careful: 2 of the 402 questions may have been trained on" in done.stderr) is (beyond > 0), done.stderr
