"""What is said of a name that does not exist: three that are near, never a page of all of them."""

from __future__ import annotations

import pytest

from sapo_desktop.cli import VERBS, build_parser, run_command_line
from sapo_desktop.errors import UsageError
from sapo_desktop.settings.editing import require_setting
from sapo_swarm.errors import suggest_names
from sapo_swarm.tasks.catalogue import CATALOGUE, UnknownTask, preset_settings

MANY = [f"name_{place}" for place in range(30)]


def test_the_one_that_was_meant_comes_first_and_two_more_follow() -> None:
    assert suggest_names("nme_7", MANY).startswith("Did you mean 'name_7'? Also near: 'name_")
    assert suggest_names("nme_7", MANY).count("'name_") == 3


def test_where_nothing_is_near_three_of_many_are_named_and_few_are_named_in_full() -> None:
    assert suggest_names("#####", MANY).count("'") == 6
    assert suggest_names("#####", ["a", "b"]) == "Known: a, b."


def test_tasks_settings_and_verbs_are_told_so(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownTask) as task:
        preset_settings("calender", "starter")
    assert "Did you mean 'calendar_arithmetic'?" in str(task.value)
    assert sum(f"'{name}'" in str(task.value) for name in CATALOGUE) <= 3
    with pytest.raises(UsageError, match=r"Did you mean 'run\.temperature'"):
        require_setting("run.temprature")
    with pytest.raises(SystemExit):
        run_command_line(["rollout"])
    said = capsys.readouterr().err
    assert "sapo-desktop: There is no verb 'rollout'. Did you mean 'rollouts'?" in said
    assert sum(f"'{verb}'" in said for verb in VERBS) <= 3


@pytest.mark.parametrize(
    ("typed", "said"),
    [
        (["node", "--temprature", "1"], "There is no flag '--temprature'. Did you mean '--temperature'?"),
        (["node", "--round", "3"], "There is no flag '--round'. Did you mean '--rounds'?"),
        (["tasks", "new", "a.csv", "--nme=2"], "There is no flag '--nme'. Did you mean '--name'?"),
        (["--liner"], "There is no flag '--liner'. Did you mean '--linear'?"),
        (["paths", "too", "much"], "sapo-desktop: Unrecognized arguments: too much. See sapo-desktop paths --help"),
        (["models", "shw"], "sapo-desktop: 'shw' cannot follow sapo-desktop models. Did you mean 'show'?"),
        (
            ["models", "--format", "xls"],
            "'xls' cannot follow --format. Known: csv, jsonl. See sapo-desktop models --help",
        ),
        (["new"], "sapo-desktop: The following arguments are required: name. See sapo-desktop new --help"),
        (["node", "--join"], "sapo-desktop: Argument --join: expected one argument. See sapo-desktop node --help"),
    ],
)
def test_a_wrong_word_is_one_sentence_and_no_flag_is_completed(
    capsys: pytest.CaptureFixture[str], typed: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        run_command_line(typed)
    assert ended.value.code == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert said in line


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        (["tasks", "new", "--no-model", "codes.csv"], {"task": "new", "target": "codes.csv", "no_model": True}),
        (["tasks", "--json", "show", "codes"], {"task": "show", "target": "codes", "json": True}),
        (["node", "--rounds", "3", "mine", "--silo"], {"name": "mine", "rounds": "3", "silo": True}),
        (["tasks", "delete", "--yes", "codes"], {"task": "delete", "target": "codes", "yes": True}),
        (["tasks", "accept", "codes", "--yes", "f0"], {"target": "codes", "version": "f0", "yes": True}),
        (["compare", "a", "--items", "5", "b"], {"first": "a", "second": "b", "items": 5}),
    ],
)
def test_a_flag_may_stand_between_the_words_of_its_verb(typed: list[str], meant: dict[str, object]) -> None:
    args, extra = build_parser(typed[0]).parse_known_args(typed)
    assert extra == []
    assert {name: getattr(args, name) for name in meant} == meant
