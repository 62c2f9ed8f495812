"""What is written to a terminal is wrapped at words; what is piped is not."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.terminal import terminal

from sapo_desktop.wrapping import cell_width, wrap_lines

SENTENCE = "Practice could learn from 0 % of them: where some answers are right and some wrong, by chance."


def test_a_sentence_is_broken_at_a_space_and_each_row_fits() -> None:
    assert wrap_lines(SENTENCE + "\n", 40) == (
        "Practice could learn from 0 % of them:\nwhere some answers are right and some\nwrong, by chance.\n"
    )


@given(st.text(alphabet="ab é漢\n", max_size=200), st.integers(4, 60))
def test_wrapping_moves_no_character_and_only_spaces_become_the_ends_of_rows(text: str, columns: int) -> None:
    wrapped = wrap_lines(text, columns)
    assert wrapped.split() == text.split()
    for row in wrapped.split("\n"):
        assert cell_width(row) < columns or len(row.split()) == 1 or row in text.split("\n")


@pytest.mark.parametrize(
    ("line", "rows"),
    [
        ("- Only 24 held-out rows: a score is known", ["- Only 24 held-out", "  rows: a score is", "  known"]),
        ("1. send me back the money for", ["1. send me back the", "   money for"]),
        ("  | Sort this message into one", ["  | Sort this", "    message into one"]),
        ("time    examples take two minutes", ["time    examples", "        take two", "        minutes"]),
    ],
)
def test_a_line_goes_on_below_its_text(line: str, rows: list[str]) -> None:
    assert wrap_lines(line, 21).split("\n") == rows


def test_a_command_after_a_colon_is_not_broken_so_that_it_can_be_copied() -> None:
    command = "sapo-desktop tasks check mails --model smol.gguf"
    assert wrap_lines(f"Stored. Change anything in task.toml, then: {command}", 60).split("\n") == [
        "Stored. Change anything in task.toml, then:",
        command,
    ]
    assert wrap_lines(f"There is no flag. See {command}", 60).split("\n") == ["There is no flag. See", command]
    assert wrap_lines(f"Train it: {command}", 30).split("\n") == ["Train it:", command]
    assert wrap_lines(f"Train it: {command}", 80) == f"Train it: {command}"


@pytest.mark.parametrize("text", ["a" * 100, json.dumps({"say": SENTENCE}), f"\r\x1b[K{SENTENCE}", f"/tmp/{'a/' * 60}"])
def test_a_path_json_and_a_status_line_are_left_alone(text: str) -> None:
    assert wrap_lines(text, 40) == text


PROGRAM = f"from sapo_desktop.streams import prepare_streams; prepare_streams(); print({SENTENCE!r}); input('Go on? ')"


@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal")
async def test_a_terminal_gets_whole_words_and_can_still_be_asked(tmp_path: Path) -> None:
    async with terminal(tmp_path, (sys.executable, "-c", PROGRAM), columns=80) as screen:
        await screen.shows(lambda text: "Go on?" in text)
        assert b"right and some\r\nwrong, by chance." in screen.raw
        screen.press("\r")
        assert await screen.ended() == 0


@pytest.mark.skipif(os.name != "posix", reason="a pseudo terminal")
async def test_an_error_and_an_unknown_flag_are_wrapped_too(tmp_path: Path) -> None:
    words = ("models", "show", "no-such-model-of-this-name")
    async with terminal(tmp_path, (sys.executable, "-m", "sapo_desktop", *words), columns=80) as screen:
        assert await screen.ended() == 2
        rows = screen.raw.decode().splitlines()
        assert len(rows) > 1
        assert max(map(len, rows)) < 80
