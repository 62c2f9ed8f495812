"""One suite over every store: what the coordinator relies on."""

from __future__ import annotations

import asyncio
import random
import secrets
import time
from pathlib import Path

import pytest
from tests.support.stores import LIMITS, NOW, SWARM, Build, drawn, invite, member, round_of

from sapo_swarm.coordinator.admin import export_swarm, import_swarm
from sapo_swarm.coordinator.records import PoolLimits, SwarmRecord
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store import open_store
from sapo_swarm.coordinator.store.base import Store, StoreFormat, StoreUnavailable
from sapo_swarm.coordinator.store.redis import RedisStore
from sapo_swarm.coordinator.store.sqlite import SQLiteStore


async def test_a_group_is_stored_once_and_drawn_by_others_only(store: Store) -> None:
    """The author never gets its own; content that is in the pool is not stored again."""
    first = await store.exchange(round_of("one", [1, 2], want=4))
    assert (first.stored, drawn(first), first.pool) == ((True, True), [], 2)
    again = await store.exchange(round_of("one", [2, 3], want=4))
    assert (again.stored, again.pool) == ((False, True), 3)
    other = await store.exchange(round_of("two", [], want=4))
    assert sorted(drawn(other)) == [1, 2, 3]


async def test_a_repeated_round_gives_the_same_verdicts_and_stores_nothing(store: Store) -> None:
    """At-least-once upload, stored once; counters too."""
    first = round_of("one", [1, 2], round_id="aa")
    await store.exchange(first)
    again = await store.exchange(round_of("one", [1, 2], round_id="aa"))
    assert (again.stored, again.pool, again.mine, again.total) == ((True, True), 2, 2, 2)


async def test_a_used_nonce_does_nothing(store: Store) -> None:
    """Replays are seen, in rounds and elsewhere."""
    assert await store.use_nonce("b1", NOW)
    assert not await store.use_nonce("b1", NOW + 1)
    assert (await store.exchange(round_of("one", [1], nonce="b1"))).replayed
    assert (await store.exchange(round_of("two", [], want=4))).sample == ()


async def test_uptake_and_receipts_tell_who_drew(store: Store) -> None:
    """Receipts since the last exchange; uptake for ever."""
    await store.exchange(round_of("one", [1]))
    for _ in range(3):
        await store.exchange(round_of("two", [], want=1))
    await store.exchange(round_of("three", [], want=1))
    mine = await store.exchange(round_of("one", []))
    assert (mine.uptake, mine.receipts) == (4, {"two": 3, "three": 1})
    mine = await store.exchange(round_of("one", []))
    assert (mine.uptake, mine.receipts) == (4, {})


async def test_the_window_forgets_after_an_hour_and_the_pool_after_its_lifetime(build: Build) -> None:
    """Counters leave by the minute."""
    store = build()
    await store.open()
    start = time.time() - 4000  # Redis keeps the lifetime of its keys by its own clock
    await store.exchange(round_of("one", [1, 2], now=start))
    await store.exchange(round_of("two", [3], now=start + 1800))
    stats = await store.stats(start + 1800, 10)
    assert (stats.total, [(r.groups) for r in stats.rows]) == (3, [])
    late = await store.exchange(round_of("two", [], now=start + 3700))
    assert (late.mine, late.total, late.pool) == (1, 1, 0)
    stats = await store.stats(start + 3700, 10)
    assert stats.total == 1
    await store.close()


@pytest.mark.parametrize("ahead", [0.5, 7.0])
async def test_the_window_is_right_again_when_a_clock_that_was_ahead_is_set_back(store: Store, ahead: float) -> None:
    """So many hours: what was counted then is no part of this hour, nor taken out of a later one."""
    await store.exchange(round_of("one", [1, 2], at=ahead * 3600))
    await store.exchange(round_of("two", [3, 4, 5], at=ahead * 3600))
    back = await store.exchange(round_of("three", [6, 7, 8]))
    assert (back.mine, back.total) == (3, 3)
    later = await store.exchange(round_of("four", [9], at=1800.0))
    assert (later.mine, later.total) == (1, 4)
    figures = [await store.exchange(round_of("four", [], at=1800.0 + wait)) for wait in (1500.0, 3000.0, 3700.0)]
    assert [(found.mine, found.total) for found in figures] == [(1, 4), (1, 1), (0, 0)]
    assert (await store.stats(NOW + 5500.0, 9)).rows == ()


