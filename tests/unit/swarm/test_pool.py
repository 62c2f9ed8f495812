"""The pool, the counters and the memory of what was seen: pure bookkeeping, under random histories."""

from __future__ import annotations

import itertools
import random
import sys
import tracemalloc
from collections import Counter
from typing import ClassVar

import msgspec
from hypothesis import example, given
from hypothesis import strategies as st

from sapo_swarm.coordinator.group_pool import GroupPool
from sapo_swarm.coordinator.records import ACTIVE_S, AHEAD_S, PoolEntry, PoolLimits, invite_share
from sapo_swarm.coordinator.rules import RecentKeys
from sapo_swarm.coordinator.window_stats import WindowCounters

LIMITS = PoolLimits(capacity=6, capacity_bytes=600, per_node=2, lifetime_s=10.0)


def entry(node: int, number: int, size: int = 10) -> PoolEntry:
    return PoolEntry(number.to_bytes(8, "big"), f"{number}", f"n{node}", bytes(size))


@given(st.lists(st.tuples(st.integers(0, 4), st.sampled_from([10, 100, 300]), st.floats(0, 5)), max_size=60))
def test_the_ring_keeps_its_bounds_and_says_what_it_gave_up(history: list[tuple[int, int, float]]) -> None:
    """Groups, bytes and groups of a source; keys given up are exactly those that are gone."""
    pool, now, live = GroupPool(LIMITS), 0.0, set()
    for number, (node, size, wait) in enumerate(history):
        now += wait
        gone = pool.expire(now)
        key, displaced = pool.add(entry(node, number, size), now)
        live = (live - set(gone) - set(displaced)) | {key}
        assert len(pool) == len(live) <= LIMITS.capacity
        assert pool.bytes <= LIMITS.capacity_bytes
        drawn = pool.sample(random.Random(number), 10, "reader", frozenset())
        assert len({found.node for found in drawn}) == len(drawn) == pool.nodes()
        assert str(number) in pool
    for node in range(5):
        pool.drop_node(f"n{node}")
    assert (len(pool), pool.bytes, pool.nodes()) == (0, 0, 0)


@given(st.lists(st.tuples(st.integers(0, 5), st.sampled_from([10, 60, 100])), max_size=80))
@example([(0, 10)] * 4 + [(0, 60), (1, 10), (1, 100), (2, 100), (3, 100), (4, 100), (5, 100)])
def test_who_holds_less_than_an_equal_part_of_the_bytes_loses_nothing_to_others(history: list[tuple[int, int]]) -> None:
    """However large the groups of the others are."""
    limits = PoolLimits(capacity=1000, capacity_bytes=600, per_node=8)
    pool, held, weight = GroupPool(limits), dict[int, tuple[int, int]](), Counter[int]()
    for number, (node, size) in enumerate(history):
        key, gone = pool.add(entry(node, number, size), 0.0)
        part = limits.capacity_bytes // len({node} | {owner for owner, _ in held.values()})
        for owner, freed in [held[old] for old in gone]:
            assert owner == node or weight[owner] > part
            weight[owner] -= freed
        held = {old: of for old, of in held.items() if old not in gone}
        held[key] = (node, size)
        weight[node] += size
        assert pool.bytes == sum(size for _, size in held.values()) <= limits.capacity_bytes


def test_a_draw_of_a_lone_caller_is_empty() -> None:
    """Nobody draws from itself, and an empty pool gives nothing."""
    pool = GroupPool(LIMITS)
    assert pool.sample(random.Random(0), 4, "n1", frozenset()) == []
    pool.add(entry(1, 1), 0.0)
    assert pool.sample(random.Random(0), 4, "n1", frozenset()) == []


