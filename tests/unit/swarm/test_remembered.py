"""The newest texts are known again, in memory that does not grow, whatever texts they are."""

from __future__ import annotations

import tracemalloc

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from sapo_swarm.protocol.drift.phrases import KeptPhrases, PhraseWatch
from sapo_swarm.protocol.drift.remembered import Remembered, fingerprint

MOST = 64
NUMBERS = st.lists(st.integers(0, 200), max_size=600)


@given(NUMBERS)
def test_it_knows_the_texts_that_were_told_last(numbers: list[int]) -> None:
    made, told = Remembered(MOST), dict[str, None]()
    for number in numbers:
        made.add(str(number))
        told.pop(str(number), None)
        told[str(number)] = None
    known = [text for text in map(str, range(201)) if text in made]
    assert set(list(told)[-MOST + MOST // 8 :]) <= set(known) <= set(list(told)[-MOST:])
    assert len(known) == len(made)


@given(NUMBERS, NUMBERS)
def test_what_is_discarded_is_as_if_it_had_never_been_told(numbers: list[int], discarded: list[int]) -> None:
    made = Remembered(MOST)
    for number in numbers:
        made.add(str(number))
    for number in discarded:
        made.discard(str(number))
        assert str(number) not in made
    assert len(made) == sum(text in made for text in map(str, range(201)))
    for number in discarded:
        made.add(str(number))
        assert str(number) in made
        assert len(made) <= MOST


@given(NUMBERS)
def test_it_is_the_same_after_a_rest(numbers: list[int]) -> None:
    made = Remembered(MOST)
    for number in numbers:
        made.add(str(number))
    assert Remembered(MOST, made.to_bytes()) == made


def test_its_memory_does_not_grow() -> None:
    made = Remembered(4096)
    tracemalloc.start()
    try:
        for number in range(40_000):
            made.add(f"{number} {number}")
        assert tracemalloc.get_traced_memory()[0] < (8 + 4) * 2 * 4096 + 10_000, "the table, which was made anew"
    finally:
        tracemalloc.stop()
    assert 4096 * 7 / 8 <= len(made) <= 4096


def test_a_text_of_any_kind_has_a_fingerprint_that_machines_agree_on() -> None:
    assert fingerprint("carry the one") == 0x942A799DC46AE572
    assert fingerprint("\ud800") != 0


def test_a_record_of_texts_is_read_and_the_oldest_are_forgotten_first() -> None:
    """Models of before have them."""
    texts = tuple(map(str, range(10)))
    record = msgspec.structs.replace(PhraseWatch().packed(), own=texts, foreign=("hail to thief",))
    made = PhraseWatch.unpacked(msgspec.msgpack.decode(msgspec.msgpack.encode(record), type=KeptPhrases))
    assert (len(made._own), "9" in made._own, "hail to thief" in made._foreign) == (10, True, True)
    few = Remembered(8, texts)
    assert ("0" in few, "9" in few) == (False, True)
