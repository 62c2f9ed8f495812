"""A source that sends much that this policy would never write is refused with its other groups too."""

from __future__ import annotations

import random
from collections.abc import Sequence

from tests.unit.swarm.test_receive import ME, NOW, PEER, SWARM, AddOne, signed

from sapo_swarm.protocol import phrase_watch
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.phrase_watch import MOST, NEWEST, UnlikelySources
from sapo_swarm.protocol.receive import AcceptanceRules, GroupReceiver
from sapo_swarm.protocol.time_quota import TimeQuota
from sapo_swarm.types import Question

OTHER = Identity(bytes([2]) * 32)


async def likelihood(_question: Question, texts: Sequence[str]) -> tuple[float, float]:
    return -20.0 if "zalgo" in texts[0] else -1.0, 0.0


def sent(author: Identity, seed: int, words: str) -> bytes:
    return signed(author, seed, (f"{words} <answer>{seed + 1}</answer>", "no"))


async def test_a_few_unlikely_groups_are_enough_to_refuse_the_likely_ones_of_their_source() -> None:
    receiver = GroupReceiver(SWARM, ME.node, AddOne(), AcceptanceRules(), likelihood)
    for seed in range(100, 101 + MOST):
        receiver.quota = TimeQuota()  # what a source costs is not asked here
        assert await receiver.receive([sent(PEER, seed, "zalgo")], NOW) == []
    receiver.quota = TimeQuota()
    assert await receiver.receive([sent(PEER, 200, "work")], NOW) == []
    assert len(await receiver.receive([sent(OTHER, 201, "work")], NOW)) == 1
    assert receiver.rejected == {"logprob": MOST + 1, "unlikely": 1}
    assert not receiver.unlikely.allows(PEER.node)
    assert receiver.unlikely.allows(OTHER.node)


def test_a_source_is_heard_again_when_its_newest_groups_are_likely() -> None:
    sources = UnlikelySources()
    for _ in range(MOST + 1):
        sources.judged("a", True)
    for _ in range(NEWEST - MOST):
        assert not sources.allows("a")
        sources.judged("a", False)
    assert sources.allows("a")


def test_shuffled_words_refuse_their_source_for_good_and_a_rare_unlikely_group_does_not() -> None:
    """43 in 100 groups with shuffled words are below the floor, of bare answers 9, of honest work fewer than 1."""
    rng = random.Random(1)

    def heard(share: float) -> float:
        sources, taken = UnlikelySources(), 0
        for _ in range(2000):
            low = rng.random() < share
            sources.judged("a", low)
            taken += not low and sources.allows("a")
        return taken / 2000

    assert heard(0.43) < 0.02
    assert heard(0.09) > 0.75
    assert heard(0.01) > 0.98


def test_what_is_remembered_of_sources_is_bounded() -> None:
    sources = UnlikelySources()
    for number in range(phrase_watch.SOURCES + 10):
        sources.judged(str(number), True)
    assert len(sources.newest) == phrase_watch.SOURCES
    assert "9" not in sources.newest
