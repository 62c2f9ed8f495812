"""The lab's six tasks cannot be passed by one answer to everything, judged exactly."""

from __future__ import annotations

from collections import Counter

import pytest

import sapo_lab
from sapo_lab.schema import load_experiment
from sapo_swarm.scoring.verify import raw_score
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import TaskRef

EXPERIMENTS = (
    "at-home",
    "decomposition",
    "sharing",
    "sharing-app",
    "sharing-two",
    "sharing-seconds",
    "sharing-quarter",
    "sharing-equal",
)
SIX = ("base_conversion", "basic_arithmetic", "arc_1d", "bf", "fraction_simplification", "decimal_arithmetic")


def best_constant(task: str, preset: str, questions: int = 300) -> float:
    """The share of questions that the best of the five commonest true answers passes, given to all of them."""
    made = []
    for seed in range(questions):
        try:
            made.append(generate_entry(TaskRef(task, preset, seed)))
        except NoSuchQuestion:
            continue
    common = Counter(str(entry["answer"]) for _, entry in made).most_common(5)
    passed = (sum(raw_score(answer, task, *one, preset) == 1.0 for one in made) for answer, _ in common)
    return max(passed) / len(made)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_the_experiments_without_a_shortcut_use_these_tasks(name: str) -> None:
    experiment = load_experiment(sapo_lab.list_experiments()[name])
    assert {arm.run.tasks for arm in experiment.arms} == {SIX}


@pytest.mark.parametrize("preset", ["starter", "paper"])
@pytest.mark.parametrize("task", SIX)
def test_no_constant_answer_passes_more_than_one_question_in_twenty(task: str, preset: str) -> None:
    assert best_constant(task, preset) <= 0.05


def test_the_check_finds_the_weekday_that_is_right_too_often() -> None:
    assert best_constant("calendar_arithmetic", "paper") > 0.05
