"""`doctor --self-test`: what a machine shows of itself, in lines that can be pasted into an issue."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from tests.support.node_process import sapo

from sapo_desktop.services.machine import self_test


def test_a_node_of_its_own_is_started_told_and_stopped_and_nothing_of_the_persons_is_touched(tmp_path: Path) -> None:
    home = tmp_path / "zoë 空 my home"
    home.mkdir()
    done = sapo(home, "doctor", "--self-test", "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    found = {line["what"]: line for line in lines}
    for what in ("system", "terminal", "clock", "keep awake", "login", "node", "one node", "pause", "stop", "training"):
        assert found[what]["verdict"] != "fail", found[what]
    assert found["one node"]["text"] == "a second one is refused"
    assert "answers after" in [line["text"] for line in lines if line["what"] == "node"][-1]
    assert found["stop"]["text"].startswith("gone after")
    assert found["training"]["text"].startswith("3 of 3 rounds in") or "pip install torch" in found["training"]["text"]
    assert str(Path.home()) + "/" not in "".join(self_test_lines(lines))
    assert not list((home / "data" / "models").iterdir())


def self_test_lines(lines: list[dict[str, str]]) -> list[str]:
    begin = next(place for place, line in enumerate(lines) if line["what"] == "system")
    return [line["text"] for line in lines[begin:]]


@pytest.mark.skipif(sys.platform == "win32", reason="a program that ends at once, as a script")
def test_a_node_that_does_not_start_is_told_of_with_its_last_words(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "broken"
    script.write_text(f"#!/bin/sh\necho 'no module of that name in {Path.home()}/x' >&2\nexit 1\n")
    script.chmod(0o700)
    monkeypatch.setattr(self_test, "own_command", lambda: [str(script)])
    (found,) = self_test._node(tmp_path)
    assert found.verdict == "fail"
    assert found.text.endswith("no module of that name in ~/x")
    assert self_test._rounds(tmp_path).verdict == "fail"


@pytest.mark.skipif(sys.platform == "win32", reason="a program that ends at once, as a script")
def test_rounds_that_came_as_one_event_count_as_what_they_cover(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "quick"
    script.write_text("""#!/bin/sh\necho '{"kind": "round", "covers": 2}'\necho '{"kind": "round", "covers": 1}'\n""")
    script.chmod(0o700)
    monkeypatch.setattr(self_test, "own_command", lambda: [str(script)])
    found = self_test._rounds(tmp_path)
    assert (found.verdict, found.text[:16]) == ("ok", "3 of 3 rounds in")
