"""What every store's pool holds, and what a sample of it is."""

from __future__ import annotations

import random
import secrets
from collections import Counter

import msgspec
import pytest
import redis.asyncio
from tests.support.stores import LIMITS, NOW, drawn, entry, invite, round_of

from sapo_swarm.coordinator.records import PoolEntry, PoolLimits
from sapo_swarm.coordinator.store.base import Store, StoreFormat
from sapo_swarm.coordinator.store.redis import MAX_READS, RedisStore
from sapo_swarm.coordinator.store.redis_scripts import READ


async def test_a_source_displaces_only_itself(store: Store) -> None:
    """A flooder's newest groups replace its own oldest."""
    await store.exchange(round_of("calm", [1]))
    for number in range(100, 200):
        result = await store.exchange(round_of("flood", [number]))
    assert result.pool == 1 + LIMITS.per_node
    seen = {n for _ in range(60) for n in drawn(await store.exchange(round_of("reader", [], want=4)))}
    assert seen == {1, 196, 197, 198, 199}


async def test_a_copy_of_what_gave_way_is_refused_until_it_is_long_gone(store: Store) -> None:
    """Of as many contents as the pool has room for: the memory has an end."""
    for number in range(LIMITS.per_node + 2):
        await store.exchange(round_of("calm", [number]))
    copied = await store.exchange(round_of("copier", [0, 1, 2]))
    assert copied.stored == (False, False, False), "0 and 1 gave way, 2 is there"
    for number in range(100, 100 + 2 * LIMITS.capacity + LIMITS.per_node):
        await store.exchange(round_of("flood", [number]))
    assert (await store.exchange(round_of("copier", [0]))).stored == (True,)


