"""The one worker thread in which all engine calls run, so that the event loop stays free and the engine single-threaded."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from queue import SimpleQueue
from typing import Any, ParamSpec, TypeVar

from sapo_backends.base import CancelToken, Engine, EngineInfo
from sapo_backends.common import hardware
from sapo_backends.errors import BackendError, OutOfMemory

P = ParamSpec("P")
T = TypeVar("T")


LONGEST_REST_S = 2.0
"""A thread that did something else between two steps rests no longer than this."""


HOLD_S = 2.0
"""A task that holds the thread lets others go first after this long, or after as long as it waited."""


_REFUSED = re.compile(r"out of memory|(can't|cannot|unable to) allocate|not enough memory", re.IGNORECASE)


@contextlib.contextmanager
def _one_word_for_it() -> Iterator[None]:
    try:
        yield
    except BackendError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or _REFUSED.search(str(error)):
            raise OutOfMemory(0, hardware.available_memory(), "") from error
        raise


class _Hold:
    """One task's hold on the thread: the thread runs that task's calls and waits for its next one until it is
    released."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self._pool = pool
        self._calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] | None = None
        self._until = 0.0

    async def submit(self, work: Callable[[], T]) -> Future[T]:
        """Queue a call once the thread has got here."""
        if self._calls is not None and time.monotonic() > self._until:
            self.let_go()
        if self._calls is None:
            submitted_at, arrived = time.monotonic(), Future[None]()
            self._calls = SimpleQueue()
            self._pool.submit(_stay, self._calls, arrived)
            await asyncio.wrap_future(arrived)
            now = time.monotonic()
            self._until = now + max(HOLD_S, now - submitted_at)
        future = Future[T]()
        self._calls.put((future, work))
        return future

    def let_go(self) -> None:
        """Release the thread to the calls that others are waiting for."""
        if self._calls is not None:
            self._calls.put(None)
            self._calls = None


def _stay(calls: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None], here: Future[None]) -> None:
    if here.set_running_or_notify_cancel():
        here.set_result(None)
    while (call := calls.get()) is not None:
        future, work = call
        try:
            future.set_result(work())
        except BaseException as error:  # for the caller
            future.set_exception(error)


_held: ContextVar[_Hold | None] = ContextVar("held", default=None)


class EngineThread:
    """Owns an engine and its thread."""

    def __init__(self) -> None:
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="engine")
        self.cancel = CancelToken()
        self._engine: Engine | None = None
        self._share = self._duty = 1.0
        self._rested = threading.local()
        self._returned = -hardware.RETURN_EVERY_S

    async def return_memory(self) -> None:
        """There is nothing to do for a while: give free memory, the device's too, back to the system, at most once a
        minute."""
        if (now := time.monotonic()) - self._returned >= hardware.RETURN_EVERY_S:
            self._returned = now
            await self.call(self._give_back)

    def _give_back(self) -> None:
        hardware.release_free_memory()  # first: Python's reference cycles may hold device memory
        if self._engine is not None:
            self._engine.return_memory()

    @property
    def engine(self) -> Engine:
        """The loaded engine. Raises RuntimeError while there is none."""
        if self._engine is None:
            raise RuntimeError("The engine is not loaded yet.")
        return self._engine

    @property
    def loaded(self) -> EngineInfo | None:
        """What is loaded, or None."""
        return None if self._engine is None else self._engine.info

    async def load(self, build: Callable[[], Engine]) -> Engine:
        """Build the engine in its thread. Raises whatever `build` raises."""
        self._engine = engine = await self.call(build)
        if self._share < 1.0:
            await self.call(engine.use_share, self._share)
        return engine

    async def call(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Run in the engine's thread. If the caller is cancelled, the engine call is cancelled and awaited too.

        Raises OutOfMemory when memory ran out, however the engine reported it.
        """

        def work() -> T:
            with _one_word_for_it():
                return function(*args, **kwargs)

        held = _held.get()
        future = asyncio.wrap_future(self._pool.submit(work) if held is None else await held.submit(work))
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            self.cancel.cancel()
            await asyncio.wait([future])
            raise

    @contextlib.asynccontextmanager
    async def hold(self) -> AsyncIterator[None]:
        """Many short calls of this task wait for the thread together, instead of each behind another task's long
        call."""
        held = _Hold(self._pool)
        token = _held.set(held)
        try:
            yield
        finally:
            _held.reset(token)
            held.let_go()

    def ease(self, share: float, duty: float) -> bool:
        """Use that share of threads and micro-batches from the next engine call on, and work that share of the time
        from the next decode step on. Returns True if the share changes while an engine works."""
        self._duty, before, self._share = duty, self._share, share
        if share == before or self._engine is None:
            return False
        self._pool.submit(self._engine.use_share, share)
        return True

    def rest(self) -> None:
        """Call in the engine's threads after a decode step or a micro-batch: rests in proportion to the work since
        the last call, to keep the duty; a cancel ends the rest."""
        now, since = time.monotonic(), getattr(self._rested, "since", None)
        if since is not None and self._duty < 1.0:
            self.cancel.wait(min((now - since) * (1.0 / self._duty - 1.0), LONGEST_REST_S))
        self._rested.since = time.monotonic()

    async def close(self) -> None:
        """Free the memory; returns once that is done."""
        self.cancel.cancel()
        if self._engine is not None:
            await self.call(self._engine.close)
            self._engine = None
        self._pool.shutdown(wait=True)
