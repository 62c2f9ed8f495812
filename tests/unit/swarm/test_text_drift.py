"""The drift alarm that needs no phrase: length and variety of what a node writes, beside what it wrote first."""

from __future__ import annotations

import math
import random
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_swarm.node import aha_trail
from sapo_swarm.protocol.drift import BUCKETS, LOCAL_A_ROUND, TEXTS, PhraseWatch, TextDrift, count_texts
from sapo_swarm.types import Question, TaskRef

SENTENCE = "first then add carry take from both sides so that half of it is left over"
WORDS = SENTENCE.split()
QUESTION = Question(TaskRef("basic_arithmetic", "starter", 1), "What is 12 + 5?", "0" * 64)


def texts(rng: random.Random, words: int, of: int = len(WORDS)) -> list[str]:
    """A round's: sentences of so many words."""
    return [" ".join(rng.choice(WORDS[:of]) for _ in range(words)) + f" {rng.random()}" for _ in range(LOCAL_A_ROUND)]


def drift(rng: random.Random) -> TextDrift:
    """One that knows the first texts: of a dozen words."""
    made = TextDrift()
    while made.first.texts < TEXTS:
        made.observe(texts(rng, 12))
    return made


@pytest.mark.parametrize(
    ("words", "of", "said"),
    [
        (12, 16, ""),
        (17, 16, ""),
        (9, 12, ""),
        (40, 16, "have 42 words now and had 14 at first"),
        (3, 16, "have 5 words now and had 14 at first"),
        (12, 2, "less and less different things"),
    ],
)
def test_texts_that_are_much_longer_shorter_or_poorer_are_told_of_and_small_changes_are_not(
    words: int, of: int, said: str
) -> None:
    rng = random.Random(5)
    made = drift(rng)
    for _ in range(TEXTS // LOCAL_A_ROUND):
        assert made.alarm == "", "nothing is said before as many new texts are there"
        made.observe(texts(rng, words, of))
    assert said in made.alarm
    assert bool(said) == bool(made.alarm)
    for _ in range(TEXTS // LOCAL_A_ROUND):
        made.observe(texts(rng, 12))
    assert made.alarm == "", "it is gone again"


def test_entropy_and_length_are_those_of_the_definition() -> None:
    found = count_texts(["one two", "two 12 34 two"])
    assert (found.texts, found.words, found.length) == (2, 6, 3.0)
    assert found.entropy == pytest.approx(-sum(p * math.log2(p) for p in (1 / 6, 3 / 6, 2 / 6)))


@settings(max_examples=25, deadline=None)
@given(st.lists(st.text(max_size=300), max_size=80))
def test_any_texts_are_bounded_memory_and_a_number(found: list[str]) -> None:
    made = drift(random.Random(1))
    for _ in range(20):
        made.observe(found)
    assert len(msgspec.msgpack.encode(made)) < 6 * BUCKETS * (2 + TEXTS // max(len(found), 1))
    assert all(math.isfinite(part.entropy) for part in made.newest if part.words)
    assert isinstance(made.alarm, str)


def test_a_node_says_it_beside_its_swarm_and_knows_its_first_texts_over_a_restart(tmp_path: Path) -> None:
    rng, watch = random.Random(5), PhraseWatch()
    for _ in range(TEXTS // LOCAL_A_ROUND):
        watch.observe_local((text, QUESTION) for text in texts(rng, 12))
    aha_trail.save_swarm_memory(tmp_path, watch.packed())
    again, _, said = aha_trail.load_swarm_memory(tmp_path)
    assert (again, said) == (watch, "")
    for _ in range(TEXTS // LOCAL_A_ROUND):
        again.observe_local((text, QUESTION) for text in texts(rng, 40))
    assert "have 42 words now" in again.alarm
    assert watch.alarm == ""
