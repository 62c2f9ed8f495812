"""The node: opens or resumes a run and turns rounds until it is told otherwise.

Three tasks on one event loop: the rounds, a ticker that reads the machine, and (outside) the control server. The
network, the disk and a bad rollout never end a run; they become one sentence and a pause.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec

from sapo_backends.base import Cancelled, Engine, OutOfMemory, Progress
from sapo_swarm.algorithms.base import learning_rate, own_groups
from sapo_swarm.algorithms.registry import algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.control_api import NodeStatus
from sapo_swarm.events import Event, LogLine, RunStarted, State, StateChanged, Vitals, decode, encode
from sapo_swarm.node import commands, rounds
from sapo_swarm.node.bus import Bus
from sapo_swarm.node.checkpoint import Checkpoints
from sapo_swarm.node.commands import Wishes
from sapo_swarm.node.evaluate import Examiner
from sapo_swarm.node.exchange import Exchange, Silo
from sapo_swarm.node.host import EngineHost
from sapo_swarm.node.journal import Journal, JournalError
from sapo_swarm.node.limits import Limits, decide
from sapo_swarm.node.machine import Machine
from sapo_swarm.node.record import record, stamp
from sapo_swarm.node.status import Activity
from sapo_swarm.node.versions import versions
from sapo_swarm.node.work import RoundWork
from sapo_swarm.scoring.scorer import Scorer

TICK_S = 1.0
FAILURES_TO_PAUSE = 5
SILO = "silo"
"""In place of a swarm's id: part of every training seed."""
Build = Callable[[Progress], Engine]


@dataclass
class NodeSetup:
    """Everything a node is given. folder: the run's own; build: loads the engine, called in its thread.

    limits: what the person allows, asked for every second (in a thread), so that a change counts at once.
    """

    config: RunConfig
    run_id: str
    folder: Path
    build: Build
    limits: Callable[[], Limits] = Limits
    exchange: Exchange = field(default_factory=Silo)
    node_key: str = ""
    swarm: str = SILO
    version: str = ""

    @property
    def mode(self) -> Literal["silo", "swarm"]:
        return "silo" if self.swarm == SILO else "swarm"


