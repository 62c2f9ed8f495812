"""Every verb's help ends with examples, and these can be typed as they are."""

from __future__ import annotations

import shlex

import pytest

from sapo_desktop.cli import VERBS, parser
from sapo_desktop.commands.examples import EXAMPLES

LINES = [(verb, line) for verb, lines in EXAMPLES.items() for line in lines]


def test_every_verb_has_examples_and_no_other() -> None:
    assert set(EXAMPLES) == set(VERBS)


@pytest.mark.parametrize(("verb", "line"), LINES, ids=[line for _, line in LINES])
def test_an_example_is_understood(verb: str, line: str) -> None:
    assert parser(verb).parse_args(shlex.split(line)).verb == verb


@pytest.mark.parametrize("verb", list(VERBS))
def test_the_help_shows_them(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parser(verb).parse_args([verb, "--help"])
    shown = capsys.readouterr().out
    assert all(f"  sapo-desktop {line}\n" in shown for line in EXAMPLES[verb])
