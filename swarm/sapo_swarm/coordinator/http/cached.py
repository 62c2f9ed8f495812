"""A value that requests share until it is too old."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Cached(Generic[T]):
    """What `make` gives, at most ttl_s seconds old by `clock`, which may be set back. Who asks while it is made waits for it."""

    def __init__(
        self, make: Callable[[], Awaitable[T]], ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ttl_s = ttl_s
        self._make, self._clock = make, clock
        self._known: tuple[float, T] | None = None
        self._forgotten = 0  # times
        self._lock = asyncio.Lock()

    async def __call__(self) -> T:
        """Raises what `make` raises."""
        async with self._lock:
            if self._known is None or not 0 <= self._clock() - self._known[0] < self.ttl_s:
                forgotten = self._forgotten
                made = await self._make()
                if forgotten != self._forgotten:
                    return made  # it may lack what was to be forgotten
                self._known = self._clock(), made  # not the time before: those who waited must not make it again
            return self._known[1]

    def forget(self) -> None:
        """It is made anew when somebody asks."""
        self._known = None
        self._forgotten += 1