@given(
    st.lists(st.tuples(st.sampled_from(["", "A", "A", "B", "C"]), st.integers(0, 2), st.integers(1, 7)), max_size=40),
    st.integers(1, 12),
    st.integers(0, 2**32),
)
def test_one_invite_gets_half_of_a_sample_at_most_while_others_have_enough(
    sources: list[tuple[str, int, int]], want: int, seed: int
) -> None:
    """Whatever the pool holds and whatever of it the caller has: samples are as large as they can be, and shared."""
    pool, fresh, known = GroupPool(PoolLimits(per_node=9)), Counter[str](), set[int]()
    for node, (invite, new, old) in enumerate(sources):
        for number in range(10 * node, 10 * node + new + old):
            pool.add(msgspec.structs.replace(entry(node, number), invite=invite), 0.0)
        known |= set(range(10 * node, 10 * node + old))
        fresh[invite] += new > 0
    have = frozenset(number.to_bytes(8, "big") for number in known)
    found = pool.sample(random.Random(seed), want, "reader", have)
    assert len({group.node for group in found}) == len(found) == min(want, fresh.total())
    assert not have & {group.id for group in found}
    most = invite_share(min(want, len(sources)))
    for invite, count in Counter(group.invite for group in found).items():
        others = sum(number if other == "" else min(most, number) for other, number in fresh.items() if other != invite)
        assert invite == "" or count <= max(most, want - others)


class Watched(PoolEntry, frozen=True):
    """An entry that notes when it is looked at."""

    def __getattribute__(self, name: str) -> object:
        Watched.looks.add(id(self))
        return super().__getattribute__(name)

    looks: ClassVar[set[int]] = set()


def test_a_sample_of_four_in_a_pool_of_20000_sources_of_one_invite_and_one_of_another_looks_at_fewer_than_200() -> None:
    """Whatever the pool holds, an exchange costs what it samples."""
    pool = GroupPool(PoolLimits())
    for node in range(20_001):
        plain = entry(node, node)
        pool.add(Watched(plain.id, plain.content, plain.node, plain.blob, "B" if node == 7 else "A"), 0.0)
    for seed in range(50):
        Watched.looks.clear()
        found = pool.sample(random.Random(seed), 4, "n5", frozenset(), per_source=8)
        assert len(Watched.looks) < 200
        assert len({group.node for group in found}) == 4
        assert "n7" in {group.node for group in found}
    for node in range(20_001):
        pool.drop_node(f"n{node}")
    assert pool.sample(random.Random(0), 4, "n5", frozenset()) == []


@given(st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["g/a", "g/b", "d/a", "rounds"])), max_size=80))
def test_running_totals_equal_the_minutes(history: list[tuple[int, str]]) -> None:
    """Whatever left the window left the totals."""
    counters, last = WindowCounters(), 0
    for minute, key in sorted(history):
        counters.add(minute, key, 1.0)
        counters.prune(60.0 * minute)
        last = minute
    for node in "ab":
        for kind, totals in (("g", counters.groups), ("d", counters.sampled)):
            expected = sum(last - minute < 60 and key == f"{kind}/{node}" for minute, key in history)
            assert totals.get(node, 0) == expected
    assert counters.total == sum(counters.groups.values())
    assert all(last - minute < 60 for minute in counters.minutes)
    assert not any(key.startswith(("g/", "d/")) for counts in counters.recent().values() for key in counts)


def test_what_the_status_page_reads_of_the_counters_costs_the_same_with_10_and_with_10000_nodes() -> None:
    """Counted in calls of functions: it is read every two seconds, and nobody is answered meanwhile."""

    def calls(nodes: int) -> int:
        counters, made = WindowCounters(), list[str]()
        for minute, node, kind in itertools.product(range(2), range(nodes), "gd"):
            counters.add(minute, f"{kind}/{node}", 1.0)
        counters.add(1, "rounds", 1.0)
        before = sys.getprofile()
        sys.setprofile(lambda _frame, event, _argument: made.append(event))
        try:
            assert counters.recent()[1]["rounds"] == 1.0
        finally:
            sys.setprofile(before)
        return len(made)

    assert calls(10) == calls(10_000)


def test_presence_ends_after_a_while() -> None:
    """A node counts as present for five minutes after its last exchange."""
    counters = WindowCounters()
    counters.mark_seen("a", 0.0)
    counters.mark_seen("b", 200.0)
    assert [counters.present(at) for at in (200.0, ACTIVE_S + 1, 200.0 + ACTIVE_S + 1)] == [2, 1, 0]


