"""The engine's time for reading text of others: it is budgeted first, who sends what is refused pays for it, who is taken does
not."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec
import zstandard
from tests.unit.swarm.test_receive import ME, NOW, PEER, SWARM, AddOne, body, signed

from sapo_swarm.node import aha_trail
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.phrase_watch import PhraseWatch
from sapo_swarm.protocol.receive import WAIT_S, WAITING_OF_ORIGIN, AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.time_quota import FIRST_TRUST, KNOWN_AFTER, SOURCES, KeptSource, TimeQuota
from sapo_swarm.types import Question

READ_S = 8.0
"""What a text takes the engine here."""


class Reader:
    """A receiver on a slow engine, by a clock that stands still unless it is moved. texts: how many it read."""

    def __init__(self) -> None:
        self.now, self.reads, self.texts = 0.0, 0, 0
        self.receiver = GroupReceiver(SWARM, ME.node, AddOne(), AcceptanceRules(), self.likelihood)
        self.receiver.clock = lambda: self.now

    async def likelihood(self, _question: Question, texts: Sequence[str]) -> tuple[float, float]:
        self.reads += 1
        self.texts += len(texts)
        return -20.0 if any("zalgo" in text for text in texts) else -1.0, READ_S * len(texts)

    async def receive(self, *groups: bytes, origin: str = "") -> int:
        """Groups taken of a sample, all of one origin."""
        return len(await self.receiver.receive(groups, NOW, [origin] * len(groups)))


def zalgo(author: Identity, seed: int) -> bytes:
    return signed(author, seed, (f"zalgo <answer>{seed + 1}</answer>", "no"))


def newcomer(number: int) -> Identity:
    return Identity(bytes([9, number]) * 16)


async def test_a_source_whose_groups_the_engine_reads_in_vain_is_held_back() -> None:
    """They cost the scorer nothing, and the engine half of its time."""
    reader = Reader()
    for seed in range(100, 300):
        reader.now += 2 * READ_S
        assert not await reader.receive(zalgo(PEER, seed))
    assert reader.reads <= 3
    assert reader.receiver.rejected["quota"] >= 197


async def test_many_newcomers_in_one_sample_are_not_all_read_where_reading_is_in_vain() -> None:
    """A few seconds, then the rest waits; in the long run all of them together have a part of the engine's time."""
    reader = Reader()
    await reader.receive(*(zalgo(newcomer(number), 100 + number) for number in range(100)))
    assert reader.reads == 1
    for number in range(100, 200):
        reader.now += 10.0
        await reader.receive(zalgo(newcomer(number), 100 + number))
    assert reader.reads * READ_S < 0.15 * reader.now + 3.0 + 2 * READ_S


async def test_a_source_that_is_taken_pays_nothing_for_a_slow_engine() -> None:
    """A group in 5 s from an honest node, on an engine that reads for longer than that."""
    reader = Reader()
    for seed in range(100, 300):
        reader.now += 5.0
        assert await reader.receive(signed(PEER, seed))


async def test_who_meets_the_empty_budget_of_all_newcomers_is_read_when_time_comes_back() -> None:
    """Its group waits and its trust stays as it was: it was not the one that spent the time."""
    reader = Reader()
    assert not await reader.receive(zalgo(newcomer(1), 100), signed(newcomer(2), 101))
    assert reader.receiver.rejected == {"logprob": 1}
    assert reader.receiver.quota._sources[newcomer(2).node].trust == FIRST_TRUST
    reader.now += 60.0
    assert await reader.receive() == 1, "without a new sample"
    assert not reader.receiver.rejected["quota"]


async def test_what_waits_is_bounded_in_number_and_time() -> None:
    reader = Reader()
    await reader.receive(zalgo(newcomer(1), 100), *(signed(newcomer(n), 100 + n) for n in range(2, 40)))
    assert reader.receiver.rejected["quota"] == 38 - WAITING_OF_ORIGIN
    reader.now += WAIT_S + 1
    reader.receiver.quota.charge("n", "", 1e6, reader.now)
    assert not await reader.receive()
    assert reader.receiver.rejected["quota"] == 38, "and not for ever"


