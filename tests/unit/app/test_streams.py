"""The standard streams where something is amiss with them."""

from __future__ import annotations

import os
import subprocess
import sys

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
