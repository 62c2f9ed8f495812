"""Strict means exact: what the library's rule lets pass beside a right answer earns nothing, except in preset `library`."""

from __future__ import annotations

import pytest

from sapo_swarm.evaluation import held_out_name
from sapo_swarm.scoring.verify import raw_score, score_text
from sapo_swarm.tasks.catalogue import CATALOGUE, EXACT, LIBRARY_PRESET, SOFT, UnknownTask, preset_of
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import TaskRef

WRONG = {
    "decimal_arithmetic": ("starter", 3, "0.7"),
    "fraction_simplification": ("paper", 4, "{} and more"),
    "gsm_symbolic": ("default", 1, "{} apples, and a planted phrase"),
    "kakurasu": ("default", 1, "Here: {}"),
    "knights_knaves": ("default", 0, "{} {}"),
    "letter_jumble": ("default", 2, "{} and more"),
    "number_format": ("default", 1, "569204296.889"),
    "number_sorting": ("default", 1, "['52.2004', '30.0', '14.0', '-49.0', '-81.0']"),
    "pool_matrix": ("default", 1, "4.5 4.5\n4.75 5.04"),
    "power_function": ("default", 1, "-0.001371"),
    "quantum_lock": ("default", 1, "{} !"),
    "survo": ("default", 1, "so {}"),
    "time_intervals": ("default", 0, "5 dwarfs"),
}
"""Task -> preset, seed, and an answer ({} is the truth) that the library gives full marks."""


@pytest.mark.parametrize("task", sorted(EXACT))
def test_an_answer_beside_the_truth_passes_the_librarys_rule_alone(task: str) -> None:
    preset, seed, wrong = WRONG[task]
    dataset, entry = generate_entry(TaskRef(task, preset, seed))
    answer = wrong.replace("{}", str(entry["answer"]))
    assert float(dataset.score_answer(answer, entry)) == 1.0
    assert raw_score(answer, task, dataset, entry, preset) == 0.0
    assert raw_score(answer, task, dataset, entry, LIBRARY_PRESET) == 1.0
    assert score_text(f"<answer>{answer}</answer>", task, dataset, entry) == (0.0, True)


@pytest.mark.parametrize("task", sorted(EXACT))
def test_the_truth_is_exact_in_every_preset(task: str) -> None:
    for preset in CATALOGUE[task]:
        for seed in range(12):
            try:
                dataset, entry = generate_entry(TaskRef(task, preset, seed))
            except NoSuchQuestion:
                continue
            assert raw_score(entry["answer"], task, dataset, entry, preset) == 1.0, entry["answer"]


@pytest.mark.parametrize(
    ("task", "preset", "seed", "answer"),
    [
        ("decimal_arithmetic", "starter", 1, "13.10"),
        ("fraction_simplification", "paper", 4, "31/39"),
        ("knights_knaves", "default", 0, "Jacob is a knave and Victoria is a knight"),
        ("number_format", "default", 2, "9.158569304099999e+07"),
        ("number_format", "default", 1, "569,204,296.88"),
        ("number_sorting", "default", 1, '["52.20", "30", "14", "-49", "-81"]'),
        ("pool_matrix", "default", 1, "4.50 4.50\n4.75 5.00"),
        ("power_function", "default", 1, "-1.37e-3"),
        ("power_function", "default", 2, "1.00e+0"),
    ],
)
def test_the_same_answer_in_another_form_stays_right(task: str, preset: str, seed: int, answer: str) -> None:
    dataset, entry = generate_entry(TaskRef(task, preset, seed))
    assert raw_score(answer, task, dataset, entry, preset) == 1.0


@pytest.mark.parametrize("answer", ["NaN", "1e999999999", "1_3.1", "١٣.١", "13.1 ", "", "13.1\n", "9" * 8000])
def test_only_a_plain_number_of_bounded_length_is_compared(answer: str) -> None:
    dataset, entry = generate_entry(TaskRef("decimal_arithmetic", "starter", 1))
    assert not EXACT["decimal_arithmetic"](answer, entry)
    assert raw_score(answer, "decimal_arithmetic", dataset, entry) == 0.0


def test_partial_credit_below_full_marks_stays_the_librarys() -> None:
    dataset, entry = generate_entry(TaskRef("time_intervals", "default", 0))
    assert raw_score("6 days", "time_intervals", dataset, entry) == dataset.score_answer("6 days", entry) < 1.0


def test_every_soft_task_has_an_exact_rule_and_a_preset_with_the_librarys() -> None:
    assert set(WRONG) == SOFT
    assert all(LIBRARY_PRESET in CATALOGUE[task] for task in SOFT)
    assert CATALOGUE["decimal_arithmetic"][LIBRARY_PRESET] == CATALOGUE["decimal_arithmetic"]["paper"]


def test_one_preset_for_many_tasks_finds_the_librarys_rule_where_it_differs() -> None:
    presets = [preset_of(task, LIBRARY_PRESET) for task in ("bf", "survo", "gcd")]
    assert presets == [LIBRARY_PRESET, LIBRARY_PRESET, "default"]
    assert preset_of("survo", "starter") == "default"
    with pytest.raises(UnknownTask, match="starter"):
        preset_of("bf", "startr")


def test_tables_name_the_librarys_rule() -> None:
    assert TaskRef("survo", LIBRARY_PRESET, 1).shown == "survo/library"
    assert TaskRef("survo", "default", 1).shown == "survo"


def test_results_under_another_rule_are_results_on_other_questions() -> None:
    names = {held_out_name(["decimal_arithmetic"], preset) for preset in ("paper", LIBRARY_PRESET)}
    assert len(names) == 2
