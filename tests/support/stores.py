"""Stores under one suite, empty, with what fills them. The fixtures are known to every test of tests/contract/stores."""

from __future__ import annotations

import os
import random
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from tests.support.local_redis import MISSING, NoRedis, local_redis

from sapo_swarm.coordinator.records import (
    ExchangeOutcome,
    InviteRecord,
    Member,
    PoolEntry,
    PoolLimits,
    RoundExchange,
    SwarmRecord,
)
from sapo_swarm.coordinator.store.base import Store
from sapo_swarm.coordinator.store.redis import RedisStore
from sapo_swarm.coordinator.store.sqlite import SQLiteStore

NOW = 1_800_000_000.0
LIMITS = PoolLimits(capacity=40, per_node=4, lifetime_s=100.0, members=50)
Build = Callable[[], Store]


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A real server on a free port. Without one: a failure under CI, else a skip with a sentence."""
    try:
        with local_redis() as url:
            yield url
    except NoRedis:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)


@pytest.fixture(params=["sqlite", "redis"])
def build(request: pytest.FixtureRequest, tmp_path: Path) -> Build:
    """Makes a store object over the same data each time."""
    if request.param == "sqlite":
        return lambda: SQLiteStore(tmp_path / "swarm.sqlite", LIMITS, random.Random(1))
    url, namespace = request.getfixturevalue("redis_url"), secrets.token_hex(4)
    return lambda: RedisStore(url, LIMITS, random.Random(1), namespace)


@pytest.fixture
async def store(build: Build) -> AsyncIterator[Store]:
    made = build()
    await made.open()
    yield made
    await made.close()


def entry(node: str, number: int, size: int = 20) -> PoolEntry:
    return PoolEntry(number.to_bytes(8, "big"), f"{number:032x}", node, b"%20d" % number + bytes(size))


def round_of(node: str, numbers: list[int], want: int = 0, at: float = 0.0, **changes: object) -> RoundExchange:
    fields: dict[str, object] = {
        "node": node,
        "nonce": secrets.token_hex(16),
        "round_id": secrets.token_hex(32),
        "entries": tuple(entry(node, number) for number in numbers),
        "want": want,
        "have": frozenset(),
        "now": NOW + at,
        "counts": {"t/bf": float(len(numbers))},
    }
    return RoundExchange(**(fields | changes))  # type: ignore[arg-type]


def drawn(result: ExchangeOutcome) -> list[int]:
    return sorted(int(blob[:20]) for blob in result.sample)


def member(node: str, invite: str = "", **changes: object) -> Member:
    fields: dict[str, object] = {"key": b"k" * 32, "name": node, "model": "m", "joined": NOW, "invite": invite}
    return Member(node=node, **(fields | changes))  # type: ignore[arg-type]


def invite(hash: str, **changes: object) -> InviteRecord:
    fields: dict[str, object] = {"label": "first", "created": NOW, "expires": 0.0, "max_uses": 0}
    return InviteRecord(hash=hash, **(fields | changes))  # type: ignore[arg-type]


SWARM = SwarmRecord(swarm="a" * 16, name="s", open=False, certificate=b"c", key=b"k", created=NOW)
