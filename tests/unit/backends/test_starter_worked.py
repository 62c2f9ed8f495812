"""The worked solutions that the starter learns from: right, short, in the agreed form."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recipe.data import HELD_OUT_WINDOW, content_key, examples, held_out_keys, training_refs
from recipe.worked import DATASETS, worked
from sapo_swarm.scoring.verify import score_text
from sapo_swarm.tasks.catalogue import CATALOGUE, TRAIN_LIMIT, held_out, is_train
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import TaskRef


def says_nothing(premises: list[str]) -> bool:
    """All premises hold whatever the letters mean, so that only trivial conclusions follow."""
    scorer, entry = generate_entry(TaskRef("propositional_logic", "starter", 1))
    return all(
        scorer.score_answer(p, {"metadata": {**entry["metadata"], "premises": [p], "variables": list("PQRS")}}) == 0.25
        for p in premises
    )


@pytest.mark.parametrize("preset", ["starter", "paper"])
@pytest.mark.parametrize("dataset", DATASETS)
def test_every_worked_solution_ends_in_an_answer_with_full_marks(dataset: str, preset: str) -> None:
    """The strict scorer accepts it, unless no conclusion beyond tautologies exists."""

    @settings(max_examples=20, deadline=None, database=None)
    @given(st.integers(0, TRAIN_LIMIT - 1))
    def holds(seed: int) -> None:
        try:
            scorer, entry = generate_entry(TaskRef(dataset, preset, seed))
        except NoSuchQuestion:
            return
        reward, well_formed = score_text(worked(dataset, entry), dataset, scorer, entry)
        assert well_formed
        if dataset == "propositional_logic" and reward != 1.0:
            assert says_nothing(entry["metadata"]["premises"])
        else:
            assert reward == 1.0

    holds()


def test_the_steps_of_a_sum_are_written_in_the_order_they_are_done() -> None:
    """Inner parentheses first, then products, then left to right, with floor division as the generator does it."""
    entry = {"metadata": {"expression": "-( 2 + -5 ) * 3 - 7 / 2"}, "answer": "6"}
    assert worked("basic_arithmetic", entry) == ("2+-5=-3;-(-3)=3;3*3=9;7/2=3;9-3=6\n<answer>6</answer>")


def test_a_base_conversion_goes_through_decimal() -> None:
    """Horner up, remainders down."""
    meta = {"source_base": 8, "target_base": 3, "source_repr": "61", "decimal_value": 49}
    assert worked("base_conversion", {"metadata": meta, "answer": "1211"}) == (
        "Read base 8:6,49. Divide 49 by 3:16r1,5r1,1r2,0r1.\n<answer>1211</answer>"
    )


@pytest.mark.parametrize("dataset", DATASETS)
def test_no_training_example_equals_a_held_out_item(dataset: str) -> None:
    """Neither by the question nor, for bf, by the program under another wording."""
    keys = held_out_keys(dataset, window=16)
    rows = examples(dataset, "starter", 40, keys)
    assert rows
    assert not {row.key for row in rows} & keys
    assert len({row.key for row in rows}) == len(rows)


def test_held_out_keys_cover_every_preset() -> None:
    """An item that is held out in any preset stays out of the training text of all."""
    keys = held_out_keys("basic_arithmetic", window=3)
    for preset in CATALOGUE["basic_arithmetic"]:
        _, entry = generate_entry(held_out("basic_arithmetic", preset, 2))
        assert content_key("basic_arithmetic", entry) in keys
    assert HELD_OUT_WINDOW >= 400


def test_training_references_lie_in_the_train_range_and_are_the_same_everywhere() -> None:
    """Seeds come from a hash of the recipe's own salt."""
    refs = [ref for ref, _ in zip(training_refs("bf", "starter"), range(50), strict=False)]
    assert all(is_train(ref) for ref in refs)
    assert [r.seed for r in refs[:2]] == [
        r.seed for r, _ in zip(training_refs("bf", "starter"), range(2), strict=False)
    ]
    assert len({ref.seed for ref in refs}) == 50
