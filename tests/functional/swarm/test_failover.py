"""The primary of the store dies under load: Sentinel puts a replica in its place, and nothing acknowledged is gone."""

from __future__ import annotations

import asyncio
import gc
import os
import secrets
import signal
from collections.abc import Iterator

import pytest
from tests.benchmarks.failover import primary_dies
from tests.support.local_redis import MISSING, NoRedis
from tests.support.redis_sentinel import RedisWithFailover
from tests.support.stores import round_of

from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store import open_store
from sapo_swarm.coordinator.store.base import StoreUnavailable
from sapo_swarm.coordinator.store.redis import RedisStore
from sapo_swarm.coordinator.store.redis_registry import CONNECTIONS

ENOUGH = 300
WRITERS = 8


# redis-py leaves connections that broke to the garbage collector
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@pytest.fixture
def servers() -> Iterator[RedisWithFailover]:
    try:
        made = RedisWithFailover()
    except NoRedis:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    yield made
    made.close()
    gc.collect()


async def test_a_killed_primary_loses_nothing_that_was_acknowledged(servers: RedisWithFailover) -> None:
    """Eight writers; kill -9 in the middle; they try again, as nodes do, until a new primary takes their groups."""
    found = await primary_dies(servers)
    assert found["lost"] == 0, "a group was acknowledged and is gone"
    assert found["said"], "the coordinator said that it cannot store for a while"
    assert all("\n" not in sentence for sentence in found["said"])


async def test_a_group_that_no_replica_has_is_not_acknowledged(servers: RedisWithFailover) -> None:
    """The replicas hang: a primary that died now would take the group with it. The same round is taken when they are back."""
    store = RedisStore(servers.url, namespace=secrets.token_hex(4))
    await store.open()
    round_id = secrets.token_hex(32)
    servers.hang_replicas(signal.SIGSTOP)
    with pytest.raises(StoreUnavailable, match="No replica has the write"):
        await store.exchange(round_of("one", [1], round_id=round_id))
    servers.hang_replicas(signal.SIGCONT)
    assert (await store.exchange(round_of("one", [1], round_id=round_id))).stored == (True,)
    await store.close()


async def test_more_calls_than_connections_wait_for_one(servers: RedisWithFailover) -> None:
    """As with redis://; a coordinator serves up to 512 requests at once."""
    store = RedisStore(servers.url, namespace=secrets.token_hex(4))
    await store.open()
    found = await asyncio.gather(*(store.member(f"n{number}") for number in range(4 * CONNECTIONS)))
    assert found == [None] * len(found)
    await store.close()


def test_the_address_of_sentinels_is_a_store() -> None:
    store = open_store(CoordinatorSettings(store="sentinel://10.0.0.1:26379,10.0.0.2/swarm/0"))
    assert isinstance(store, RedisStore)
    assert store.fails_over
