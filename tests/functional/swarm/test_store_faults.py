"""Writes of the embedded store that fail or are cut anywhere: nothing acknowledged is lost, and it goes on when it can."""

from __future__ import annotations

import asyncio
import contextlib
import random
import secrets
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from sapo_swarm.coordinator.admin import export_swarm, import_swarm
from sapo_swarm.coordinator.records import InviteRecord, Member, PoolEntry, PoolLimits, RoundExchange, SwarmRecord
from sapo_swarm.coordinator.store import sqlite_writer
from sapo_swarm.coordinator.store.base import StoreError, StoreUnavailable
from sapo_swarm.coordinator.store.sqlite import SQLiteStore

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="needs a limit on the size of files")
NOW = 1_800_000_000.0
LIMITS = PoolLimits(capacity=4000, per_node=4000, lifetime_s=1e6)


@contextmanager
def no_file_beyond(size: int) -> Iterator[None]:
    """Writes past so many bytes of any file fail, as on a full disk; one that crosses them is cut there."""
    import resource

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)


def round_of(number: int) -> RoundExchange:
    entry = PoolEntry(number.to_bytes(8, "big"), f"{number:032x}", "one", bytes(600))
    return RoundExchange(
        node="one",
        nonce=secrets.token_hex(16),
        round_id=f"{number:064x}",
        entries=(entry,),
        want=0,
        have=frozenset(),
        now=NOW,
        counts={},
    )


async def test_a_disk_that_fills_at_any_byte_loses_nothing_that_was_acknowledged(tmp_path: Path) -> None:
    """Forty times: so many bytes of room, writes until one fails, room again; at the end the file is read anew."""
    path, rng = tmp_path / "s.sqlite", random.Random(3)
    store = SQLiteStore(path, LIMITS)
    await store.open()
    acknowledged: list[int] = []
    number = failures = 0
    for _ in range(40):
        log = (tmp_path / "s.sqlite-wal").stat().st_size
        with no_file_beyond(log + rng.randrange(20_000)):
            for _ in range(30):
                number += 1
                try:
                    if (await store.exchange(round_of(number))).stored == (True,):
                        acknowledged.append(number)
                except StoreUnavailable:
                    failures += 1
                    break
        number += 1
        if (await store.exchange(round_of(number))).stored == (True,):
            acknowledged.append(number)
    await store.close()
    assert failures >= 20
    again = SQLiteStore(path, LIMITS)
    await again.open()
    found = {entry for entry in again._pool._contents}
    await again.close()
    assert {f"{number:032x}" for number in acknowledged} <= found


