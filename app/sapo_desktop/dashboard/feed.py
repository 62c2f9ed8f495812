"""The feed of a running node: events from its control socket. For recordings see replay."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import get_args

from sapo_desktop.dashboard.history.groups import NEWEST, GroupSource, JournalGroups
from sapo_desktop.dashboard.state import NodeLink, ReplayRewound
from sapo_desktop.errors import CommandFailed
from sapo_swarm.events import EPHEMERAL, Event, GroupRecorded
from sapo_swarm.node.clock import steady_seconds
from sapo_swarm.node.control_api import ControlClient, ControlError, NodeError, NodeNotAnswering, NodeNotRunning

_HISTORY = tuple(str(kind.__struct_config__.tag) for kind in get_args(Event) if kind not in (GroupRecorded, *EPHEMERAL))
"""Everything that is stored, but groups: a dashboard that is opened again shows what the one before it did."""
_GROUPS = 1600
_BACKOFF_S = (0.25, 0.5, 1.0, 2.0)
"""Seconds. Trying a local socket costs next to nothing, and a node that has just started should be found at once."""


_SILENCE_S = 8.0
"""A node reports its machine's vitals once a second: one that is silent for this long is not answering."""


class ControlFeed:
    """The events of the node behind a control socket; reconnects with back-off and reports that in one line."""

    controls = True

    def __init__(
        self,
        socket: Path,
        last_words: Callable[[int, float], str] = lambda *_: "",
        starting: Callable[[], int | None] = lambda: None,
        now: Callable[[], float] = time.time,
    ) -> None:
        """last_words: (process id, since) -> why that node is gone, from what it wrote since then; "" if it is not gone or
        left no reason. starting: the process id of a node that does not answer yet; after a change of settings, swarm or
        model it is a different process."""
        self.socket, self.last_words, self.starting = socket, last_words, starting
        self.now: Callable[[], float] = now
        self.refused = ""
        """Why the node did not start when it was last asked to; "" since it answered."""
        self._seq = 0
        self._run, self._pid, self._since = "", 0, 0.0
        self._groups: JournalGroups | None = None

    def groups(self) -> GroupSource | None:
        """The journal of the node's model, once the node has reported its path."""
        return self._groups

    def upto(self) -> int:
        """Above all group numbers: every group is shown."""
        return NEWEST

    def describe(self) -> str:
        """One phrase on what is being watched, for the help screen."""
        return f"the node behind {self.socket}"

    async def events(self) -> AsyncIterator[Event | NodeLink | ReplayRewound]:
        """History, then live events; a NodeLink when the node comes or goes. Never ends by itself."""
        failures = 0
        while True:
            silent = halted = False
            try:
                async with ControlClient(self.socket) as node:
                    async for event in self._follow(node):
                        failures = -1
                        yield event
                sentence = "The node went away"
            except NodeNotAnswering as error:
                opening = not self._pid and not error.halted
                sentence, halted = "Waiting for the node, which is busy" if opening else str(error), True
            except NodeNotRunning:
                silent = bool(self._run)
                sentence = "The node went away" if failures < 0 else "Waiting for the node"
            except ControlError as error:
                sentence = f"The node refuses: {error}"
            except NodeError as error:
                sentence = str(error)
            failures = max(failures, 0) + 1
            since = time.time() - (steady_seconds() - self._since)  # by the current clock: it may have been set
            words = await asyncio.to_thread(self.last_words, self._pid, since) if self._pid else ""
            wait = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]
            refused = "" if halted else self.refused
            ended = bool(refused) or (silent and failures >= len(_BACKOFF_S))
            if refused:
                sentence = f"The node did not start: {refused}"
            else:
                sentence = f"The node ended: {words}" if words else "The node is gone" if ended else sentence
            late = f", trying again every {wait:g} s" if wait >= 1 and not ended else ""
            another = await asyncio.to_thread(self.starting) if self._pid and not halted else None
            coming = another is not None and another != self._pid
            if coming:
                sentence, late, ended = "The node is starting again", "", False
            yield NodeLink(False, sentence + late, self.now(), ended, coming, ended and bool(refused))
            await asyncio.sleep(wait)

    async def _follow(self, node: ControlClient) -> AsyncIterator[Event | NodeLink | ReplayRewound]:
        """Yields the connection, the history without groups, the newest groups, then everything live."""
        status = await node.status()
        self._pid, self._since = status.pid, steady_seconds()
        run, journal = status.run_id, Path(status.folder) / "journal.db"
        if self._groups is None or self._groups.path != journal.absolute():
            self._groups = JournalGroups(journal)
        if run != self._run:
            self._run, self._seq = run, 0
        if self._seq == 0:  # events of another run, or of this history before it broke off, may have been sent
            yield ReplayRewound()
        self.refused = ""
        yield NodeLink(True, "Connected", self.now())
        if self._seq == 0:
            last = 0
            async for event in node.events(kinds=_HISTORY, follow=False):
                last = max(last, event.seq)
                yield event
            async for event in node.events(kinds=("group",), tail=_GROUPS, follow=False):
                if event.seq <= last:
                    yield event
            self._seq = last
        async for event in node.events(after=self._seq, follow=True, silence_s=_SILENCE_S):
            self._seq = max(self._seq, event.seq)
            yield event

    async def command(self, verb: str, **body: float) -> None:
        """Post a verb of the control API. Raises CommandFailed."""
        try:
            async with ControlClient(self.socket) as node:
                await node.post(verb, **body)
        except NodeError as error:
            raise CommandFailed(str(error)) from error
