"""The standard streams where something is amiss with them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sapo_desktop
from sapo_desktop.commands.parsing import no_text
from sapo_desktop.streams import json_line, print_progress

PROGRAM = (
    "from sapo_desktop.streams import prepare_streams; prepare_streams(); print('✓ done'); assert input is not None"
)


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


@pytest.mark.skipif(os.name != "posix", reason="arguments are bytes on POSIX alone")
@pytest.mark.parametrize(
    "typed",
    [
        (b"config", b"set", b"person.name", b"caf\xe9"),
        (b"new", b"kim", b"--judge-model", b"caf\xe9"),
        (b"tasks", b"new", b"sums.csv", b"--prompt", b"caf\xe9 {question}"),
        (b"chat", b"--ask=caf\xe9"),
    ],
)
def test_a_word_that_is_no_utf_8_is_one_sentence_and_exit_code_2_and_leaves_no_file(
    tmp_path: Path, typed: tuple[bytes, ...]
) -> None:
    environment = {**os.environ, "SAPO_HOME": str(tmp_path), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run(
        [os.fsencode(sys.executable), b"-m", b"sapo_desktop", *typed],
        **{"env": environment, "cwd": tmp_path, "capture_output": True, "check": False, "stdin": subprocess.DEVNULL},
    )
    assert done.returncode == 2, done.stderr
    assert b"no UTF-8 text" in done.stderr
    assert done.stderr.count(b"\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_file_whose_name_is_no_utf_8_is_still_a_file(tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.csv")
    assert no_text([name, f"--heldout={name}"]) == ""
    assert no_text(["caf\udce9.csv"]) == "caf\udce9.csv"


def test_piped_bytes_that_are_no_utf_8_are_read_all_the_same() -> None:
    program = "from sapo_desktop.streams import prepare_streams; prepare_streams(); print(ascii(input()))"
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    for encoding in ("utf-8:strict", "utf-8:surrogateescape"):
        told = subprocess.run(
            [sys.executable, "-c", program],
            input=b"caf\xe9\n",
            env={**environment, "PYTHONIOENCODING": encoding},
            capture_output=True,
            check=True,
        )
        assert told.stdout.strip() == rb"'caf\ufffd'"


def test_json_for_other_programs_does_nothing_to_a_terminal() -> None:
    """C1, bidi and invisible characters of peer text stand there as escapes, and parse back to themselves."""
    text = "\x9b2J \u202e \u200b \x7f é 🐸"
    line = json_line({"name": text, "nan": float("nan")})
    assert all(" " <= char <= "~" for char in line)
    assert json.loads(line) == {"name": text, "nan": None}


def test_every_verb_prints_json_through_the_one_gate() -> None:
    """A second way to print JSON would let those characters through again."""
    app = Path(sapo_desktop.__file__).parent
    for path in [*app.glob("commands/**/*.py"), app / "commands/nodes/node.py"]:
        text = path.read_text("utf-8")
        assert "json.dumps" not in text, path
        assert "json.encode(" not in text, path


@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal")
def test_the_progress_of_every_verb_is_one_line_that_is_wiped_at_the_end(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And a line a step where there is no terminal. It was written in five ways."""
    print_progress(0.5, "ada")
    print_progress(0.501, "ada")
    assert capsys.readouterr().err == "50 % ada\n"
    screen, terminal = os.openpty()
    with open(terminal, "w", encoding="utf-8") as shown:
        monkeypatch.setattr(sys, "stderr", shown)
        print_progress(0.5, "ada")
        print_progress(1.0, "ada")
    expected, told = b"\r\x1b[K50 % ada\r\x1b[K", b""
    while len(told) < len(expected):  # on a busy machine it comes in pieces
        told += os.read(screen, 100)
    os.close(screen)
    assert told == expected
    verbs = Path(sapo_desktop.__file__).parent / "commands"
    assert [path.name for path in verbs.rglob("*.py") if 'f"\\r' in path.read_text("utf-8")] == []
