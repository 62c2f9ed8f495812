"""Who drew whose groups, until the server knows: it goes along with the next exchange, or alone soon after."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from sapo_swarm.coordinator.store.base import StoreUnavailable
from sapo_swarm.coordinator.store.redis_link import reaching

CREDITED_S = 1.0
"""After which a sample is credited where no other call came."""


class Credits:
    """write: tells the server what `taken()` gave, for that minute. What a killed coordinator has not told is lost."""

    def __init__(self, write: Callable[[int, list[Any]], Awaitable[object]]) -> None:
        self._write = write
        self._minute = 0
        self._drawn: Counter[tuple[str, str]] = Counter()
        self._task: asyncio.Task[None] | None = None

    def add(self, drawer: str, sources: Iterable[str], minute: int) -> None:
        """A sample was given out."""
        self._drawn.update((drawer, source) for source in sources)
        self._minute = minute
        if self._drawn and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._soon())

    def taken(self) -> list[Any]:
        """Drawer, source and times of each pair; counts as told from now on."""
        drawn, self._drawn = self._drawn, Counter()
        return [part for (drawer, source), times in drawn.items() for part in (drawer, source, times)]

    async def tell(self) -> None:
        """Now. Raises what the server raises."""
        if self._drawn:
            await self._write(self._minute, self.taken())

    async def _soon(self, wait_s: float = CREDITED_S) -> None:
        """What no exchange took along by then. A store that is away loses it."""
        await asyncio.sleep(wait_s)
        with contextlib.suppress(StoreUnavailable):
            async with reaching():
                await self.tell()

    async def close(self) -> None:
        """Tell what is left."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
            self._task = None
        await self._soon(0.0)
