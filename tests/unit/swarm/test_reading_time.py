"""The engine's time for reading text of others: who sends what is refused pays for it, who is taken does not."""

from __future__ import annotations

from collections.abc import Sequence

from tests.unit.swarm.test_receive import ME, NOW, PEER, SWARM, AddOne, signed

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.receive import FIRST_TRUST, AcceptanceRules, GroupReceiver
from sapo_swarm.types import Question

READ_S = 8.0
"""What a group takes the engine here."""


class Reader:
    """A receiver on a slow engine, which reads for READ_S, by a clock that stands still unless it is moved."""

    def __init__(self) -> None:
        self.now, self.reads = 0.0, 0
        self.receiver = GroupReceiver(SWARM, ME.node, AddOne(), AcceptanceRules(), self.likelihood)
        self.receiver.clock = lambda: self.now

    async def likelihood(self, _question: Question, texts: Sequence[str]) -> tuple[float, float]:
        self.reads += 1
        return -20.0 if "zalgo" in texts[0] else -1.0, READ_S


def zalgo(author: Identity, seed: int) -> bytes:
    return signed(author, seed, (f"zalgo <answer>{seed + 1}</answer>", "no"))


def newcomer(number: int) -> Identity:
    return Identity(bytes([9, number]) * 16)


async def test_a_source_whose_groups_the_engine_reads_in_vain_is_held_back() -> None:
    """They cost the scorer nothing, and the engine half of its time."""
    reader = Reader()
    for seed in range(100, 300):
        reader.now += 2 * READ_S
        assert await reader.receiver.receive([zalgo(PEER, seed)], NOW) == []
    assert reader.reads <= 3
    assert reader.receiver.rejected["quota"] >= 197


async def test_many_newcomers_in_one_sample_are_not_all_read_where_reading_is_in_vain() -> None:
    """A few seconds, then the rest waits; in the long run all of them together have a part of the engine's time."""
    reader = Reader()
    await reader.receiver.receive([zalgo(newcomer(number), 100 + number) for number in range(100)], NOW)
    assert reader.reads == 1
    for number in range(100, 200):
        reader.now += 10.0
        await reader.receiver.receive([zalgo(newcomer(number), 100 + number)], NOW)
    assert reader.reads * READ_S < 0.15 * reader.now + 3.0 + 2 * READ_S


async def test_a_source_that_is_taken_pays_nothing_for_a_slow_engine() -> None:
    """A group in 5 s from an honest node, on an engine that reads for longer than that."""
    reader = Reader()
    for seed in range(100, 300):
        reader.now += 5.0
        assert await reader.receiver.receive([signed(PEER, seed)], NOW)


async def test_who_waits_for_what_another_newcomer_cost_is_trusted_as_before() -> None:
    reader = Reader()
    assert await reader.receiver.receive([zalgo(newcomer(1), 100), signed(newcomer(2), 101)], NOW) == []
    assert reader.receiver.rejected == {"logprob": 1, "quota": 1}
    assert reader.receiver.quota._sources[newcomer(2).node].trust == FIRST_TRUST
    reader.now += 60.0
    assert await reader.receiver.receive([signed(newcomer(2), 102)], NOW), "time comes back"
