"""From the node to everybody who watches: stores what must last, hands the rest on, never waits for a slow reader."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager

import msgspec

from sapo_swarm.events import EPHEMERAL, Event
from sapo_swarm.node.storage.journal import Journal

QUEUE_LIMIT = 4096
"""Events a subscriber may lag behind; then it is cut off and may come back with after=SEQ."""


class Bus:
    """Publishes events to the journal and to subscribers, in one order."""

    def __init__(self, journal: Journal, clock: Callable[[], float] = time.time) -> None:
        self._journal = journal
        self._clock = clock
        self._order = asyncio.Lock()
        self._subscribers: set[asyncio.Queue[Event | None]] = set()

    async def publish(self, *events: Event) -> None:
        """Store (one transaction) and hand on. Raises JournalError when the disk refuses; then nobody saw them."""
        stamped = [msgspec.structs.replace(e, time=e.time or self._clock()) for e in events]
        async with self._order:
            stored = await asyncio.to_thread(self._journal.append, stamped)
            self._hand_on(stored)

    def stream(self, event: Event) -> None:
        """Hand an event on, now, without storing it: an ephemeral one, or what the disk refused. Call from the event loop."""
        self._hand_on([msgspec.structs.replace(event, time=self._clock())])

    @asynccontextmanager
    async def subscribe(
        self, after: int, kinds: Sequence[str] = (), tail: int = 0
    ) -> AsyncIterator[tuple[list[Event], asyncio.Queue[Event | None]]]:
        """The stored events asked for and a queue of everything after them, with no gap and no repetition.

        None in the queue: the bus closed, or this subscriber lagged too far behind.
        """
        queue: asyncio.Queue[Event | None] = asyncio.Queue(QUEUE_LIMIT + 1)
        async with self._order:
            past = await asyncio.to_thread(self._journal.read, after, kinds, tail)
            self._subscribers.add(queue)
        try:
            yield past, queue
        finally:
            self._subscribers.discard(queue)

    def close(self) -> None:
        """End every subscription."""
        for queue in list(self._subscribers):
            self._cut_off(queue)

    def _hand_on(self, events: Iterable[Event]) -> None:
        for event in events:
            for queue in list(self._subscribers):
                if queue.qsize() < QUEUE_LIMIT:
                    queue.put_nowait(event)
                elif not isinstance(event, EPHEMERAL):
                    self._cut_off(queue)

    def _cut_off(self, queue: asyncio.Queue[Event | None]) -> None:
        self._subscribers.discard(queue)
        if queue.full():
            queue.get_nowait()
        queue.put_nowait(None)
