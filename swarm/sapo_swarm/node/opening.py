"""A model is opened: the engine is loaded, the base is asked what it was never asked, the trained weights come back.

How far that is, is told as it goes on; a stop ends it at the next step, and leaves the disk as it was.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

import msgspec

from sapo_backends.base import Cancelled, Engine, EngineInfo, Progress
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, LogLine
from sapo_swarm.node.clock import steady
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.evaluation.evaluate import Examiner, Unanswered
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.model_store import ModelStore
from sapo_swarm.node.round.context import Activity
from sapo_swarm.node.setup import Build, Fetch, NodeSetup, announcement
from sapo_swarm.node.storage.journal import Journal
from sapo_swarm.types import TaskRef

STEP_S = 0.1
"""Between two words about how far the opening is."""


def shown_base(model: str) -> str:
    """A base in a sentence: a file or folder by its own name, without the way to it."""
    return os.path.basename(model.rstrip("/\\")) or model if os.path.isabs(model) else model


@dataclass
class Opening:
    """journal: of the model that is opened."""

    host: EngineHost
    journal: Journal
    bus: Bus
    activity: Activity
    run_control: RunControl

    async def fetch(self, model: str, fetch: Fetch) -> None:
        """The model's files are on this disk afterwards. A pause or a stop interrupts a download at once; what arrived is kept.

        Raises Cancelled after a stop, and what fetching raises.
        """
        while True:
            await self.run_control.say("starting", f"Loading {shown_base(model)}")
            told = self.progress("Starting: ")

            def interrupted(fraction: float, phrase: str, told: Progress = told) -> None:
                self.host.cancel.raise_if_cancelled()
                told(fraction, phrase)

            try:
                return await self.host.call(fetch, interrupted)
            except Cancelled:
                await self._wait(0)

    async def load(self, model: str, build: Build) -> Engine:
        """The engine with the base in it; call after fetch(). Raises Cancelled after a stop, and what building raises."""
        told = self.progress(f"Loading {shown_base(model)}: ")
        return await self.host.load(lambda: build(told))

    async def ask_base(self, examiner: Examiner, rounds: int) -> None:
        """Ask the base the held-out questions that it has not answered, where later answers are compared with it. Call after
        load(), before weights are restored. rounds: behind the model; one without is the base itself.

        A hold only delays it. Where it fails, or the person pauses, a line says so, and the model is opened all the same.
        Raises Cancelled after a stop.
        """
        if not rounds or not await self._compared(examiner):
            return
        refs = await examiner.base_missing()
        if not refs:
            return
        doing = "Asking the base the held-out questions that are new to it"
        try:
            while not await self._asked(examiner, refs, doing):
                if self.run_control.requests.paused_until > steady():
                    return await self._left_out(len(refs), "it was interrupted")
                await self._wait(rounds)
                await self.run_control.say("starting", doing)
        except (Unanswered, OSError) as error:
            await self._left_out(len(refs), f"{error}")

    async def _asked(self, examiner: Examiner, refs: list[TaskRef], doing: str) -> bool:
        """Whether the base was asked to the end. Raises Unanswered, OSError; Cancelled after a stop."""
        told = self.progress(f"{doing}: ")
        try:
            await examiner.ask_base(refs, lambda part: told(part, f"{round(part * len(refs))} of {len(refs)}"))
        except Cancelled:
            self.host.cancel.reset()
            self._go_on()
            return False
        return True

    async def _wait(self, rounds: int) -> None:
        """Until work may go on. Raises Cancelled after a stop."""
        while not self.run_control.requests.stop and not await self.run_control.may_work(rounds):
            continue
        self._go_on()

    async def _compared(self, examiner: Examiner) -> bool:
        """Evaluations are made regularly, or the newest one lacked answers of the base."""
        if examiner.regular:
            return True
        newest = await asyncio.to_thread(self.journal.newest, "evaluation")
        return isinstance(newest, Evaluated) and newest.base_missing > 0

    async def _left_out(self, count: int, why: str) -> None:
        text = (
            f"The base was not asked {count} held-out questions that are new to it ({why}). Without its answers there is no "
            "difference to the base; it is asked again the next time that the node starts."
        )
        await self.bus.publish(LogLine(level="warning", text=text))

    async def announce(
        self, setup: NodeSetup, config: RunConfig, info: EngineInfo, store: ModelStore, examples_rounds: int
    ) -> None:
        """Tell that the model is open, and of events in its journal that cannot be read. Raises JournalError."""
        about = setup.run_id, setup.mode, config, info, store.rounds_done, examples_rounds
        started = await asyncio.to_thread(announcement, *about)
        known = {"name": setup.name, "base": setup.base, "changed": setup.changed, "trial": setup.trial}
        known |= {"weights": store.weights, "solved": tuple(sorted(store.solved))}
        await self.bus.publish(msgspec.structs.replace(started, **known))
        await store.tell()
        await self.bus.publish(*[LogLine(level="info", text=said) for said in setup.notes])
        if count := len(self.journal.unreadable):
            said = f"{count} events of the journal cannot be read and are passed over: sapo-desktop runs check --repair"
            await self.bus.publish(LogLine(level="warning", text=said))

    def progress(self, doing: str) -> Callable[[float, str], None]:
        """Takes fractions and phrases from any thread into the sentence and to those who watch. It raises Cancelled after a
        stop: what calls it ends there."""
        loop, last = asyncio.get_running_loop(), -STEP_S
        first = doing.removesuffix(": ") or "Opening the model"
        self.bus.stream(self.activity.begin("open", self.activity.round, first))

        def show(fraction: float, phrase: str) -> None:
            if self.activity.phase == "open":
                self.bus.stream(self.activity.progress(fraction, f"{doing}{phrase}"))

        def told(fraction: float, phrase: str) -> None:
            nonlocal last
            self._go_on()
            if loop.time() - last >= STEP_S:
                last = loop.time()
                loop.call_soon_threadsafe(show, fraction, phrase)

        return told

    def _go_on(self) -> None:
        if self.run_control.requests.stop:
            raise Cancelled("The opening was stopped.")
