"""No held-out question of an experiment may have been in anybody's training text."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

import sapo_lab
from sapo_lab.running.held_out import check_protected
from sapo_lab.schema import BadExperiment, Experiment, load_experiment
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.questions import generate_entry

sys.path.insert(0, str(Path(__file__).parents[3] / "assets"))

from recipe.data import content_key, examples, held_out_keys
from recipe.mixture import MIXTURE

WITHDRAWN = 320_000
"""The first held-out question of the withdrawn experiment `sharing`."""


def load(name: str) -> Experiment:
    return load_experiment(sapo_lab.list_experiments()[name])


@pytest.mark.parametrize("task", ["base_conversion", "fraction_simplification"])
def test_a_starters_training_text_holds_no_protected_question_and_most_of_the_others(task: str) -> None:
    """The second half is why experiments that asked far questions are withdrawn: it shows that the first half can fail."""
    (preset,) = MIXTURE[task]
    trained_on = {row.key for row in examples(task, preset, MIXTURE[task][preset], held_out_keys(task))}

    def seen(first: int) -> int:
        asked = (generate_entry(held_out(task, preset, index))[1] for index in range(first, first + 400))
        return sum(content_key(task, entry) in trained_on for entry in asked)

    assert seen(0) == 0
    assert seen(WITHDRAWN) > 300


def test_an_experiment_that_asks_unprotected_questions_is_refused_before_it_runs() -> None:
    withdrawn = load("sharing")
    with pytest.raises(BadExperiment, match=r"2400 of the final questions of .* not kept out of training"):
        check_protected(withdrawn, withdrawn.arms[0])


def test_an_experiment_on_protected_questions_may_run() -> None:
    clean = load("smoke")
    for arm in clean.arms:
        check_protected(clean, arm)
