"""The node: opens or resumes a run and turns rounds until it is told otherwise.

Three tasks on one event loop: the rounds, a ticker that reads the machine, and (outside) the control server. The
network, the disk and a bad rollout never end a run; they become one sentence and a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Callable, Sequence, Set
from dataclasses import replace
from pathlib import Path

import msgspec

from sapo_backends.base import Cancelled, Engine
from sapo_swarm.algorithms.base import local_groups
from sapo_swarm.events import Event, LogLine, decode, encode
from sapo_swarm.node import setup as opening
from sapo_swarm.node.control.api import NodeStatus
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.evaluation.evaluate import Examiner
from sapo_swarm.node.evaluation.guard import Guard
from sapo_swarm.node.evaluation.held_out_exclusion import held_out_exclusion
from sapo_swarm.node.event_bus import Bus
from sapo_swarm.node.governor import commands, pace
from sapo_swarm.node.governor.pace import Pace
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.round import phases
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.node.round.memory import recalled
from sapo_swarm.node.round.progress import Activity
from sapo_swarm.node.round.record import record, stamp
from sapo_swarm.node.setup import NodeSetup
from sapo_swarm.node.storage.checkpoints import Checkpoints
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
        self.checkpoints = Checkpoints(setup.folder / "checkpoints", self.config.keep_checkpoints)
        self.retention = Retention(self.journal, self.config.keep_groups)
        self.guard: Guard | None = None
        self._opened = asyncio.Event()
        self.rounds_done = 0
        self.solved: set[str] = set()
        self._started = time.time()
        self._evaluate_next = 0

    # -- what the control server and the CLI call ---------------------------------------------------------------

    def status(self) -> NodeStatus:
        now, config = self.activity, self.config
        loaded = self.host.loaded
        return NodeStatus(
            state=now.state,
            sentence=now.sentence,
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
            phase=now.phase if now.state == "running" else None,
            phase_fraction=now.fraction,
            eta_s=now.eta_s,
            seq=self.journal.last_seq,
            started=self._started,
            version=self.setup.version,
            external=self.guard.watch.sentence if self.guard else "",
        )

    def command(self, verb: str, for_s: float = 0.0) -> None:
        """Take a wish of the person. Raises commands.BadCommand. Pauses and stops interrupt the engine at once."""
        self.run_control.wish(commands.command(self.run_control.wishes, verb, for_s, time.monotonic()))

    def request_evaluation(self, items: int) -> None:
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
                await self._turn_rounds(context, examiner)
            await self.run_control.say("stopped", f"Stopped after round {self.rounds_done}.")
        except BaseException as error:
            with contextlib.suppress(JournalError):
                await self.run_control.say("failed", f"{error}" or type(error).__name__)
            raise
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            await self.host.close()
            await self.setup.exchange.close()
            await self.retention.close()
            self.bus.close()
            self.journal.close()

    async def _open(self, scorer: Scorer) -> tuple[phases.RoundContext, Examiner]:
        """Load the engine, restore the newest intact checkpoint, announce the run."""
        drawing = held_out_exclusion(scorer, self.config.tasks, self.config.preset)
        engine, apart = await asyncio.gather(self._load(), drawing)
        setup, info = self.setup, engine.info
        self.config = config = msgspec.structs.replace(
            self.config, local_groups=local_groups(self.config, info.parameters)
        )
        setup.exchange.attach(self.host, scorer, apart)
        rollbacks = await self._resume(engine)
        examiner = Examiner(config, self.host, scorer, setup.folder / "evaluations")
        context = opening.context(setup, config, self.host, scorer, self.activity, self.bus.stream, apart)
        memory = await asyncio.to_thread(recalled, config, self.journal, self.rounds_done)
        context = replace(context, memory=memory)
        self.guard = Guard(
            config=config,
            host=self.host,
            checkpoints=self.checkpoints,
            examiner=examiner,
            exchange=setup.exchange,
            journal=self.journal,
            bus=self.bus,
            save=self._save,
            in_swarm=setup.mode == "swarm",
        )
        await self.guard.open(rollbacks)
        self._opened.set()
        found = await asyncio.to_thread(versions, info.backend)
        started = opening.announcement(setup.run_id, setup.mode, config, info, self.rounds_done, found)
        started = msgspec.structs.replace(started, name=setup.name, base=setup.base, changed=setup.changed)
        await self.bus.publish(started)
        return context, examiner

    async def _load(self) -> Engine:
        model, loop = self.config.model, asyncio.get_running_loop()
        await self.run_control.say("starting", f"Loading {model}")

        def loading(fraction: float, phrase: str) -> None:
            def show() -> None:
                self.activity.sentence = f"Loading {model}: {phrase}"

            loop.call_soon_threadsafe(show)

        return await self.host.load(lambda: self.setup.build(loading))

    async def _resume(self, engine: Engine) -> int:
        """Restore the newest intact checkpoint; how many rollbacks its weights contain."""
        found, warnings = await asyncio.to_thread(self.checkpoints.newest_intact)
        await self.bus.publish(*[LogLine(level="warning", text=w) for w in warnings])
        if found is None:
            await self.host.call(self._save, 0, 0)
            return 0
        path, state = found
        if engine.info.trainable:
            await self.host.call(engine.restore, path / "engine")
        self.rounds_done, self.solved = state.rounds_done, set(state.solved)
        last = await asyncio.to_thread(self.journal.last_round)
        if last < state.rounds_done - 1:  # killed between the checkpoint and the journal
            await self.bus.publish(*[decode(bytes(raw)) for raw in state.events])
        await self.run_control.log("info", f"Resumed after round {self.rounds_done} from {path.name}.")
        return state.rollbacks

    def _save(
        self, rounds_done: int, rollbacks: int, events: Sequence[Event] = (), solved: Set[str] = frozenset()
    ) -> Path:
        """A checkpoint of the engine as it is. Call in the engine's thread. Raises OSError."""
        engine = self.host.engine
        lines, known = [encode(event) for event in events], sorted(self.solved | solved)
        return self.checkpoints.write(engine, rounds_done, engine.info.model, lines, known, rollbacks)

    async def _turn_rounds(self, context: phases.RoundContext, examiner: Examiner) -> None:
        config, run_control, guard = self.config, self.run_control, self._guarded
        work = RoundWork(self.rounds_done)
        if config.eval_every and not await asyncio.to_thread(examiner.has_base):
            self._evaluate_next = self._evaluate_next or config.eval_items
        while not run_control.wishes.stop:
            if config.rounds and self.rounds_done >= config.rounds and not self._evaluate_next:
                return
            if not await run_control.may_work(self.rounds_done):
                self.pace.paused()
                continue
            try:
                if self._evaluate_next:
                    await self._examine(examiner, self._evaluate_next)
                    continue
                if guard.busy:
                    await self._attend()
                    continue
                await self._round(context, work)
            except Cancelled:
                self.host.cancel.reset()
                continue
            except Exception as error:  # a bad round is a sentence and a pause, never the end of the run
                await run_control.failed(error)
                continue
            work = RoundWork(self.rounds_done)
            if config.eval_every and self.rounds_done % config.eval_every == 0:
                self._evaluate_next = config.eval_items
            run_control.succeeded()

    @property
    def _guarded(self) -> Guard:
        assert self.guard is not None
        return self.guard

    async def _round(self, context: phases.RoundContext, work: RoundWork) -> None:
        for phase in (phases.ask, phases.generate, phases.score, phases.share, phases.update):
            await phase(context, work)
        solved = set(self.solved)
        done = work.round + 1
        save = done % self.config.checkpoint_every == 0 or done == self.config.rounds
        wanted = self.config.external_groups if self._guarded.taking else 0
        name = f"round-{done:06d}" if save else ""
        events: list[Event] = [*stamp(record(work, wanted, solved, name), time.time())]
        if save:
            self.bus.stream(self.activity.begin("checkpoint", work.round, "Saving"))
            await self.host.call(self._save, done, self._guarded.rollbacks, events, solved)
            self.bus.stream(self.activity.end("Saving"))
        external = [g for g in work.trained if g.source == "external"]
        news = self.setup.exchange.used(external, len(work.trained))
        await self.bus.publish(*events, *([news] if news else []))
        self.rounds_done, self.solved = done, solved
        self.pace.count(work)
        self.retention.round_done(done)

    async def _examine(self, examiner: Examiner, items: int) -> None:
        event = await examiner.examine(self.rounds_done, items, self._evaluating("Held-out evaluation"))
        self.bus.stream(self.activity.end("Held-out evaluation"))
        self._evaluate_next = 0
        await self._guarded.evaluated(event, self.rounds_done)

    async def _attend(self) -> None:
        doing = "Looking closer at a held-out result that fell"
        await self._guarded.attend(self.rounds_done, self._evaluating(doing))
        self.bus.stream(self.activity.end(doing))

    def _evaluating(self, sentence: str) -> Callable[[float], None]:
        """Begin the phase; what is returned tells of its progress."""
        self.bus.stream(self.activity.begin("evaluate", self.rounds_done, sentence))

        def show(fraction: float) -> None:
            self.bus.stream(self.activity.progress(fraction, sentence))

        return show
