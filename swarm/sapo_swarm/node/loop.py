"""The node: opens or resumes a run and runs rounds until it is told otherwise.

Three tasks on one event loop: the rounds, a ticker that reads the machine, and (outside) the control server. The
network, the disk and a bad rollout never end a run; they become one sentence and a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from sapo_backends.base import Cancelled, Engine, EngineInfo
from sapo_swarm.algorithms.base import local_groups
from sapo_swarm.events import Event, LogLine
from sapo_swarm.node.control.api import NodeStatus
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.evaluation.evaluate import Examiner
from sapo_swarm.node.evaluation.guard import Guard
from sapo_swarm.node.evaluation.held_out_exclusion import held_out_exclusion
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor import commands, pace
from sapo_swarm.node.governor.pace import Pace
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.model_store import ModelStore
from sapo_swarm.node.round import phases
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.node.round.memory import recalled
from sapo_swarm.node.round.progress import Activity
from sapo_swarm.node.round.record import record, stamp
from sapo_swarm.node.setup import NodeSetup, announcement, round_context
from sapo_swarm.node.storage.journal import Journal, JournalError
from sapo_swarm.node.storage.retention import Retention
from sapo_swarm.node.storage.versions import versions
from sapo_swarm.scoring.scorer import Scorer


class Node:
    """One running trainer. `await run()` returns when the rounds are done or a stop was asked for."""

    def __init__(self, setup: NodeSetup) -> None:
        self.setup = setup
        self.config = setup.config
        setup.folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(setup.folder / "journal.db")
        self.bus = Bus(self.journal)
        self.activity = Activity()
        self.host = EngineHost()
        self.run_control = RunControl(self.bus, self.activity, self.host.cancel)
        self.pace = Pace()
        self.store = ModelStore(setup.folder, self.config, self.host, self.journal, self.bus)
        self.retention = Retention(self.journal, self.config.keep_groups)
        self.guard: Guard | None = None
        self._opened = asyncio.Event()
        self._started = time.time()
        self._evaluate_next = 0

    @property
    def rounds_done(self) -> int:
        """Rounds behind the weights."""
        return self.store.rounds_done

    # -- what the control server and the CLI call ---------------------------------------------------------------

    def status(self) -> NodeStatus:
        """What the node does now, and what was asked of it and is pending."""
        now, config = self.activity, self.config
        loaded = self.host.loaded
        return NodeStatus(
            state=now.state,
            sentence=now.sentence + commands.pending(self.run_control.requests, now.state),
            reason=now.reason,
            since=now.since,
            pid=os.getpid(),
            run_id=self.setup.run_id,
            folder=str(self.setup.folder),
            mode=self.setup.mode,
            model=loaded.model if loaded else config.model,
            backend=loaded.backend if loaded else config.trainer,
            device=loaded.device if loaded else config.device,
            round=self.rounds_done,
            rounds_planned=config.rounds,
            phase=now.phase if now.state in ("running", "finishing") else None,
            phase_fraction=now.fraction,
            eta_s=now.eta_s,
            name=self.setup.name,
            disk=self.store.disk,
            disk_budget=self.store.checkpoints.budget,
            seq=self.journal.last_seq,
            started=self._started,
            version=self.setup.version,
            external=self.guard.watch.sentence if self.guard else "",
        )

    def command(self, verb: str, for_s: float = 0.0) -> None:
        """Take a wish of the person. Raises commands.BadCommand. Pauses and stops interrupt the engine at once."""
        self.run_control.request(commands.command(self.run_control.requests, verb, for_s, time.monotonic()))

    def request_evaluation(self, items: int) -> None:
        """A held-out evaluation after this round. items: a task, 0 = as many as the settings say."""
        self._evaluate_next = items or self.config.eval_items
        self.run_control.wake()

    async def switch_external(self, taking: bool) -> None:
        """Take groups of others into training from now on, or none; while the model loads, once it is there.

        Raises commands.BadCommand, JournalError.
        """
        if self.setup.mode == "silo":
            raise commands.BadCommand("This node is in no swarm: there are no groups of others to take.")
        await self._opened.wait()
        await self._guarded.switch(taking, self.rounds_done)

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Raises BackendError or CheckpointCorrupt when the run cannot even start."""
        ticker = asyncio.create_task(
            pace.tick(self.setup.folder, self.setup.limits, self.run_control, self.pace, self.bus)
        )
        scorer = Scorer()
        try:
            async with scorer:
                context, examiner = await self._open(scorer)
                await self._run_rounds(context, examiner)
            await self.run_control.say("stopped", f"Stopped after round {self.rounds_done}.")
        except BaseException as error:
            with contextlib.suppress(JournalError):
                await self.run_control.say("failed", f"{error}" or type(error).__name__)
            raise
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, self.run_control.settled(), return_exceptions=True)
            await self.host.close()
            await self.setup.exchange.close()
            await self.retention.close()
            self.store.close()
            self.bus.close()
            self.journal.close()

    async def _open(self, scorer: Scorer) -> tuple[phases.RoundContext, Examiner]:
        """Load the engine, restore the newest intact checkpoint, announce the run."""
        excluding = held_out_exclusion(scorer, self.config.tasks, self.config.preset)
        engine, excluded = await asyncio.gather(self._load(), excluding)
        setup, info = self.setup, engine.info
        self.config = config = msgspec.structs.replace(
            self.config, local_groups=local_groups(self.config, info.parameters)
        )
        setup.exchange.attach(self.host, scorer, excluded)
        await self.store.open(self._telling("Opening the model"))
        examiner = Examiner(config, self.host, scorer, setup.folder / "evaluations")
        context = round_context(setup, config, self.host, scorer, self.activity, self.bus.stream, excluded)
        memory = await asyncio.to_thread(recalled, config, self.journal, self.store.rounds_done)
        context = replace(context, memory=memory)
        self.guard = Guard(
            config=config,
            host=self.host,
            checkpoints=self.store.checkpoints,
            examiner=examiner,
            exchange=setup.exchange,
            journal=self.journal,
            bus=self.bus,
            save=self.store.for_guard,
            in_swarm=setup.mode == "swarm",
        )
        await self.guard.open(self.store.rollbacks)
        self._opened.set()
        await self._announce(info)
        return context, examiner

    async def _announce(self, info: EngineInfo) -> None:
        """Tell that the model is open, and of events in its journal that cannot be read."""
        found = await asyncio.to_thread(versions, info.backend)
        store, setup = self.store, self.setup
        started = announcement(setup.run_id, setup.mode, self.config, info, store.rounds_done, found)
        known = {"name": setup.name, "base": setup.base, "changed": setup.changed, "weights": store.weights}
        await self.bus.publish(msgspec.structs.replace(started, **known, solved=tuple(sorted(store.solved))))
        await store.tell()
        if count := len(self.journal.unreadable):
            text = f"{count} events of the journal cannot be read and are passed over: sapo-desktop runs check --repair"
            await self.bus.publish(LogLine(level="warning", text=text))

    async def _load(self) -> Engine:
        model = self.config.model
        await self.run_control.say("starting", f"Loading {model}")

        told = self._telling(f"Loading {model}")
        return await self.host.load(lambda: self.setup.build(lambda _fraction, phrase: told(phrase)))

    def _telling(self, doing: str) -> Callable[[str], None]:
        """Takes phrases about the opening from another thread into the sentence."""
        loop = asyncio.get_running_loop()

        def show(phrase: str) -> None:
            self.activity.sentence = f"{doing}: {phrase}"

        def told(phrase: str) -> None:
            loop.call_soon_threadsafe(show, phrase)

        return told

    async def _run_rounds(self, context: phases.RoundContext, examiner: Examiner) -> None:
        config, run_control = self.config, self.run_control
        work = await self.store.in_flight(context)
        if config.eval_every and not await asyncio.to_thread(examiner.has_base):
            self._evaluate_next = self._evaluate_next or config.eval_items
        while not run_control.requests.stop:
            if 0 < config.rounds <= self.rounds_done and not self._evaluate_next:
                break
            try:
                if await self._may_work(context, work):
                    work = await self._work(context, examiner, work)
                    if self.store.due():
                        await self._save("time")
            except Cancelled:
                self.host.cancel.reset()
            except Exception as error:  # a bad round is a sentence and a pause, never the end of the run
                await run_control.failed(error)
        await self._leave(context, work)

    async def _work(self, context: phases.RoundContext, examiner: Examiner, work: RoundWork) -> RoundWork:
        """An evaluation, a closer look, or a round; the round that is next to work on."""
        if self._evaluate_next:
            await self._examine(examiner, self._evaluate_next)
            return work
        if self._guarded.busy:
            await self._attend()
            return work
        await self._round(context, work)
        if self.config.eval_every and self.rounds_done % self.config.eval_every == 0:
            self._evaluate_next = self.config.eval_items
        self.run_control.succeeded()
        return RoundWork(self.rounds_done)

    async def _may_work(self, context: phases.RoundContext, work: RoundWork) -> bool:
        """True when nothing is in the way; at the beginning of a pause, what was done is put on the disk."""
        paused_before = self.activity.state == "paused"
        if await self.run_control.may_work(self.rounds_done):
            return True
        self.pace.paused()
        if not paused_before and self.activity.state == "paused":
            await asyncio.to_thread(self.store.keep_in_flight, context, work)
            if self.store.unsaved and self.activity.reason == "person":
                await self._save("pause")
        return False

    async def _leave(self, context: phases.RoundContext, work: RoundWork) -> None:
        """The end of a run: the round in flight is kept, the weights are saved; finished rounds are on the disk anyway."""
        try:
            await asyncio.to_thread(self.store.keep_in_flight, context, work)
            if self.store.unsaved:
                await self._save("stop")
        except OSError as error:
            await self.run_control.log("error", f"Not saved at the end: {error}")

    async def _save(self, reason: str) -> None:
        """A checkpoint, told of. Raises NoRoom, OSError."""
        self.bus.stream(self.activity.begin("checkpoint", self.rounds_done, "Saving"))
        await self.host.call(self.store.save, reason)
        await self.store.tell()
        self.bus.stream(self.activity.end("Saving"))

    @property
    def _guarded(self) -> Guard:
        assert self.guard is not None
        return self.guard

    async def _round(self, context: phases.RoundContext, work: RoundWork) -> None:
        for phase in (phases.ask, phases.generate, phases.score, phases.share, phases.update):
            await phase(context, work)
        solved = set(self.store.solved)
        wanted = self.config.external_groups if self._guarded.taking else 0
        events: list[Event] = [*stamp(record(work, wanted, solved, ""), time.time())]
        await asyncio.to_thread(self.store.finished, work, events, solved)
        external = [g for g in work.trained if g.source == "external"]
        news = self.setup.exchange.used(external, len(work.trained))
        await self.bus.publish(*events, *([news] if news else []))
        self.pace.count(work)
        self.retention.round_done(self.rounds_done, len(events) - 1)

    async def _examine(self, examiner: Examiner, items: int) -> None:
        event = await examiner.examine(self.rounds_done, items, self._evaluating("Held-out evaluation"))
        self.bus.stream(self.activity.end("Held-out evaluation"))
        self._evaluate_next = 0
        await self._guarded.evaluated(event, self.rounds_done)
        await self.store.tell()

    async def _attend(self) -> None:
        doing = "Looking closer at a held-out result that fell"
        await self._guarded.attend(self.rounds_done, self._evaluating(doing))
        await self.store.tell()
        self.bus.stream(self.activity.end(doing))

    def _evaluating(self, sentence: str) -> Callable[[float], None]:
        """Begin the phase; what is returned tells of its progress."""
        self.bus.stream(self.activity.begin("evaluate", self.rounds_done, sentence))

        def show(fraction: float) -> None:
            self.bus.stream(self.activity.progress(fraction, sentence))

        return show