async def test_rounds_that_could_not_be_written_are_not_counted(tmp_path: Path) -> None:
    """Five tries on a full disk, then one that succeeds: one group, in memory and in the file."""
    store = SQLiteStore(tmp_path / "s.sqlite", LIMITS)
    await store.open()
    with no_file_beyond((tmp_path / "s.sqlite-wal").stat().st_size):
        for _ in range(5):
            with pytest.raises(StoreUnavailable):
                await store.exchange(round_of(1))
    done = await store.exchange(round_of(1))
    assert (done.stored, done.mine, done.total) == ((True,), 1, 1)
    assert (await store.exchange(round_of(1))).total == 1
    await store.close()
    await store.open()
    stats = await store.stats(NOW, 1)
    assert (stats.total, stats.minutes) == (1, {int(NOW) // 60: {"rounds": 1.0}})
    await store.close()


async def test_a_member_that_could_not_be_written_is_not_admitted_by_half(tmp_path: Path) -> None:
    """The refusal and the file agree."""
    store = SQLiteStore(tmp_path / "s.sqlite", LIMITS)
    await store.open()
    log = (tmp_path / "s.sqlite-wal").stat().st_size
    member = Member(node="one", key=b"k" * 32, name="n", model="m", joined=NOW, invite="")
    with no_file_beyond(log), pytest.raises(StoreUnavailable):
        await store.restore([member], [])
    assert await store.member("one") is None
    waiting = msgspec.structs.replace(member, waiting=True)
    await store.restore([waiting], [])
    with no_file_beyond((tmp_path / "s.sqlite-wal").stat().st_size), pytest.raises(StoreUnavailable):
        await store.approve("one")
    assert await store.member("one") == waiting
    assert await store.approve("one")
    assert await store.member("one") == member
    await store.close()


@contextmanager
def no_new_files() -> Iterator[None]:
    """Nothing more can be opened, as with too many open files."""
    import resource

    old = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, old)


async def test_a_log_that_cannot_be_synced_stops_nothing_and_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The writer goes on: what comes while no file can be opened, and what comes afterwards."""
    monkeypatch.setattr(sqlite_writer, "SYNC_EVERY_S", 0.0)
    store = SQLiteStore(tmp_path / "s.sqlite", LIMITS)
    await store.open()
    async with asyncio.timeout(20):
        with no_new_files():
            stored = [(await store.exchange(round_of(number))).stored for number in range(3)]
        stored.append((await store.exchange(round_of(3))).stored)
        await store.ping()
        await store.close()
    assert stored == [(True,)] * 4
    assert caplog.text.count("power cut") == 1


async def test_a_write_that_sqlite_does_not_take_fails_alone(tmp_path: Path) -> None:
    """Text that is no UTF-8, say: it is said, and the next one is written."""
    store = SQLiteStore(tmp_path / "s.sqlite", LIMITS)
    await store.open()
    async with asyncio.timeout(20):
        with pytest.raises(StoreUnavailable, match="cannot be written"):
            await store.drop_task("\ud800")
        assert await store.use_nonce("bb", NOW)
        await store.close()


@pytest.mark.parametrize("seed", range(4))
async def test_a_damaged_file_is_one_sentence(tmp_path: Path, seed: int) -> None:
    """Truncated or with flipped bits at fifty places: it opens, or says why it does not."""
    path = tmp_path / "good.sqlite"
    store = SQLiteStore(path, LIMITS)
    await store.open()
    for number in range(50):
        await store.exchange(round_of(number))
    await store.close()
    whole, rng = path.read_bytes(), random.Random(seed)
    for number in range(50):
        broken = bytearray(whole)
        if number % 2:
            del broken[rng.randrange(len(broken)) :]
        for _ in range(rng.randrange(1, 20)):
            if broken:
                broken[rng.randrange(len(broken))] ^= 1 << rng.randrange(8)
        damaged = SQLiteStore(_written(tmp_path / f"{number}.sqlite", bytes(broken)), LIMITS)
        with contextlib.suppress(StoreError):  # anything else is a traceback for the host
            await damaged.open()
        await damaged.close()


def _written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


STEPS = st.one_of(
    st.tuples(st.sampled_from(["round", "leave", "replay"]), st.integers(0, 4), st.booleans()),
    st.tuples(st.sampled_from(["look", "wait"]), st.just(0), st.booleans()),
    st.tuples(st.just("restart"), st.integers(3, 6), st.just(False)),
)
"""What happens, to which node (or with how many places from then on), and whether the disk is full meanwhile."""


@settings(max_examples=30)
@given(st.lists(STEPS, max_size=25))
@example([("round", 0, False), ("wait", 0, False), ("replay", 0, False), ("round", 1, False)])
@example([("round", 0, False), ("wait", 0, False), ("look", 0, True), ("look", 0, False)])
@example([("round", 0, False), ("leave", 0, True), ("look", 0, False)])
@example([*(("round", node, False) for node in range(5)), ("restart", 3, False)])
def test_the_file_holds_the_live_groups_and_no_others(history: list[tuple[str, int, bool]]) -> None:
    """After every write that succeeds, whatever expired, was replaced or withdrawn while none did; and after a start."""
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(_lives_through(history, Path(folder) / "s.sqlite"))


async def _lives_through(history: list[tuple[str, int, bool]], path: Path) -> None:
    def built(capacity: int) -> SQLiteStore:
        return SQLiteStore(path, PoolLimits(capacity=capacity, per_node=2, lifetime_s=10.0))

    store, now, last = built(6), NOW, round_of(0)
    await store.open()
    for number, (what, which, full) in enumerate(history):
        log = path.with_name(path.name + "-wal").stat().st_size
        with no_file_beyond(log) if full else contextlib.nullcontext(), contextlib.suppress(StoreUnavailable):
            if what == "restart":
                await store.close()
                store = built(which)
                await store.open()
            elif what == "round":
                last = msgspec.structs.replace(_of(which, number), now=now)
                await store.exchange(last)
            elif what == "replay":
                await store.exchange(msgspec.structs.replace(last, now=now))
                continue  # it writes nothing where it is one
            elif what == "leave":
                await store.leave(f"n{which}")
            elif what == "look":
                await store.snapshot(now, 4)
            else:
                now += 11.0
                continue
            assert _rows(store) == set(store._pool._by_age)
    await store.close()


def _of(node: int, number: int) -> RoundExchange:
    """A round of two groups."""
    groups = tuple(PoolEntry(bytes([number, of]), f"{number}.{of}", f"n{node}", bytes(600)) for of in range(2))
    return msgspec.structs.replace(round_of(number), node=f"n{node}", entries=groups)


def _rows(store: SQLiteStore) -> set[int]:
    assert store._writer is not None
    return {key for (key,) in store._writer._connection.execute("SELECT key FROM groups")}


async def test_an_import_that_failed_for_a_full_disk_can_be_done_again_with_the_bans(tmp_path: Path) -> None:
    swarm = SwarmRecord(swarm="a" * 16, name="x", open=False, certificate=b"c", key=b"k", created=NOW)
    members = [
        Member(node=f"{number:026d}", key=bytes(32), name="n", model="m", joined=NOW, invite="", seen=NOW)
        for number in range(2000)
    ]
    members[7] = msgspec.structs.replace(members[7], banned="spam")
    old, new = SQLiteStore(tmp_path / "old.sqlite"), SQLiteStore(tmp_path / "new.sqlite")
    for store in (old, new):
        await store.open()
    await old.found(swarm)
    await old.restore(members, [InviteRecord(hash="h" * 64, label="friends", created=NOW, expires=0.0, max_uses=0)])
    data = await export_swarm(old)
    with no_file_beyond((tmp_path / "new.sqlite-wal").stat().st_size + 20_000), pytest.raises(StoreUnavailable):
        await import_swarm(new, data)
    assert await import_swarm(new, data) == swarm
    assert await export_swarm(new) == data
    for store in (old, new):
        await store.close()
