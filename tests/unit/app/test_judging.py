"""Judged tasks in the app: when a judge may be trained on, and that every figure says what it is of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.support.own_tasks import library_in, sums, write_folder
from tests.support.records import evaluation, finished, opened

from sapo_desktop.dashboard.screens.models.compare import of_one, of_two
from sapo_desktop.errors import UsageError
from sapo_desktop.services.models.shelf.history import TrainingHistory
from sapo_desktop.services.models.shelf.overview import format_gain
from sapo_desktop.services.tasks import judging
from sapo_swarm.scoring.rubric import JudgeEndpoint, compute_agreement

WHO = JudgeEndpoint("https://example.org/v1", "m")
GOOD, BAD = [True] * 12, [False] * 12


@pytest.mark.parametrize(
    ("person", "said", "sentence"),
    [
        (GOOD + BAD, GOOD + BAD, ""),
        (GOOD + BAD, GOOD + GOOD, "agrees too little with you"),
        (GOOD + BAD, BAD + GOOD, "agrees too little with you"),
        (GOOD + GOOD, GOOD + GOOD, "compared with 24 ratings, 24 of them good"),
        (GOOD[:5] + BAD[:5], GOOD[:5] + BAD[:5], "it takes 20"),
    ],
)
def test_a_judge_is_trained_on_when_it_agrees_beyond_chance_with_enough_ratings(
    person: list[bool], said: list[bool], sentence: str
) -> None:
    found = judging.judge_refusal("t", compute_agreement(person, said), WHO, 0.6)
    assert sentence in found
    assert bool(found) == bool(sentence)


def test_judged_and_verified_tasks_are_not_trained_on_together_nor_one_after_the_other(tmp_path: Path) -> None:
    sums(tmp_path / "my_sums")
    rows = [{"question": f"{n}?"} for n in range(4)]
    write_folder(tmp_path / "taste", '[[verifier]]\nkind = "judged"\nrubric = "x"\n', rows[:2], rows[2:])
    with library_in(tmp_path):
        judging.never_mixed(["my_sums", "basic_arithmetic"])
        judging.never_mixed(["taste"])
        judging.same_kind(["taste"], ["taste"])
        for others in ("my_sums", "basic_arithmetic"):
            with pytest.raises(UsageError, match="never mixed"):
                judging.never_mixed(["taste", others])
            with pytest.raises(UsageError, match=r"one curve would show both.*: sapo-desktop new NAME"):
                judging.same_kind([others], ["taste"])


def test_no_curve_holds_judged_and_verified_rewards() -> None:
    verified = TrainingHistory((opened(0),), (finished(0),))
    judged = replace(verified, sessions=(msgspec.structs.replace(opened(0), judged=True),))
    assert [line.label for line in of_one(judged)[0]] == ["judged"]
    assert [line.label for line in of_two(("a", verified), ("b", verified))[0]] == ["a", "b"]
    assert [line.label for line in of_two(("a", judged), ("b", verified))[0]] == ["judged"]
    assert format_gain(evaluation(0), judged=True).startswith("judged ")
    assert not format_gain(evaluation(0)).startswith("judged ")