async def test_in_a_full_pool_every_source_has_equal_room(store: Store) -> None:
    """Forty places, twenty sources: two groups each, however much one of them sends."""
    for number in range(3):
        for node in range(19):
            await store.exchange(round_of(f"n{node}", [1000 * node + number]))
        for more in range(10):
            await store.exchange(round_of("flood", [10**6 + 100 * number + more]))
    seen = Counter[int]()
    for _ in range(100):
        seen.update(drawn(await store.exchange(round_of("reader", [], want=32))))
    flooded = {number for number in seen if number >= 10**6}
    assert 1 <= len(flooded) <= LIMITS.per_node // 2
    assert len({number // 1000 for number in seen if number < 10**6}) == 19


async def test_a_full_pool_gives_up_its_oldest(store: Store) -> None:
    """Capacity holds whatever the number of sources."""
    for node in range(50):
        result = await store.exchange(round_of(f"n{node}", [node], at=node / 10))
    assert result.pool == LIMITS.capacity
    seen = {n for _ in range(200) for n in drawn(await store.exchange(round_of("reader", [], want=32, at=5.0)))}
    assert seen == set(range(10, 50))


async def test_a_sample_holds_one_group_a_source_and_none_that_the_caller_has(store: Store) -> None:
    """Five sources of four groups each, five wanted: never two of one."""
    for node in range(5):
        await store.exchange(round_of(f"n{node}", [10 * node + i for i in range(4)]))
    for _ in range(20):
        numbers = drawn(await store.exchange(round_of("reader", [], want=5)))
        assert sorted(n // 10 for n in numbers) == [0, 1, 2, 3, 4]
    have = frozenset(entry("", 10 * node + i).id for node in range(5) for i in range(3))
    numbers = drawn(await store.exchange(round_of("reader", [], want=32, have=have)))
    assert sorted(numbers) == [3, 13, 23, 33, 43]


async def test_where_sources_are_few_each_gives_more_in_turn(store: Store) -> None:
    """Three sources, one of them with little: what is missing comes from the others evenly, and nothing twice."""
    for node, groups in enumerate((1, 4, 4)):
        await store.exchange(round_of(f"n{node}", [10 * node + i for i in range(groups)]))
    for _ in range(20):
        numbers = drawn(await store.exchange(round_of("reader", [], want=6)))
        assert len(set(numbers)) == len(numbers) == 6
        assert Counter(n // 10 for n in numbers)[0] == 1
        assert {Counter(n // 10 for n in numbers)[node] for node in (1, 2)} == {2, 3}
    assert len(drawn(await store.exchange(round_of("reader", [], want=11)))) == 9
    assert len(await store.snapshot(NOW, 11)) == 3, "a snapshot has one of each"


async def test_a_source_with_the_most_groups_does_not_fill_what_the_others_leave(store: Store) -> None:
    """Nine sources have two groups that the reader lacks, a flooder as many as it may: all give two."""
    for node in range(9):
        await store.exchange(round_of(f"n{node}", [10 * node, 10 * node + 1]))
    await store.exchange(round_of("flood", [100 + i for i in range(LIMITS.per_node)]))
    for _ in range(20):
        numbers = drawn(await store.exchange(round_of("reader", [], want=32)))
        assert set(Counter(n // 10 for n in numbers).values()) == {2}


async def test_draws_are_uniform_over_sources_of_equal_size(store: Store) -> None:
    """Chi-square over 40 live groups, p > 1e-7 (gate 6 does a million draws)."""
    for node in range(10):
        await store.exchange(round_of(f"n{node}", [10 * node + i for i in range(4)]))
    counts: Counter[int] = Counter()
    for _ in range(500):
        counts.update(drawn(await store.exchange(round_of("reader", [], want=1))))
    chi = sum((counts[10 * node + i] - 12.5) ** 2 / 12.5 for node in range(10) for i in range(4))
    assert chi < 104.0, counts


async def test_a_large_sample_stays_within_a_reply(store: Store) -> None:
    """Groups of a hundred kilobytes: as many as fit."""
    for node in range(5):
        big = PoolEntry(node.to_bytes(8, "big"), f"{node:032x}", f"n{node}", b"%20d" % node + bytes(90_000))
        await store.exchange(round_of(f"n{node}", [], entries=(big,)))
    assert len((await store.exchange(round_of("reader", [], want=5))).sample) == 2


@pytest.mark.parametrize("size", [132_000, 66_000])
async def test_a_few_large_groups_push_nobody_out_of_a_sample(store: Store, size: int) -> None:
    """Twenty sources of 4 KB and ten of as much as is legal, or a third of a reply: the twenty get their part of the draws."""
    for node in range(30):
        one = entry(f"n{node}", node, 4000 if node < 20 else size)
        await store.exchange(round_of(f"n{node}", [], entries=(one,)))
    samples = [drawn(await store.exchange(round_of("reader", [], want=16))) for _ in range(60)]
    small = sum(number < 20 for numbers in samples for number in numbers) / len(samples)
    assert small > 0.95 * 16 * 20 / 30, small


async def test_a_large_group_is_drawn_now_and_then_among_many_small_ones(store: Store) -> None:
    """Thirty of 8 KB fill a reply by themselves: one of 40 KB is sampled less often, not never."""
    for node in range(31):
        await store.exchange(round_of(f"n{node}", [], entries=(entry(f"n{node}", node, 8000 if node else 40_000),)))
    samples = [drawn(await store.exchange(round_of("reader", [], want=32))) for _ in range(60)]
    assert 5 < sum(0 in numbers for numbers in samples) < 50


async def test_one_invite_gets_no_more_than_half_of_a_sample_while_there_are_others(store: Store) -> None:
    """Thirty identities of one invite against three honest nodes of another: the honest ones are heard."""
    for number in range(30):
        crowd = msgspec.structs.replace(entry(f"sybil{number}", number), invite="b" * 64)
        await store.exchange(round_of(f"sybil{number}", [], entries=(crowd,)))
    for number in range(30, 33):
        honest = msgspec.structs.replace(entry(f"honest{number}", number), invite="a" * 64)
        await store.exchange(round_of(f"honest{number}", [], entries=(honest,)))
    seen = [drawn(await store.exchange(round_of("reader", [], want=6))) for _ in range(20)]
    assert sum(number >= 30 for numbers in seen for number in numbers) >= 0.4 * sum(map(len, seen))
    assert all(len(numbers) == 6 for numbers in seen)


async def test_two_invites_with_enough_groups_share_every_sample(store: Store) -> None:
    """Five nodes each of four groups, three of which the reader has: three and three of six."""
    for number in range(10):
        for group in range(10 * number, 10 * number + 4):
            one = msgspec.structs.replace(entry(f"n{number}", group), invite=("a" if number < 5 else "b") * 64)
            await store.exchange(round_of(f"n{number}", [], entries=(one,)))
    have = frozenset(entry("", 10 * number + known).id for number in range(10) for known in range(3))
    for _ in range(40):
        numbers = drawn(await store.exchange(round_of("reader", [], want=6, have=have)))
        assert sum(number < 50 for number in numbers) == 3, numbers


async def test_where_all_came_by_one_invite_not_every_sample_looks_for_another(redis_url: str) -> None:
    """A look reads up to eight times as many slots. The first one finds out; a member of another invite is met later."""
    store = RedisStore(redis_url, PoolLimits(), random.Random(1), secrets.token_hex(4))
    await store.open()
    for number in range(200):
        one = msgspec.structs.replace(entry(f"n{number}", number), invite="b" * 64)
        await store.exchange(round_of(f"n{number}", [], entries=(one,)))
    reads: list[str] = []
    run = store._run
    store._run = lambda script, *rest: (reads.append(script), run(script, *rest))[1]  # type: ignore[method-assign]
    for _ in range(10):
        assert len(drawn(await store.exchange(round_of("reader", [], want=4)))) == 4
    await store.close()
    assert reads.count(READ) < 2 * MAX_READS


async def test_a_pool_that_was_once_large_samples_as_well_as_a_new_one(redis_url: str) -> None:
    """A thousand groups expired, one is of a clock that was set back: what is drawn are the twenty sources of today."""
    store = RedisStore(redis_url, PoolLimits(), random.Random(1), secrets.token_hex(4))
    await store.open()
    await store.exchange(round_of("ahead", [9999], at=7200.0))
    for node in range(125):
        await store.exchange(round_of(f"old{node}", list(range(1000 + 8 * node, 1008 + 8 * node))))
    for number in range(20):
        await store.exchange(round_of(f"n{number}", [10 * number + group for group in range(8)], at=1000.0))
    for _ in range(20):
        numbers = drawn(await store.exchange(round_of("reader", [], want=16, at=1001.0)))
        assert len(numbers) == 16
        assert max(numbers) < 200
    assert len(await store.snapshot(NOW + 1001.0, 20)) == 20
    await store.close()


async def test_a_snapshot_is_a_sample_for_everybody_and_nobodys_uptake(store: Store) -> None:
    """One group a source, the requester's own too: who will read it is not known."""
    for number in range(6):
        await store.exchange(round_of(f"n{number % 3}", [number]))
    found = await store.snapshot(NOW, 256)
    assert len(found) == 3
    assert (await store.exchange(round_of("n0", []))).uptake == 0


async def test_what_was_damaged_in_redis_is_left_out_or_named(redis_url: str) -> None:
    """One damaged group had every sample that met it fail; damaged counters and invites were a KeyError or a ValueError."""
    store = RedisStore(redis_url, LIMITS, random.Random(1), secrets.token_hex(4))
    await store.open()
    await store.exchange(round_of("a", [1, 2, 3]))
    server = redis.asyncio.from_url(redis_url)
    await server.set(store._key("slot:", "1"), b"\xff\x00junk")
    assert drawn(await store.exchange(round_of("b", [], want=8))) == [1, 3]
    assert len(await store.snapshot(NOW, 8)) == 1, "one of each source"
    await store.add_invite(invite("i"))
    await server.delete(store._key("invite:", "i"))
    await server.hset(store._key("receipts:", "c"), "b", "\x92")
    await server.hset(store._key("min:", int(NOW) // 60 - 1), "t/bf", "d")
    for call in (store.invites, lambda: store.exchange(round_of("c", [])), lambda: store.stats(NOW, 10)):
        with pytest.raises(StoreFormat, match="Redis holds something that this program did not write"):
            await call()
    await server.aclose()
    await store.close()
