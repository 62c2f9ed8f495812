"""Which rows are held out."""

from __future__ import annotations

import hashlib
import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.tasks.own.row_roles import balanced_places, cluster_prompts, held_out_places, prompt_key

WORDS = st.lists(st.sampled_from(["red", "blue", "7", "12", "box"]), min_size=1, max_size=6).map(" ".join)
LONG = "the parcel was sent on monday to the old harbour and came back because nobody there had ordered any of it"


@given(st.lists(WORDS, max_size=40), st.floats(0.05, 0.95), st.randoms())
def test_the_split_depends_on_content_and_not_on_the_order(
    prompts: list[str], share: float, order: random.Random
) -> None:
    mixed = prompts[:]
    order.shuffle(mixed)
    one = {prompt_key(prompts[place]) for place in held_out_places(prompts, share)}
    other = {prompt_key(mixed[place]) for place in held_out_places(mixed, share)}
    assert one == other


@given(st.lists(WORDS, max_size=40), st.floats(0.05, 0.95))
def test_what_asks_the_same_stays_on_one_side(prompts: list[str], share: float) -> None:
    doubled = prompts + [f"  {prompt.upper()}. " for prompt in prompts]
    chosen = held_out_places(doubled, share)
    assert {prompt_key(doubled[place]) for place in chosen}.isdisjoint(
        prompt_key(doubled[place]) for place in range(len(doubled)) if place not in chosen
    )


def test_both_sides_have_rows_and_about_the_wanted_share_is_held_out() -> None:
    assert len(held_out_places([f"question {n}" for n in range(1000)], 0.2)) == 200
    assert len(held_out_places(["a", "b"], 0.001)) == 1
    assert len(held_out_places(["a", "b"], 0.999)) == 1


def test_long_texts_that_are_nearly_the_same_stay_together() -> None:
    assert len(set(cluster_prompts([LONG, LONG.replace("ordered", "wanted")]))) == 1


def test_a_number_makes_another_question() -> None:
    assert len(set(cluster_prompts([f"{LONG} 12", f"{LONG} 13"]))) == 2
    assert len(set(cluster_prompts(["Calculate 1 + 2.", "Calculate 1 - 2.", "Calculate 1.2"]))) == 3


def test_different_long_texts_are_not_lumped_together() -> None:
    draw = random.Random(1)
    words = [f"w{chr(97 + n // 26)}{chr(97 + n % 26)}" for n in range(400)]
    prompts = [" ".join(draw.choices(words, k=40)) for _ in range(300)]
    assert len(set(cluster_prompts(prompts))) == 300


def test_the_rule_of_older_tasks_holds_out_what_it_always_did() -> None:
    """A pinned set: a folder with rows.jsonl must not begin to train on what it was measured with."""
    prompts = [f"question {n}" for n in range(200)]
    chosen = " ".join(map(str, sorted(held_out_places(prompts, 0.2))))
    assert hashlib.sha256(chosen.encode()).hexdigest() == PINNED


PINNED = "d1f9a177ea5d81eff27849b5879cd1172a822f3d4037ca20d327d676bb715333"


CLASSES = st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=60)


@given(CLASSES, st.floats(0.05, 0.95), st.randoms())
def test_a_balanced_split_holds_out_each_answer_in_its_proportion_whatever_the_order(
    answers: list[str], share: float, order: random.Random
) -> None:
    prompts = [f"message {n}" for n in range(len(answers))]
    chosen = balanced_places(prompts, answers, share)
    mixed = list(zip(prompts, answers, strict=True))
    order.shuffle(mixed)
    again = balanced_places([text for text, _ in mixed], [answer for _, answer in mixed], share)
    assert {prompts[place] for place in chosen} == {mixed[place][0] for place in again}
    assert 1 <= len(chosen) < len(answers)
    held_out = Counter(answers[place] for place in chosen)
    for answer, count in Counter(answers).items():
        assert abs(held_out[answer] - share * count) <= 2, "no more than rounding and one on each side"


def test_a_rare_answer_is_on_both_sides_and_near_duplicates_stay_on_one() -> None:
    answers = ["often"] * 90 + ["rare"] * 4 + ["once"]
    prompts = [f"message {n}" for n in range(95)]
    counted = Counter(answers[place] for place in balanced_places(prompts, answers, 0.2))
    assert (counted["rare"], counted["once"], counted.total()) == (1, 0, 19)
    doubled = balanced_places([*prompts, *(f" {text.upper()}." for text in prompts)], answers * 2, 0.2)
    assert {place + 95 for place in doubled if place < 95} == {place for place in doubled if place >= 95}


def test_where_every_answer_is_another_the_balanced_split_is_the_plain_one() -> None:
    prompts = [f"question {n}" for n in range(100)]
    assert balanced_places(prompts, [str(n) for n in range(100)], 0.2) == held_out_places(prompts, 0.2)
