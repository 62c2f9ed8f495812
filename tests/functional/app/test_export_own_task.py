"""A model on a task of the person's own leaves the app: node, export and its child processes are real."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from tests.support.node_process import sapo
from tests.support.own_tasks import sums

pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("transformers", reason="the torch engine is not installed")

LONG_S = 240


def test_a_model_on_an_own_task_is_exported_and_checked_and_without_its_task_exported_all_the_same(
    tmp_path: Path,
) -> None:
    sums(tmp_path / "data" / "tasks" / "my_sums")
    node = ("node", "--silo", "--model", "starter-1m", "--tasks", "my_sums", "--rounds", "1", "--local-groups", "2")
    ran = sapo(tmp_path, *node, "--quiet", timeout=LONG_S)
    assert ran.returncode == 0, ran.stderr
    done = sapo(tmp_path, "export", "--format", "hf", "--to", str(tmp_path / "mine"), timeout=LONG_S)
    assert done.returncode == 0, done.stderr
    assert re.search(r"\b(\d+) of \1 greedy answers identical", done.stdout)
    shutil.rmtree(tmp_path / "data" / "tasks" / "my_sums")
    gone = sapo(tmp_path, "export", "--format", "hf", "--to", str(tmp_path / "later"), timeout=LONG_S)
    assert gone.returncode == 0, gone.stderr
    assert "The task my_sums is not here any more, so the export was not checked." in gone.stdout
    assert "The task my_sums is not here" in (tmp_path / "later" / "README.md").read_text(encoding="utf-8")
