"""The standard streams where something is amiss with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import sapo_desktop
from sapo_desktop.streams import json_line

PROGRAM = "from sapo_desktop.streams import prepare; prepare(); print('✓ done'); assert input is not None"


def run(redirect: str, encoding: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "PYTHONIOENCODING": encoding,
    }
    line = f'"{sys.executable}" -c "{PROGRAM}" {redirect}'
    return subprocess.run(line, shell=True, env=environment, capture_output=True, text=True, check=False)


def test_a_console_of_an_old_encoding_gets_a_question_mark_and_no_traceback() -> None:
    assert run("", "ascii").stdout == "? done\n"


def test_a_program_without_any_stream_still_works() -> None:
    assert run("<&- >&- 2>&-", "utf-8").returncode == 0


def test_json_for_other_programs_does_nothing_to_a_terminal() -> None:
    """C1, bidi and invisible characters of peer text stand there as escapes, and parse back to themselves."""
    text = "\x9b2J \u202e \u200b \x7f é 🐸"
    line = json_line({"name": text, "nan": float("nan")})
    assert all(" " <= char <= "~" for char in line)
    assert json.loads(line) == {"name": text, "nan": None}


def test_every_verb_prints_json_through_the_one_gate() -> None:
    """A second way to print JSON would let those characters through again."""
    app = Path(sapo_desktop.__file__).parent
    for path in [*app.glob("commands/**/*.py"), app / "services/nodes/report.py"]:
        text = path.read_text("utf-8")
        assert "json.dumps" not in text, path
        assert "json.encode(" not in text, path
