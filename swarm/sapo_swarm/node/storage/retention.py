"""Old records leave the journal in the background, so that a run of any length does not fill a disk."""

from __future__ import annotations

import asyncio
import contextlib
import time

from sapo_swarm.node.storage.journal import Journal, JournalError
from sapo_swarm.node.storage.journal_thinning import Thinning

EVERY = 64
"""Rounds between two looks: what goes together leaves whole pages free, which writes less than dropping it one by one."""


class Retention:
    """keep: newest rounds whose groups all stay; 0 = groups are never dropped. Rounds never wait: it works in small steps."""

    def __init__(self, journal: Journal, keep: int) -> None:
        self._thinning, self._keep = Thinning(journal), keep
        self._rounds = 0
        self._due = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def round_done(self, rounds_done: int) -> None:
        """So many rounds are behind the model. Returns at once."""
        self._rounds = rounds_done
        self._due -= 1
        if self._due <= 0 and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._work())

    @property
    def _before(self) -> int:
        return self._rounds - self._keep if self._keep else 0

    async def settled(self) -> None:
        """Returns when nothing is left to drop."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Finish the step in hand, and do a last one."""
        self._closed = True
        await self.settled()
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
            return await asyncio.to_thread(self._drop)
        return 0

    def _drop(self) -> int:
        gone = self._thinning.groups(self._before) if self._before > 0 else 0
        gone += self._thinning.rounds(self._rounds - 1)
        if not gone:
            self._due = EVERY
            gone = self._thinning.others()
        return gone
