"""Old groups leave the journal in the background, so that a run of thousands of rounds does not fill a disk."""

from __future__ import annotations

import asyncio
import contextlib
import time

from sapo_swarm.node.storage.journal import Journal, JournalError


class Retention:
    """keep: rounds whose groups stay (see Journal.prune); 0 = all. Rounds are never kept waiting: it works in small steps."""

    def __init__(self, journal: Journal, keep: int) -> None:
        self._journal, self._keep = journal, keep
        self._before = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def round_done(self, rounds_done: int) -> None:
        """So many rounds are behind the run. Returns at once."""
        self._before = rounds_done - self._keep if self._keep else 0
        if self._before > 0 and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._work())

    async def settled(self) -> None:
        """Returns when nothing is left to drop."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Finish the step in hand, and do a last one."""
        self._closed = True
        await self.settled()
        if self._before > 0:
            await self._step()

    async def _work(self) -> None:
        """As long as there is something to drop; half of the time at most."""
        while not self._closed:
            began = time.monotonic()
            if not await self._step():
                return
            await asyncio.sleep(time.monotonic() - began)

    async def _step(self) -> int:
        with contextlib.suppress(JournalError):  # a full disk is told where something is lost by it
            return await asyncio.to_thread(self._journal.prune, self._before)
        return 0
