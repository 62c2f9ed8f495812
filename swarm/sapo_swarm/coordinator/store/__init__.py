"""What a coordinator stores: one interface, SQLite by default, Redis or Valkey by URL."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sapo_swarm.coordinator.records import PoolLimits
from sapo_swarm.coordinator.store.base import Store, StoreFormat

if TYPE_CHECKING:
    from sapo_swarm.coordinator.settings import CoordinatorSettings


def open_store(settings: CoordinatorSettings) -> Store:
    """The store that the settings name, not opened yet. Raises StoreFormat for an address of another kind."""
    limits = PoolLimits(
        capacity=settings.pool_groups,
        capacity_bytes=settings.pool_bytes,
        per_node=settings.groups_per_node,
        lifetime_s=settings.group_life_s,
        members=settings.members,
        idle_s=settings.idle_days * 86_400.0,
    )
    scheme, _, rest = settings.store.partition(":")
    if scheme == "sqlite" and rest:
        from sapo_swarm.coordinator.store.sqlite import SQLiteStore

        return SQLiteStore(Path(rest), limits)
    if scheme in ("redis", "rediss", "valkey", "valkeys", "sentinel"):
        try:
            from sapo_swarm.coordinator.store.redis import RedisStore
        except ImportError as error:
            raise StoreFormat("The redis package is missing. Fix: pip install 'redis[hiredis]'") from error
        return RedisStore(settings.store.replace("valkey", "redis", 1), limits)
    raise StoreFormat(
        f"{settings.store!r} is no store. Use sqlite:PATH, redis://host:port/db, valkey://host:port/db or "
        "sentinel://host:port,host:port/NAME/db."
    )