async def test_what_came_while_the_clock_was_ahead_holds_no_place_when_it_is_set_back(store: Store) -> None:
    """The pool was full by then: a shared store gave one place to all that came later."""
    for n in range(10):
        await store.exchange(round_of(f"ahead {n}", [10 * n + i for i in range(4)], at=86400.0))
    back = await store.exchange(round_of("new 0", []))
    assert (back.pool, back.nodes) == (0, 1)
    for n in range(10):
        await store.exchange(round_of(f"new {n}", [100 + 10 * n + i for i in range(4)], at=1.0 + n))
    reader = await store.exchange(round_of("reader", [], want=40, at=20.0))
    assert {number // 10 for number in drawn(reader)} == set(range(10, 20))
    assert (reader.pool, reader.nodes) == (40, 11)
    stats = await store.stats(NOW + 20.0, 9)
    assert (stats.pool, stats.nodes) == (40, 11)


async def test_the_window_counts_what_coordinators_accept_whose_clocks_differ(redis_url: str) -> None:
    """By minutes: what the one ahead counts was taken out by the other as of a clock that was set back."""
    namespace = secrets.token_hex(4)
    one, ahead = (RedisStore(redis_url, LIMITS, random.Random(1), namespace) for _ in range(2))
    await asyncio.gather(one.open(), ahead.open())
    for minute in range(3):
        await one.exchange(round_of("one", [minute], at=60.0 * minute))
        last = await ahead.exchange(round_of("two", [10 + minute], at=60.0 * minute + 200.0))
    assert (last.mine, last.total) == (3, 6)
    await asyncio.gather(one.close(), ahead.close())


async def test_standing_ranks_members_and_keeps_minutes(store: Store) -> None:
    """Rows by groups, with names; minute counters without nodes."""
    await store.found(SWARM)
    await store.add_invite(invite("h"))
    for node in ("one", "two"):
        assert await store.admit(member(node, "h"), NOW) == ""
    await store.exchange(round_of("one", [1]))
    await store.exchange(round_of("two", [2, 3], want=1, counts={"t/bf": 2.0, "reward_sum": 0.5, "reward_n": 1.0}))
    stats = await store.stats(NOW, 10)
    assert [(row.member.name, row.groups, row.sampled, row.seen) for row in stats.rows] == [
        ("two", 2, 0, NOW),
        ("one", 1, 1, NOW),
    ]
    assert (stats.total, stats.nodes, stats.members, stats.pool) == (3, 2, 2, 3)
    assert stats.minutes == {int(NOW) // 60: {"t/bf": 3.0, "rounds": 2.0, "reward_sum": 0.5, "reward_n": 1.0}}


async def test_leaving_takes_the_groups_along(store: Store) -> None:
    """How many is said; the same groups may come back later."""
    await store.exchange(round_of("one", [1, 2]))
    assert await store.leave("one") == 2
    assert (await store.exchange(round_of("two", [], want=4))).sample == ()
    assert (await store.exchange(round_of("one", [1]))).stored == (True,)


async def test_everything_acknowledged_is_there_after_opening_again(build: Build) -> None:
    """Swarm, members, invites, pool, rounds, nonces and credit."""
    first = build()
    await first.open()
    await first.found(SWARM)
    await first.add_invite(invite("h"))
    await first.admit(member("one", "h"), NOW)
    await first.exchange(round_of("one", [1, 2], nonce="cc", round_id="aa"))
    await first.exchange(round_of("two", [], want=1))
    await first.close()
    second = build()
    await second.open()
    assert await second.swarm() == SWARM
    assert (
        await second.found(SwarmRecord(swarm="b" * 16, name="", open=True, certificate=b"", key=b"", created=0))
        == SWARM
    )
    assert [(m.node, m.invite) for m in await second.members()] == [("one", "h")]
    assert (await second.exchange(round_of("one", [3], nonce="cc"))).replayed
    again = await second.exchange(round_of("one", [1, 2], round_id="aa"))
    assert (again.stored, again.pool, again.mine, again.uptake) == ((True, True), 2, 2, 1)
    await second.close()


async def test_a_swarm_moves_to_another_store_with_its_key_and_members(store: Store, tmp_path: Path) -> None:
    """Export, import into an empty store; never over another swarm."""
    await store.found(SWARM)
    await store.add_invite(invite("h"))
    await store.admit(member("one", "h"), NOW)
    await store.ban("one", "spam")
    data = await export_swarm(store)
    other = SQLiteStore(tmp_path / "other.sqlite")
    await other.open()
    assert await import_swarm(other, data) == SWARM
    assert [(m.node, m.key, m.banned) for m in await other.members()] == [("one", b"k" * 32, "spam")]
    assert [(i.hash, i.uses) for i in await other.invites()] == [("h", 1)]
    with pytest.raises(StoreFormat, match="holds a swarm already"):
        await import_swarm(other, data)
    with pytest.raises(StoreFormat, match="not an exported swarm"):
        await import_swarm(other, b"junk")
    await other.close()


async def test_a_store_that_holds_a_part_of_one_swarm_takes_no_other(store: Store, tmp_path: Path) -> None:
    """An import that was killed before its last step; the same swarm is taken."""
    other = SQLiteStore(tmp_path / "other.sqlite")
    await other.open()
    await store.found(SWARM)
    data = await export_swarm(store)
    await other.restore([member("one", "h")], [])
    with pytest.raises(StoreFormat, match="part of another swarm"):
        await import_swarm(other, data)
    await store.restore([member("one", "h")], [])
    assert await import_swarm(other, await export_swarm(store)) == SWARM
    await other.close()


async def test_a_closed_store_says_that_it_is_unavailable(build: Build) -> None:
    """No hang, no other error."""
    store = build()
    with pytest.raises(StoreUnavailable):
        await store.exchange(round_of("one", [1]))


async def test_after_a_clock_was_two_hours_ahead_nothing_of_it_is_left_but_what_must_not_be_used_twice(
    tmp_path: Path,
) -> None:
    """Without and with a new start between: pool, presence and counters are of now, and every nonce was used."""
    now = time.time()
    for again in (False, True):
        made = lambda folder=tmp_path / str(again): SQLiteStore(folder / "s.sqlite", LIMITS)  # noqa: E731
        store = made()
        await store.open()
        await store.exchange(round_of("early", [1, 2], now=now + 7200.0, nonce="aa"))
        await store.exchange(round_of("one", [3], now=now, nonce="bb"))
        if again:
            await store.close()
            store = made()
            await store.open()
        found = await store.exchange(round_of("two", [4], now=now + 1.0))
        assert (found.pool, found.total) == (2, 2)
        assert found.nodes == (1 if again else 2)
        assert set((await store.stats(now + 1.0, 9)).minutes) == {int(now) // 60, int(now + 1.0) // 60}
        assert not await store.use_nonce("bb", now + 2.0)
        assert not await store.use_nonce("aa", now + 2.0)
        assert not await store.use_nonce("aa", now + 7200.0)
        await store.close()


@pytest.mark.parametrize("address", ["mysql://x", "sqlite:", "nothing", ""])
def test_an_unknown_store_is_named(address: str) -> None:
    """The message lists what there is."""
    with pytest.raises(StoreFormat, match="redis://host:port/db"):
        open_store(CoordinatorSettings(store=address))


async def test_two_coordinators_cannot_open_one_sqlite_file(tmp_path: Path) -> None:
    """The second is told what to look for."""
    one, two = SQLiteStore(tmp_path / "s.sqlite"), SQLiteStore(tmp_path / "s.sqlite")
    await one.open()
    with pytest.raises(StoreUnavailable, match="another coordinator"):
        await two.open()
    await one.close()


async def test_an_absent_redis_is_unavailable() -> None:
    """Port 1 answers nobody."""
    with pytest.raises(StoreUnavailable, match="Redis does not answer"):
        await RedisStore("redis://127.0.0.1:1/0").open()


async def test_what_one_coordinator_gave_out_is_credited_at_another(redis_url: str) -> None:
    """A draw is credited with the coordinator's next exchange, with its figures, within a second, and when it stops."""
    space = secrets.token_hex(4)
    here, there = (RedisStore(redis_url, PoolLimits(), random.Random(n), space) for n in (1, 2))
    await asyncio.gather(here.open(), there.open())
    await here.exchange(round_of("one", [1]))
    await here.exchange(round_of("two", [], want=1))
    await here.stats(NOW, 10)
    assert (await there.exchange(round_of("one", []))).receipts == {"two": 1}
    await here.exchange(round_of("three", [], want=1))
    await here.close()
    mine = await there.exchange(round_of("one", []))
    assert (mine.uptake, mine.receipts) == (2, {"three": 1})
    await here.open()
    await here.exchange(round_of("four", [], want=1))
    receipts: dict[str, int] = {}
    while not receipts:
        await asyncio.sleep(0.05)
        receipts = (await there.exchange(round_of("one", []))).receipts
    assert receipts == {"four": 1}
    await asyncio.gather(here.close(), there.close())
