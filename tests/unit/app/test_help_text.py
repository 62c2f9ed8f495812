"""--help: verbs in groups, and the everyday flags of the verbs that have many."""

import re

import pytest

from sapo_desktop.cli import GROUPS, RARE, VERBS, build_parser


def test_every_verb_stands_in_the_help_under_its_group() -> None:
    text = build_parser().format_help()
    for group, verbs in GROUPS.items():
        part = text.split(f"\n  {group}\n")[1].split("\n\n")[0]
        for verb in verbs:
            assert re.search(rf"(?:^    |, |    also +){re.escape(verb)}\b", part, re.MULTILINE), (group, verb)
    assert set(VERBS) >= RARE


@pytest.mark.parametrize(
    ("verb", "shown", "hidden"),
    [("node", "--rounds", "--tripwire"), ("coordinator", "--host", "--body-s"), ("new", "--base", "--epochs")],
)
def test_a_verb_with_many_flags_explains_the_everyday_ones_and_names_the_way_to_the_others(
    verb: str, shown: str, hidden: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for flag, there in (("--help", False), ("--help-all", True)):
        with pytest.raises(SystemExit) as ended:
            build_parser(verb).parse_args([verb, flag])
        text = capsys.readouterr().out
        assert ended.value.code == 0
        assert shown in text
        assert (hidden in text) is there
        assert ("more flags, for experts" in text) is not there


def test_a_hidden_flag_is_still_taken() -> None:
    assert build_parser("node").parse_args(["node", "--tripwire", "0.5"]).tripwire == "0.5"