class Node:
    """One running trainer. `await run()` returns when the rounds are done or a stop was asked for."""

    def __init__(self, setup: NodeSetup) -> None:
        self.setup = setup
        self.config = setup.config
        setup.folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(setup.folder / "journal.db")
        self.bus = Bus(self.journal)
        self.activity = Activity()
        self.wishes = Wishes()
        self.host = EngineHost()
        self.checkpoints = Checkpoints(setup.folder / "checkpoints", self.config.keep_checkpoints)
        self.rounds_done = 0
        self.solved: set[str] = set()
        self._started = time.time()
        self._changed = asyncio.Event()
        self._evaluate_next = 0
        self._failures = 0
        self._rate: float | None = None
        self._round_seconds: float | None = None
        self._last_round = 0.0

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
        )

    def command(self, verb: str, for_s: float = 0.0) -> None:
        """Take a wish of the person. Raises commands.BadCommand. Pauses and stops interrupt the engine at once."""
        self._wish(commands.command(self.wishes, verb, for_s, time.monotonic()))

    def request_evaluation(self, items: int) -> None:
        self._evaluate_next = items or self.config.eval_items
        self._changed.set()

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Raises BackendError or CheckpointCorrupt when the run cannot even start."""
        ticker = asyncio.create_task(self._tick())
        scorer = Scorer()
        try:
            async with scorer:
                bench, examiner = await self._open(scorer)
                await self._turn_rounds(bench, examiner)
            await self._say("stopped", f"Stopped after round {self.rounds_done}.")
        except BaseException as error:
            with contextlib.suppress(JournalError):
                await self._say("failed", f"{error}" or type(error).__name__)
            raise
        finally:
            ticker.cancel()
            await asyncio.gather(ticker, return_exceptions=True)
            await self.host.close()
            await self.setup.exchange.close()
            self.bus.close()
            self.journal.close()

    async def _open(self, scorer: Scorer) -> tuple[rounds.Bench, Examiner]:
        """Load the engine, restore the newest intact checkpoint, announce the run."""
        config, loop = self.config, asyncio.get_running_loop()
        await self._say("starting", f"Loading {config.model}")

        def loading(fraction: float, phrase: str) -> None:
            def show() -> None:
                self.activity.sentence = f"Loading {config.model}: {phrase}"

            loop.call_soon_threadsafe(show)

        engine = await self.host.load(lambda: self.setup.build(loading))
        config = msgspec.structs.replace(config, own_groups=own_groups(config, engine.info.parameters))
        self.config = config
        self.setup.exchange.attach(self.host, scorer)
        await self._resume(engine)
        rule = algorithm(config.algorithm)
        examiner = Examiner(config, self.host, scorer, self.setup.folder / "evaluations")
        bench = rounds.Bench(
            config=config,
            node_key=self.setup.node_key or f"silo-{config.seed}",
            swarm=self.setup.swarm,
            host=self.host,
            scorer=scorer,
            exchange=self.setup.exchange,
            algorithm=rule,
            policy=rule.policy(config, learning_rate(config, engine.info.method, engine.info.parameters)),
            activity=self.activity,
            stream=self.bus.stream,
            model_label=engine.info.model,
        )
        info = engine.info
        await self.bus.publish(
            RunStarted(
                run_id=self.setup.run_id,
                mode=self.setup.mode,
                model=info.model,
                backend=info.backend,
                device=info.device,
                precision=info.precision,
                method=info.method,
                parameters=info.parameters,
                tasks=config.tasks,
                algorithm=config.algorithm,
                group_size=config.group_size,
                own_groups=config.own_groups,
                external_groups=config.external_groups,
                round=self.rounds_done,
                rounds_planned=config.rounds,
                seed=config.seed,
                versions=await asyncio.to_thread(versions, info.backend),
            )
        )
        return bench, examiner

    async def _resume(self, engine: Engine) -> None:
        found, warnings = await asyncio.to_thread(self.checkpoints.newest_intact)
        await self.bus.publish(*[LogLine(level="warning", text=w) for w in warnings])
        if found is None:
            await self.host.call(self.checkpoints.write, engine, 0, engine.info.model, [], [])
            return
        path, state = found
        if engine.info.trainable:
            await self.host.call(engine.restore, path / "engine")
        self.rounds_done, self.solved = state.rounds_done, set(state.solved)
        last = await asyncio.to_thread(self.journal.last_round)
        if last < state.rounds_done - 1:  # killed between the checkpoint and the journal
            await self.bus.publish(*[decode(bytes(raw)) for raw in state.events])
        await self._log("info", f"Resumed after round {self.rounds_done} from {path.name}.")

    async def _turn_rounds(self, bench: rounds.Bench, examiner: Examiner) -> None:
        config = self.config
        work = RoundWork(self.rounds_done)
        if config.eval_every and not await asyncio.to_thread(examiner.has_base):
            self._evaluate_next = self._evaluate_next or config.eval_items
        while not self.wishes.stop:
            if config.rounds and self.rounds_done >= config.rounds and not self._evaluate_next:
                return
            if not await self._may_work():
                continue
            try:
                if self._evaluate_next:
                    await self._examine(examiner, self._evaluate_next)
                    continue
                await self._round(bench, work)
            except Cancelled:
                self.host.cancel.reset()
                continue
            except Exception as error:  # a bad round is a sentence and a pause, never the end of the run
                await self._failed(error)
                continue
            self._failures = 0
            work = RoundWork(self.rounds_done)
            if config.eval_every and self.rounds_done % config.eval_every == 0:
                self._evaluate_next = config.eval_items
            self.wishes = commands.round_done(self.wishes)

    async def _round(self, bench: rounds.Bench, work: RoundWork) -> None:
        for phase in (rounds.ask, rounds.generate, rounds.score, rounds.share, rounds.update):
            await phase(bench, work)
        solved = set(self.solved)
        done = work.round + 1
        save = done % self.config.checkpoint_every == 0 or done == self.config.rounds
        name = f"round-{done:06d}" if save else ""
        events: list[Event] = [*stamp(record(work, self.config.external_groups, solved, name), time.time())]
        if save:
            self.bus.stream(self.activity.begin("checkpoint", work.round, "Saving"))
            lines = [encode(e) for e in events]
            await self.host.call(
                self.checkpoints.write, self.host.engine, done, bench.model_label, lines, sorted(solved)
            )
            self.bus.stream(self.activity.end("Saving"))
        external = [g for g in work.trained if g.source == "external"]
        news = self.setup.exchange.used(external, len(work.trained))
        await self.bus.publish(*events, *([news] if news else []))
        self.rounds_done, self.solved = done, solved
        self._count(work)

    async def _examine(self, examiner: Examiner, items: int) -> None:
        self.bus.stream(self.activity.begin("evaluate", self.rounds_done, "Held-out evaluation"))

        def show(fraction: float) -> None:
            self.bus.stream(self.activity.progress(fraction, "Held-out evaluation"))

        event = await examiner.examine(self.rounds_done, items, show)
        self.bus.stream(self.activity.end("Held-out evaluation"))
        self._evaluate_next = 0
        await self.bus.publish(event)

    # -- waiting and failing ----------------------------------------------------------------------------------------

    async def _may_work(self) -> bool:
        """True at once when nothing is in the way; else wait for the next change and return False."""
        obstacle = commands.obstacle(self.wishes, time.monotonic(), time.time())
        if obstacle is None:
            self.host.cancel.reset()
            if self.activity.state != "running":
                await self._say("running", f"Working on round {self.rounds_done + 1}")
            return True
        reason, sentence = obstacle
        if (self.activity.state, self.activity.reason) != ("paused", reason):
            self._last_round = 0.0  # a pause is no slow round
            await self._say("paused", sentence, reason)
        self.activity.sentence = sentence
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(TICK_S):
                await self._changed.wait()
        return False

    async def _failed(self, error: Exception) -> None:
        """Back off 2^n s; out of memory, a full disk or the fifth failure in a row pause with the reason."""
        self._failures += 1
        text = f"{type(error).__name__}: {error}"
        with contextlib.suppress(JournalError):
            await self._log("error", text)
        final = isinstance(error, (OutOfMemory, OSError, JournalError)) or self._failures >= FAILURES_TO_PAUSE
        if final:
            self._failures = 0
            self._wish(msgspec.structs.replace(self.wishes, failure=f"Paused: {error} · space tries again"))
            return
        wait = random.uniform(0, 2**self._failures)
        self.activity.sentence = f"{text} · tries again in {commands.duration(wait)}"
        self._changed.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait):
                await self._changed.wait()

    def _wish(self, wishes: Wishes) -> None:
        self.wishes = wishes
        if wishes.stop or commands.obstacle(wishes, time.monotonic(), time.time()) is not None:
            self.host.cancel.cancel()
            if self.activity.state == "running" and not wishes.stop:
                self.activity.state, self.activity.sentence = "pausing", "Pausing"
        self._changed.set()

    async def _tick(self) -> None:
        """Once a second: read the machine, apply the limits, stream the vitals."""
        machine = Machine(self.setup.folder)
        while True:
            limits = await asyncio.to_thread(self.setup.limits)
            now = await asyncio.to_thread(machine.readings, limits.pause_when_active)
            memory, cpu = await asyncio.to_thread(machine.usage)
            hold = decide(limits, now, self.wishes.hold, time.monotonic())
            if hold != self.wishes.hold:
                self._wish(msgspec.structs.replace(self.wishes, hold=hold))
            hourly = 3600 / self._round_seconds if self._round_seconds else None
            self.bus.stream(
                Vitals(
                    tokens_per_s=self._rate,
                    rounds_per_hour=hourly,
                    memory=memory,
                    cpu_percent=cpu,
                    watts=None,
                    celsius=now.celsius,
                )
            )
            await asyncio.sleep(TICK_S)

    # -- telling ----------------------------------------------------------------------------------------------------

    async def _say(self, state: State, sentence: str, reason: str = "") -> None:
        now = self.activity
        now.state, now.sentence, now.reason, now.since = state, sentence, reason, time.time()
        now.phase = None if state != "running" else now.phase
        with contextlib.suppress(JournalError):  # a full disk must not keep the node from saying so
            await self.bus.publish(StateChanged(state=state, sentence=sentence, reason=reason))

    async def _log(self, level: str, text: str) -> None:
        await self.bus.publish(LogLine(level="error" if level == "error" else "info", text=text))

    def _count(self, work: RoundWork) -> None:
        tokens = sum(len(c.tokens) for group in work.completions or () for c in group)
        self._rate = tokens / max(work.seconds.get("generate", 0.0), 1e-6)
        now = time.monotonic()
        if self._last_round:
            took = now - self._last_round
            self._round_seconds = took if self._round_seconds is None else 0.8 * self._round_seconds + 0.2 * took
        self._last_round = now
