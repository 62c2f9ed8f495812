"""Every verb's help ends with examples, and these can be typed as they are."""

from __future__ import annotations

import shlex

import pytest

from sapo_desktop.cli import VERBS, build_parser
from sapo_desktop.commands.help_text import EXAMPLES
from sapo_swarm.coordinator.listener import EVERYWHERE

LINES = [(verb, line) for verb, lines in EXAMPLES.items() for line in lines]


def test_every_verb_has_examples_and_no_other() -> None:
    assert set(EXAMPLES) == set(VERBS)


@pytest.mark.parametrize(("verb", "line"), LINES, ids=[line for _, line in LINES])
def test_an_example_is_understood(verb: str, line: str) -> None:
    assert build_parser(verb).parse_args(shlex.split(line)).verb == verb


@pytest.mark.parametrize("line", EXAMPLES["coordinator"])
def test_others_reach_a_coordinator_that_is_started_as_in_its_examples(line: str) -> None:
    """On loopback nobody would, and without --list a public name is told to nobody."""
    typed = vars(build_parser("coordinator").parse_args(shlex.split(line)))
    assert typed.get("host") in EVERYWHERE
    assert typed.get("list") or not typed.get("public")


@pytest.mark.parametrize("verb", list(VERBS))
def test_the_help_shows_them(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        build_parser(verb).parse_args([verb, "--help"])
    shown = capsys.readouterr().out
    assert all(f"  sapo-desktop {line}\n" in shown for line in EXAMPLES[verb])