def test_when_a_node_was_last_seen_is_known_as_long_as_its_groups_count_and_then_forgotten() -> None:
    """However many come and go, no more is kept than of an hour."""
    counters = WindowCounters()
    for minute in range(300):
        now = 60.0 * minute
        counters.add(minute, f"g/{minute}", 1.0)
        counters.mark_seen("always", now)
        counters.mark_seen(f"{minute}", now)
        counters.prune(now)
        assert {*counters.groups, "always"} <= set(counters.seen)
        assert len(counters.seen) <= 64
    counters.mark_seen("set back", 0.0)
    counters.prune(0.0)
    assert set(counters.seen) == {"set back"}


@given(st.lists(st.floats(0, 30), max_size=60))
def test_what_was_seen_is_known_for_its_lifetime_and_forgotten_after_three(waits: list[float]) -> None:
    """And the memory does not grow for ever."""
    seen: RecentKeys[int] = RecentKeys(10.0)
    now, at = 1000.0, {}
    for number, wait in enumerate(waits):
        now += wait
        seen.put(number.to_bytes(4, "big"), number, now)
        at[number] = now
        for old, when in at.items():
            if now - when <= 10.0:
                assert seen.get(old.to_bytes(4, "big")) == old
        assert len(seen) <= sum(now - when <= 30.0 for when in at.values())


def test_what_expired_is_still_known_to_copiers_until_as_many_more_as_the_pool_has_room_for() -> None:
    """A group that was never stored, or was withdrawn, may come again at once."""
    pool = GroupPool(LIMITS)
    pool.add(entry(1, 1), 0.0)
    key, _ = pool.add(entry(1, 2), 0.0)
    pool.drop(key)
    assert "2" not in pool
    pool.expire(11.0)
    assert "1" in pool
    for number in range(LIMITS.capacity - 1):
        pool.add(entry(1, 100 + number), 12.0)
        pool.expire(40.0)
    assert "1" in pool
    for number in range(LIMITS.capacity + 1):
        pool.add(entry(1, 1000 + number), 12.0)
        pool.expire(40.0)
    assert ("1" in pool, "1000" in pool) == (False, True)


def test_a_group_that_came_while_the_clock_was_ahead_is_gone_when_it_is_set_back() -> None:
    """A step of a few seconds takes nothing away; what came afterwards stays."""
    pool = GroupPool(LIMITS)
    pool.add(entry(1, 1), 7200.0)
    assert pool.expire(7200.0 - AHEAD_S) == []
    pool.add(entry(1, 2), 100.0)
    assert len(pool.expire(100.0)) == 1
    assert ("2" in pool, len(pool)) == (True, 1)


def test_minutes_and_presence_of_a_clock_that_was_set_back_are_forgotten() -> None:
    counters = WindowCounters()
    for minute, node in ((120, "a"), (1, "b"), (0, "c")):
        counters.add(minute, f"g/{node}", 1.0)
        counters.mark_seen(node, 60.0 * minute)
    counters.prune(0.0)
    assert (counters.total, counters.groups) == (2, {"b": 1, "c": 1}), "a minute ahead is a slow request's"
    assert counters.present(0.0) == 2


def test_what_was_seen_by_a_clock_that_was_set_back_is_known_until_that_time_is_past_again() -> None:
    """Two hours ahead, for a while: its keys are not good twice; those that come meanwhile are forgotten as ever."""
    seen: RecentKeys[int] = RecentKeys(600.0)
    for number in range(60):
        seen.put(b"ahead%d" % number, number, 7200.0 + 10.0 * number)
    for number in range(800):
        seen.put(b"%d" % number, number, 10.0 * number)
        assert len(seen) <= 60 + 180
        assert seen.get(b"ahead59") == 59 or 10.0 * number > 7790.0 + 600.0
    for number in range(800, 1000):
        seen.put(b"%d" % number, number, 10.0 * number)
    assert seen.get(b"ahead59") is None
    seen.put(b"again", 1, 0.0)
    seen.drop(b"999")
    assert seen.get(b"999") is None


def test_an_hour_of_five_hundred_nodes_takes_two_megabytes_of_counters() -> None:
    """Each of 60 minutes has two figures of a node: their names are there once."""
    counters = WindowCounters()
    tracemalloc.start()
    for minute, node in itertools.product(range(60), range(500)):
        for kind in "gd":
            counters.add(29_000_000 + minute, f"{kind}/{node:032x}", 8.0, dirty=False)
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 2 * 2**20  # 7.7 where each minute had names of its own
