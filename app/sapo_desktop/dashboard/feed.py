"""Feeds: where events come from. `ControlFeed` follows a node, `ReplayFeed` a recorded file of events."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path

import msgspec

from sapo_desktop.dashboard.messages import Link
from sapo_desktop.errors import CommandFailed
from sapo_swarm.events import Event
from sapo_swarm.node.control.api import ControlClient, ControlError, NodeNotAnswering, NodeNotRunning

_HISTORY = ("run_started", "state", "round", "evaluation", "swarm", "external", "log")
_GROUPS = 1600
_BACKOFF_S = (0.25, 0.5, 1.0, 2.0)
"""Asking a local socket costs next to nothing, and a node that was just started is to be found at once."""


_SILENCE_S = 8.0
"""A node tells of its machine once a second: one that says nothing for so long is not answering."""


class ControlFeed:
    """The events of the node behind a control socket; reconnects with back-off and says so in one line."""

    controls = True

    def __init__(
        self, socket: Path, now: Callable[[], float] = time.time, last_words: Callable[[], str] = lambda: ""
    ) -> None:
        """last_words: why the node that this dashboard started is gone, "" when that is not known."""
        self.socket, self.last_words = socket, last_words
        self.now: Callable[[], float] = now
        self._seq = 0
        self._run = ""

    def describe(self) -> str:
        """What is watched, for the help screen."""
        return f"the node behind {self.socket}"

    async def events(self) -> AsyncIterator[Event | Link]:
        """History, then live events; a Link when the node comes or goes. Never ends by itself."""
        failures = 0
        while True:
            silent = False
            try:
                async with ControlClient(self.socket) as node:
                    async for event in self._follow(node):
                        failures = -1
                        yield event
                sentence = "The node went away"
            except NodeNotAnswering as error:
                sentence = str(error)
            except NodeNotRunning:
                silent = bool(self._run)
                sentence = "The node went away" if failures < 0 else "Waiting for the node"
            except ControlError as error:
                sentence = f"The node refuses: {error}"
            except msgspec.MsgspecError:
                sentence = "The node speaks another version: restart it, or update sapo-desktop"
            failures = max(failures, 0) + 1
            words = await asyncio.to_thread(self.last_words)
            if words:
                sentence = f"The node ended: {words}"
            wait = _BACKOFF_S[min(failures, len(_BACKOFF_S)) - 1]
            late = f", trying again every {wait:g} s" if wait >= 1 else ""
            ended = silent and failures >= len(_BACKOFF_S)
            if ended:
                sentence, late = sentence if words else "The node is gone", ""
            yield Link(False, sentence + late, self.now(), ended)
            await asyncio.sleep(wait)

    async def _follow(self, node: ControlClient) -> AsyncIterator[Event | Link]:
        """That it answers, the history without groups, the newest groups, then everything live."""
        run = (await node.status()).run_id
        yield Link(True, "Connected", self.now())
        if run != self._run:
            self._run, self._seq = run, 0
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
        except (NodeNotRunning, ControlError) as error:
            raise CommandFailed(str(error)) from error


class ReplayFeed:
    """A recorded stream of events, told again `speed` times as fast as it happened."""

    controls = False

    def __init__(self, recording: Sequence[Event], speed: float = 1.0, skip_s: float = 0.0) -> None:
        """speed 0: everything at once. skip_s: the first seconds are told at once."""
        self.recording, self.speed, self.skip_s = recording, speed, skip_s
        self._first = recording[0].time if recording else 0.0
        self._last = recording[-1].time if recording else 0.0
        self._started: float | None = None

    def describe(self) -> str:
        """What is watched, for the help screen."""
        return f"a recording of {len(self.recording):,} events"

    def now(self) -> float:
        """The recording's clock: stands before the start and after the end."""
        if self._started is None:
            return self._first
        if self.speed <= 0:
            return self._last
        return min(self._first + self.skip_s + (time.monotonic() - self._started) * self.speed, self._last)

    async def events(self) -> AsyncIterator[Event | Link]:
        """The recording at its own pace; ends with it."""
        self._started = time.monotonic()
        for event in self.recording:
            ahead = event.time - self.now()
            if self.speed > 0 and ahead > 0:
                await asyncio.sleep(ahead / self.speed)
            yield event

    async def command(self, verb: str, **body: float) -> None:  # noqa: ARG002 - as every feed
        """A recording takes none: raises CommandFailed."""
        raise CommandFailed("This is a recording: there is no node to tell. Start one: sapo-desktop")
