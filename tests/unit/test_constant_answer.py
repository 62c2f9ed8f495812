"""One answer to every question: found, and told apart from answers."""

from __future__ import annotations

import pytest

from sapo_swarm.constant_answer import MAX_CHARACTERS, ConstantAnswer, commonest, explains, scores, sentence
from sapo_swarm.evaluation import evaluated, item_result
from sapo_swarm.events import TaskScore
from sapo_swarm.scoring.scorer import Scored
from sapo_swarm.types import TaskRef


def ref(number: int, task: str = "propositional_logic") -> TaskRef:
    return TaskRef(task, "paper", 2**31, number)


def test_the_commonest_answer_is_found_with_its_share_of_all_samples() -> None:
    said = [(ref(0), ("P", "(P ∨ Q)")), (ref(1), ("(P ∨ Q)", "")), (ref(2), ("Q", "(P ∨ Q)"))]
    assert commonest(said) == {"propositional_logic": ("(P ∨ Q)", 0.5)}


def test_what_is_said_to_one_question_only_is_not_the_same_to_all() -> None:
    """A model that is sure of one question answers it alike eight times over."""
    assert commonest([(ref(0), ("4",) * 8), (ref(1), ("5",) * 8)]) == {}


def test_rare_answers_missing_answers_and_long_ones_are_no_common_answer() -> None:
    rare = [(ref(number), ("1",) if number < 2 else (str(100 + number),)) for number in range(21)]
    assert commonest(rare) == {}
    assert commonest([(ref(number), ("",)) for number in range(5)]) == {}
    assert commonest([(ref(number), ("x" * (MAX_CHARACTERS + 1),)) for number in range(5)]) == {}
    assert commonest([]) == {}


def test_tasks_are_counted_apart() -> None:
    found = commonest([(ref(0, "a"), ("1",)), (ref(1, "a"), ("1",)), (ref(0, "b"), ("2",)), (ref(1, "b"), ("3",))])
    assert found == {"a": ("1", 1.0)}


def test_the_common_answer_is_judged_on_every_question_with_strict_verdicts() -> None:
    assert scores({"a": ("1", 0.6), "b": ("2", 0.5)}, {"a": [1.0, 0.25, 1.0, 0.0]}) == {
        "a": ConstantAnswer("1", 0.6, 0.5)
    }


@pytest.mark.parametrize(
    ("passed", "share", "right", "yes"),
    [
        (0.48, 0.7, 0.82, True),
        (0.48, 0.1, 0.82, False),  # rarely said: the score comes from other answers
        (0.48, 0.7, 0.1, False),  # often said and seldom right: a habit that explains nothing
        (0.0, 0.7, 0.0, False),  # there is no score to explain
    ],
)
def test_an_answer_explains_a_score_when_it_is_common_and_mostly_right(
    passed: float, share: float, right: float, yes: bool
) -> None:
    assert explains(passed, share, right) is yes


def test_it_is_told_with_both_shares() -> None:
    said = sentence("propositional_logic", ConstantAnswer("(P ∨ Q)", 0.714, 0.82))
    assert said == (
        "propositional_logic: 71 % of the answers are '(P ∨ Q)'; given to every question, that one is right on 82 %."
    )


def test_an_evaluation_carries_it_and_an_item_keeps_what_was_answered() -> None:
    texts = ("so <answer> (P ∨ Q) </answer>", "nothing", f"<answer>{'x' * 500}</answer>")
    item = item_result(ref(0), Scored((1.0, 0.0, 0.0), (True, False, True)), ("stop", "length", "stop"), texts)
    assert item.answers == ("(P ∨ Q)", "", "x" * (MAX_CHARACTERS + 1))
    (score,) = evaluated(
        [item], 1, 1.0, 0.0, constants={"propositional_logic": ConstantAnswer("(P ∨ Q)", 0.5, 0.8)}
    ).tasks
    assert isinstance(score, TaskScore)
    assert (score.constant, score.constant_share, score.constant_right) == ("(P ∨ Q)", 0.5, 0.8)
