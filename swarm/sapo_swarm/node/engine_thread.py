"""The one worker thread in which all engine calls run, so that the event loop stays free and the engine single-threaded."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from sapo_backends.base import CancelToken, Engine, EngineInfo

P = ParamSpec("P")
T = TypeVar("T")


class EngineHost:
    """Owns an engine and its thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self.cancel = CancelToken()
        self._engine: Engine | None = None

    @property
    def engine(self) -> Engine:
        """The loaded engine. Raises RuntimeError while there is none."""
        if self._engine is None:
            raise RuntimeError("The engine is not loaded yet.")
        return self._engine

    @property
    def loaded(self) -> EngineInfo | None:
        """What is loaded, or None while nothing is."""
        return None if self._engine is None else self._engine.info

    async def load(self, build: Callable[[], Engine]) -> Engine:
        """Build the engine in its thread. Raises what building raises."""
        self._engine = await self.call(build)
        return self._engine

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the engine's thread. If the caller is cancelled, the engine call is cancelled and awaited too."""
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, lambda: function(*args, **kwargs))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.cancel.cancel()
            await asyncio.wait([future])
            raise

    async def close(self) -> None:
        """Give the memory back; returns once it is."""
        self.cancel.cancel()
        if self._engine is not None:
            await self.call(self._engine.close)
            self._engine = None
        self._pool.shutdown(wait=True)