async def test_an_estimate_is_charged_before_the_engine_reads_and_settled_after() -> None:
    """A reading that the budget does not hold does not begin, however little was spent so far."""
    reader = Reader()
    assert await reader.receive(signed(newcomer(1), 100)) == 1, "that is how it knows what reading costs"
    reader.receiver.quota.charge("n", "", 1.6, reader.now)
    assert not await reader.receive(signed(newcomer(2), 102))
    assert reader.reads == 1, "1.4 s are left, 8 s would be needed"
    during: list[float] = []
    likelihood = reader.receiver.likelihood
    assert likelihood is not None

    async def watched(question: Question, texts: Sequence[str]) -> tuple[float, float]:
        during.append(reader.receiver.quota._newcomers.left)
        return await likelihood(question, texts)

    reader.receiver.likelihood = watched
    reader.now += 60.0
    assert await reader.receive() == 1
    assert during[0] < -4.0
    assert reader.receiver.quota._newcomers.left == 3.0, "it was not in vain"


async def test_of_a_newcomer_one_text_is_read_first() -> None:
    """A reading in vain costs a fraction; what is taken was read as before."""
    reader = Reader()
    right = [f"{n} zalgo <answer>101</answer>" for n in range(6)]
    assert not await reader.receive(signed(newcomer(1), 100, (*right, "no")))
    assert reader.texts == 1
    reader.now += 60.0
    honest = [f"{n} <answer>102</answer>" for n in range(6)]
    assert await reader.receive(signed(newcomer(2), 101, (*honest, "no"))) == 1
    assert reader.texts == 1 + 4


async def test_fresh_identities_of_one_origin_share_one_slice() -> None:
    """Who comes from elsewhere is read all the same; a new identity for every group buys nothing."""
    reader = Reader()
    taken = 0
    for number in range(100):
        reader.now += 30.0
        taken += await reader.receive(zalgo(newcomer(number), 1000 + number), origin="a" * 16)  # or what waited
        taken += await reader.receive(signed(newcomer(100 + number), 2000 + number), origin=f"{number:016x}")
    assert reader.reads - 100 <= 6, "of a hundred"
    assert taken >= 97


async def test_a_phrase_that_spreads_is_refused_before_the_engine_reads() -> None:
    reader = Reader()
    texts = [(f"step {n} of it", Question(body(ME).ref, "What?", "0" * 64)) for n in range(64)]
    reader.receiver.phrases.observe_local(texts)
    for number in range(4):
        reader.now += 60.0
        await reader.receive(
            signed(newcomer(number), 100 + number, (f"hail thief <answer>{101 + number}</answer>", "no"))
        )
    assert reader.receiver.rejected == {"phrase": 1}
    assert reader.reads == 3


async def test_trust_and_debts_outlive_a_restart(tmp_path: Path) -> None:
    """In the model's folder, beside the phrases; a record without sources, as earlier versions wrote it, is read."""
    reader = Reader()
    for seed in range(100, 100 + KNOWN_AFTER):
        assert await reader.receive(signed(PEER, seed))
    await reader.receive(zalgo(newcomer(1), 200))
    aha_trail.save_swarm_memory(tmp_path, PhraseWatch().packed(), reader.receiver.quota.packed())
    _, sources, sentence = aha_trail.load_swarm_memory(tmp_path)
    assert (sentence, set(sources)) == ("", {PEER.node, newcomer(1).node})
    again = Reader()
    again.receiver.quota = TimeQuota.unpacked(sources, again.now)
    assert again.receiver.quota.is_known(PEER.node)
    assert not await again.receive(zalgo(newcomer(1), 201))
    assert (again.reads, again.receiver.rejected) == (0, {"quota": 1}), "it still owes"
    before = zstandard.compress(msgspec.msgpack.encode(PhraseWatch().packed()))
    (tmp_path / aha_trail.NAME).write_bytes(before)
    assert aha_trail.load_swarm_memory(tmp_path)[1:] == ({}, "")


def test_what_is_kept_of_sources_is_bounded() -> None:
    quota = TimeQuota()
    for number in range(SOURCES + 10):
        quota.judged(f"{number:032x}", f"{number:016x}", False, 0.0)
    quota.refusal("somebody who was never judged", "", 0.0, 0.0)
    kept = quota.packed()
    assert len(kept) == SOURCES - 1
    assert kept[f"{SOURCES:032x}"] == KeptSource(FIRST_TRUST / 2, 0, 1, 0.0)
    assert len(quota._origins) == SOURCES
