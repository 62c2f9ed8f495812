"""Which rows are held out."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.tasks.own.split import clusters, held_out_places, key

WORDS = st.lists(st.sampled_from(["red", "blue", "7", "12", "box"]), min_size=1, max_size=6).map(" ".join)
LONG = "the parcel was sent on monday to the old harbour and came back because nobody there had ordered any of it"


@given(st.lists(WORDS, max_size=40), st.floats(0.05, 0.95), st.randoms())
def test_the_split_depends_on_content_and_not_on_the_order(
    prompts: list[str], share: float, order: random.Random
) -> None:
    mixed = prompts[:]
    order.shuffle(mixed)
    one = {key(prompts[place]) for place in held_out_places(prompts, share)}
    other = {key(mixed[place]) for place in held_out_places(mixed, share)}
    assert one == other


@given(st.lists(WORDS, max_size=40), st.floats(0.05, 0.95))
def test_what_asks_the_same_stays_on_one_side(prompts: list[str], share: float) -> None:
    doubled = prompts + [f"  {prompt.upper()}. " for prompt in prompts]
    chosen = held_out_places(doubled, share)
    assert {key(doubled[place]) for place in chosen}.isdisjoint(
        key(doubled[place]) for place in range(len(doubled)) if place not in chosen
    )


def test_both_sides_have_rows_and_about_the_wanted_share_is_held_out() -> None:
    assert len(held_out_places([f"question {n}" for n in range(1000)], 0.2)) == 200
    assert len(held_out_places(["a", "b"], 0.001)) == 1
    assert len(held_out_places(["a", "b"], 0.999)) == 1


def test_long_texts_that_are_nearly_the_same_stay_together() -> None:
    assert len(set(clusters([LONG, LONG.replace("ordered", "wanted")]))) == 1


def test_a_number_makes_another_question() -> None:
    assert len(set(clusters([f"{LONG} 12", f"{LONG} 13"]))) == 2
    assert len(set(clusters(["Calculate 1 + 2.", "Calculate 1 - 2.", "Calculate 1.2"]))) == 3


def test_different_long_texts_are_not_lumped_together() -> None:
    draw = random.Random(1)
    words = [f"w{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(400)]
    prompts = [" ".join(draw.choices(words, k=40)) for _ in range(300)]
    assert len(set(clusters(prompts))) == 300
