"""The newest of many are known again, in memory that does not grow, whatever they are."""

from __future__ import annotations

import tracemalloc

from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.protocol.phrase_watch import RecentFingerprints, text_fingerprint

LEAST = 64
NUMBERS = st.lists(st.integers(0, 400), max_size=600)
ALL = [text_fingerprint(str(number)) for number in range(401)]


def told(numbers: list[int]) -> RecentFingerprints:
    made = RecentFingerprints(LEAST)
    for number in numbers:
        made.add(ALL[number])
    return made


@given(NUMBERS)
def test_it_knows_those_that_were_told_last_and_up_to_twice_as_many(numbers: list[int]) -> None:
    made, newest = told(numbers), list(dict.fromkeys(reversed(numbers)))
    known = {number for number in range(401) if ALL[number] in made}
    assert set(newest[:LEAST]) <= known <= set(newest)
    assert len(known) == len(made) <= 2 * LEAST


@given(NUMBERS, NUMBERS)
def test_what_is_discarded_is_as_if_it_had_never_been_told(numbers: list[int], discarded: list[int]) -> None:
    made = told(numbers)
    for number in discarded:
        made.discard(ALL[number])
        assert ALL[number] not in made
    assert len(made) == sum(key in made for key in ALL)
    for number in discarded:
        made.add(ALL[number])
        assert ALL[number] in made
    assert len(made) <= 2 * LEAST


@given(NUMBERS)
def test_it_is_the_same_after_a_rest(numbers: list[int]) -> None:
    made = told(numbers)
    assert RecentFingerprints(LEAST, made.to_bytes()) == made


def test_its_memory_does_not_grow() -> None:
    made = RecentFingerprints(4096)
    tracemalloc.start()
    try:
        for number in range(40_000):
            made.add(text_fingerprint(f"{number} {number}"))
        assert tracemalloc.get_traced_memory()[0] < 2 * 8 * 2 * 4096 + 10_000, "both tables, which were made anew"
    finally:
        tracemalloc.stop()
    assert 4096 <= len(made) <= 2 * 4096


def test_a_text_of_any_kind_has_a_fingerprint_that_machines_agree_on() -> None:
    assert text_fingerprint("carry the one") == 0x942A799DC46AE572
    assert text_fingerprint("\ud800") > 1
