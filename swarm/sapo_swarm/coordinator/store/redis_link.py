"""What every call of the Redis store needs: one error for whatever goes wrong on the way, and records as msgpack."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import msgspec
from redis.exceptions import RedisError

from sapo_swarm.coordinator.store.base import StoreFormat, StoreUnavailable
from sapo_swarm.types import UNREADABLE


@contextlib.asynccontextmanager
async def reaching() -> AsyncIterator[None]:
    """Whatever goes wrong on the way is StoreUnavailable."""
    try:
        yield
    except (TimeoutError, RedisError, OSError) as error:
        raise StoreUnavailable(f"Redis does not answer: {type(error).__name__}: {error}") from error


async def wait(reply: Any) -> Any:
    """redis-py types its asynchronous commands as `Awaitable | value`."""
    return await reply


def pack(record: msgspec.Struct) -> bytes:
    """The record as msgpack."""
    return msgspec.msgpack.encode(record)


def read(raw: bytes | str, kind: Any) -> Any:
    """The record in msgpack bytes. Raises StoreFormat."""
    try:
        return msgspec.msgpack.decode(raw.encode() if isinstance(raw, str) else raw, type=kind)
    except UNREADABLE as error:
        raise StoreFormat(f"The store holds a {kind.__name__} that does not read: {error}.") from error
