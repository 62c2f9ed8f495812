"""The node: opens or resumes a run and runs rounds until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import msgspec

from sapo_backends.base import Engine, EngineInfo, Progress
from sapo_backends.errors import Cancelled, TemplateRefused
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import eval_items
from sapo_swarm.events import Evaluated, LogLine, RoundFinished, SwarmUpdated
from sapo_swarm.node import aha_trail, round_phases
from sapo_swarm.node.clock import steady_seconds
from sapo_swarm.node.control_api import NodeStatus
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import Evaluator, Unanswered, held_out_exclusion
from sapo_swarm.node.examples_phase import ExamplesPhase
from sapo_swarm.node.governor import run_control as wishes
from sapo_swarm.node.governor.machine import GovernorTicker, run_governor
from sapo_swarm.node.governor.run_control import RunControl
from sapo_swarm.node.guard import RollbackGuard, evaluated_after
from sapo_swarm.node.journal import EventBus, Journal, JournalError
from sapo_swarm.node.journal_thinning import JournalRetention
from sapo_swarm.node.model_store import ModelStore
from sapo_swarm.node.resume_log import drop_external, external_expired, update_interrupted
from sapo_swarm.node.round_phases import (
    NodeActivity,
    RoundContext,
    RoundWork,
    record_round,
    restore_replay_buffer,
    stamp_round,
    update_policy,
)
from sapo_swarm.node.round_warnings import MASTERED, StallDetector, cut_off
from sapo_swarm.node.setup import (
    Build,
    Fetch,
    NodeSetup,
    complete_config,
    guard_of,
    make_run_started,
    reasoning_notes,
    require_held_out,
    round_context,
)
from sapo_swarm.node.training_count import LINEAGE, TrainingCount, TrainingCounts
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.types import TaskRef

# Opening a model: the engine is loaded, the base is asked the questions it has not answered, the trained weights are
# restored.
#
# Progress is published on the way; a stop ends it at the next step and leaves the disk as it was.

STEP_S = 0.1
"""Seconds between two progress messages while opening."""


def shown_base(model: str) -> str:
    """A base in a sentence: a file or folder by its own name, without its path."""
    return os.path.basename(model.rstrip("/\\")) or model if os.path.isabs(model) else model


@dataclass
class ModelOpening:
    """journal: of the model being opened."""

    host: EngineThread
    journal: Journal
    bus: EventBus
    activity: NodeActivity
    run_control: RunControl

    async def fetch(self, model: str, fetch: Fetch) -> None:
        """Afterwards the model's files are on this disk. A pause or a stop interrupts a download at once; what arrived is
        kept.

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
        """The engine with the base loaded; call after fetch(). Raises Cancelled after a stop, and what building raises."""
        report = self.progress(f"Loading {shown_base(model)}: ", f" ({shown_base(model)})", timed=False)
        return await self.host.load(lambda: build(report))

    async def ask_base(self, examiner: Evaluator, rounds: int) -> None:
        """Ask the base the held-out questions that it has not answered, if later answers are compared with it. Call after
        load(), before weights are restored. rounds: that the model has done; a model without any is the base itself. An engine
        that keeps the base at hand is asked later, beside training.

        A hold only delays it. If it fails, or the person pauses, a log line says so, and the model is opened all the same.
        Raises Cancelled after a stop.
        """
        if not rounds or examiner.asks_base_beside or not await self.compared(examiner):
            return
        refs = await examiner.base_missing()
        if not refs:
            return
        doing = "Asking the base the held-out questions that are new to it"
        try:
            while not await self._asked(examiner, refs, doing):
                if self.run_control.requests.paused_until > steady_seconds():
                    return await self._left_out(len(refs), "it was interrupted")
                await self._wait(rounds)
                await self.run_control.say("starting", doing)
        except (Unanswered, OSError) as error:
            await self._left_out(len(refs), f"{error}")

    async def _asked(self, examiner: Evaluator, refs: list[TaskRef], doing: str) -> bool:
        """Whether the base was asked everything. Raises Unanswered, OSError; Cancelled after a stop."""
        report = self.progress(f"{doing}: ")
        try:
            await examiner.ask_base(refs, lambda part: report(part, f"{round(part * len(refs))} of {len(refs)}"))
        except Cancelled:
            self.host.cancel.reset()
            self._go_on()
            return False
        return True

    async def _wait(self, rounds: int) -> None:
        """Wait until work may continue. Raises Cancelled after a stop."""
        while not self.run_control.requests.stop and not await self.run_control.may_work(rounds):
            continue
        self._go_on()

    async def compared(self, examiner: Evaluator) -> bool:
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
        self,
        setup: NodeSetup,
        config: RunConfig,
        info: EngineInfo,
        store: ModelStore,
        examples_rounds: int,
        notes: Sequence[str],
    ) -> None:
        """Publish that the model is open, and how many events in its journal cannot be read. Raises JournalError."""
        about = setup.run_id, setup.mode, config, info, store.rounds_done, examples_rounds
        started = await asyncio.to_thread(make_run_started, *about)
        fields = {"name": setup.name, "base": setup.base, "changed": setup.changed, "trial": setup.trial}
        fields |= {"weights": store.weights, "solved": tuple(sorted(store.solved))}
        await self.bus.publish(msgspec.structs.replace(started, **fields))
        await store.tell()
        await self.bus.publish(*[LogLine(level="info", text=sentence) for sentence in notes])
        if count := len(self.journal.unreadable):
            sentence = (
                f"{count} events of the journal cannot be read and are passed over: sapo-desktop runs check --repair"
            )
            await self.bus.publish(LogLine(level="warning", text=sentence))

    def progress(self, doing: str, after: str = "", timed: bool = True) -> Callable[[float, str], None]:
        """A function that passes fractions and phrases from any thread to the status sentence and the subscribers. It raises
        Cancelled after a stop, which ends its caller. after: stands behind the phrases in place of `doing` before them: of a
        sentence that is too long for a header, the end is left out. timed: see NodeActivity.begin()."""
        loop, last = asyncio.get_running_loop(), -STEP_S
        first = doing.removesuffix(": ") or "Opening the model"
        self.bus.stream(self.activity.begin("open", self.activity.round, first, timed=timed))

        def show(fraction: float, phrase: str) -> None:
            if self.activity.phase == "open":
                detail = f"{phrase[:1].upper()}{phrase[1:]}{after}" if after else f"{doing}{phrase}"
                self.bus.stream(self.activity.progress(fraction, detail))

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


# The node: opens or resumes a run and runs rounds until it is told to stop.
#
# On one event loop: the rounds, a ticker that reads the machine, and (outside) the control server. Network, disk and a
# bad rollout never end a run; they become one sentence and a pause.


class Node:
    """One running trainer. `await run()` returns when the rounds are done or a stop was asked for."""

    def __init__(self, setup: NodeSetup) -> None:
        self.setup = setup
        self.config = setup.config
        setup.folder.mkdir(parents=True, exist_ok=True)
        self.journal = Journal(setup.folder / "journal.db")
        self.bus = EventBus(self.journal)
        self.activity = NodeActivity()
        self.host = EngineThread()
        pause = wishes.last_pause(self.journal.read(kinds=("state",), tail=wishes.STATES)) if setup.as_left else None
        self.run_control = RunControl(self.bus, self.activity, self.host.cancel, self.host.ease, setup.deaths, pause)
        self.pace = GovernorTicker()
        self.store = ModelStore(setup.folder, self.config, self.host, self.journal, self.bus)
        self.firsts = aha_trail.FirstSuccesses()
        self.examples = ExamplesPhase(self.journal, self.bus, setup.folder, setup.written, setup.trials)
        self.stalled = StallDetector(presets=any(task in CATALOGUE for task in setup.config.tasks))
        self.retention = JournalRetention(self.journal, self.config.keep_groups)
        self.guard: RollbackGuard | None = None
        self._left_by_swarm = False
        self._opened = asyncio.Event()
        self._started = time.time()
        self._evaluate_next = 0
        self._base_compared = False
        self._ended = ""
        """Why there is nothing left to learn, until the pause that follows."""
        self._back: tuple[int, asyncio.Future[None]] | None = None
        """Rounds of the checkpoint that a person wants to go back to, and the future that waits for it."""
        self.counts = TrainingCounts()
        """What the weights were trained with, and those of earlier checkpoints."""

    @property
    def rounds_done(self) -> int:
        """The running number of the weights: of all steps and rounds, and of every time that earlier weights were restored."""
        return self.store.rounds_done

    @property
    def practised(self) -> int:
        """The rounds of practice that led to the weights, which count towards the planned rounds."""
        return self.counts.at(self.rounds_done).rounds

    # -- what the control server and the CLI call ---------------------------------------------------------------

    def status(self) -> NodeStatus:
        """What the node does now, and which requests are pending."""
        now, config = self.activity, self.config
        loaded = self.host.loaded
        return NodeStatus(
            state=now.state,
            sentence=now.sentence + self.run_control.besides(),
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
            rounds_planned=config.rounds + self.rounds_done - self.practised if config.rounds else 0,
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
            trained=self.counts.at(self.rounds_done),
        )

    def command(self, verb: str, for_s: float = 0.0, holder: int = 0) -> None:
        """Take a request from the person. Raises BadCommand. Pauses and stops interrupt the engine at once."""
        self.run_control.command(verb, for_s, holder)

    def request_evaluation(self, items: int) -> None:
        """Request a held-out evaluation after this round. items: per task, 0 = as the settings say. Raises BadCommand."""
        require_held_out(self.config, items)
        self._evaluate_next = items or eval_items(self.config)
        self.run_control.wake()

    async def switch_external(self, taking: bool) -> None:
        """Take external groups into training from now on, or none; while the model loads, once it is loaded.

        Raises BadCommand, JournalError.
        """
        if self.setup.mode == "silo":
            raise wishes.BadCommand("This node is in no swarm: there are no groups of others to take.")
        await self._opened.wait()
        await self._guarded.switch(taking, self.rounds_done)

    async def go_back(self, rounds: int) -> None:
        """Replace the current weights by those after this many rounds; returns when that is done. The engine's current work
        is interrupted, and the rollouts of the round in flight are dropped: other weights sampled them. While the model
        loads, this waits for it.

        Raises BadCommand if it cannot be done; nothing is changed then.
        """
        await self._opened.wait()
        if self._back is not None:
            raise wishes.BadCommand("The node goes back to another state at this moment. Try again when it has.")
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._back = rounds, done
        self.host.cancel.cancel()
        self.run_control.wake()
        await asyncio.shield(done)

    # -- life ------------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Raises BackendError if the run cannot even start, or the model takes no questions."""
        machine = await asyncio.to_thread(self.setup.machine, self.setup.folder)
        ticker = asyncio.create_task(run_governor(machine, self.setup.limits, self.run_control, self.pace, self.bus))
        scorer = Scorer(answer_format=self.config.answer_format, judge=self.setup.judge)
        try:
            async with scorer:
                ended = await self._train(scorer)
            await self.run_control.say("stopped", ended, "" if self.run_control.requests.stop else "done")
        except BaseException as error:
            with contextlib.suppress(JournalError):
                await self.run_control.say("failed", f"{error}" or type(error).__name__)
            raise
        finally:
            self._answer_back("The node ended before it went back. Try again: it is done without a node, too.")
            ticker.cancel()
            await asyncio.gather(ticker, self.run_control.settled(), return_exceptions=True)
            await self.host.close()
            if self.setup.exchange is not None:
                await self.setup.exchange.close()
            await self.retention.close()
            self.store.close()
            self.bus.close()
            self.journal.close()

    async def _train(self, scorer: Scorer) -> str:
        """Open the model and run rounds until they are done or stopped; returns how it ended, in a sentence."""
        try:
            context, examiner = await self._open(scorer)
        except Cancelled:
            if not self.run_control.requests.stop:
                raise
            return "Stopped before the model was open; nothing of it is lost."
        await self._run_rounds(context, examiner)
        now, undone = self.counts.at(self.rounds_done), self.counts.undone
        were = "was" if undone.steps + undone.rounds == 1 else "were"
        lost = f"; {undone} more {were} rolled back" if undone != TrainingCount() else ""
        return f"Stopped {f'after {now}' if now.steps else now.when}{lost}."

    async def _recount(self) -> None:
        """Count again after a start or after earlier weights were restored. Raises JournalError."""
        self.counts = TrainingCounts.of(await asyncio.to_thread(self.journal.read, 0, LINEAGE))
        await self.examples.open(self.rounds_done)

    async def _open(self, scorer: Scorer) -> tuple[RoundContext, Evaluator]:
        """Load the engine, restore the newest intact checkpoint, announce the run. Raises Cancelled after a stop."""
        opening = ModelOpening(self.host, self.journal, self.bus, self.activity, self.run_control)
        await opening.fetch(self.config.model, self.setup.fetch)
        loading = opening.load(self.config.model, self.setup.build)
        excluding = held_out_exclusion(scorer, self.config.tasks, self.config.preset)
        engine, excluded = await asyncio.gather(loading, excluding)
        setup, info = self.setup, engine.info
        reasons = scorer.in_reasoning = engine.tokenizer.opens_reasoning
        notes = setup.notes + (reasoning_notes(self.config) if reasons else ())
        await self.examples.open(self.store.rounds_done)
        limits = self.examples.trial.limits if self.examples.trial else {}
        self.config = config = complete_config(self.config, info.parameters, reasons, limits)
        if setup.exchange is not None:
            setup.exchange.attach(self.host, scorer, excluded)
        examiner = Evaluator(config, self.host, scorer, setup.folder / "evaluations")
        self.guard = guard = guard_of(setup, config, self.store, examiner)
        checkpoint = await self.store.find()
        if checkpoint is not None:
            await guard.open(checkpoint[1].rollbacks)  # before anything is saved: the best checkpoint stays
            journal_rounds = await asyncio.to_thread(self.journal.last_round) + 1
            await opening.ask_base(examiner, max(checkpoint[1].rounds_done, journal_rounds))
        await self.store.open(checkpoint, opening.progress(""))
        await asyncio.to_thread(lambda: self.firsts.open(self.journal.read(kinds=aha_trail.KINDS)))
        memory = await asyncio.to_thread(restore_replay_buffer, config, self.journal, self.store.rounds_done)
        await self._recount()
        context = round_context(setup, config, self.host, scorer, self.activity, self.bus.stream, excluded, memory)
        await opening.announce(setup, config, info, self.store, self.examples.steps, notes)
        await guard.open(self.store.rollbacks)  # the announced session may ask other held-out questions
        self._left_by_swarm = guard.busy
        self.activity.phase = None
        self._base_compared = await opening.compared(examiner)
        self._opened.set()
        return context, examiner

    async def _run_rounds(self, context: RoundContext, examiner: Evaluator) -> None:
        run_control = self.run_control
        work = await self.store.in_flight(context)
        await self._reconsider(context)
        if not self.examples.trial_due(context, self.rounds_done):
            await self._owe_evaluation()
        while not run_control.requests.stop and not await self._complete(context, examiner):
            before = self.rounds_done - self.practised
            context = replace(context, examples_rounds=self.examples.steps, before_practice=before)
            run_control.tell(self.examples.doing(self.config), before, self.stalled.notice)
            try:
                if self._back is not None:
                    work = await self._go_back(examiner, work, self._back[0])
                elif await self._may_work(context, work):
                    if self.examples.trial_due(context, self.rounds_done):
                        context, examiner = await self._try_base(context, examiner)
                    else:
                        work = await self._step(context, examiner, work)
                    if self.store.due():
                        await self._save("time", work)
            except Cancelled:
                self.host.cancel.reset()
            except TemplateRefused:  # every round would be refused
                await self._leave(context, work)
                raise
            except Exception as error:  # a failed round becomes a sentence and a pause, never the end of the run
                await run_control.failed(error)
        await self._leave(context, work)

    async def _complete(self, context: RoundContext, examiner: Evaluator) -> bool:
        """Whether everything planned is done, and the base has answered what it is compared on."""
        return self._learned_all(context) and not (self._base_compared and await examiner.slices_left())

    async def _slice_due(self, context: RoundContext, examiner: Evaluator, work: RoundWork) -> bool:
        """Whether the base is to answer some questions now: it has its share of the time left, or nothing else is to be done.
        Evaluations come first, and a round that is in the weights."""
        if work.stats is not None or self._evaluate_next or self._guarded.busy:
            return False
        if not await examiner.slices_left():
            return False
        ends = self._ended or (self.examples.ending and not self._practice_follows)
        return examiner.slice_fits or bool(ends) or self._learned_all(context)

    async def _ask_slice(self, examiner: Evaluator) -> None:
        """The untrained model answers some more held-out questions."""
        done, detail = examiner.base_progress()
        self.bus.stream(self.activity.begin("evaluate", self.rounds_done, detail, done))

        def show(fraction: float, words: str) -> None:
            self.bus.stream(self.activity.progress(fraction, words))

        events = await self._guarded.attempt(
            "untrained model's held-out evaluation", examiner.ask_slice(self.rounds_done, show)
        )
        self.bus.stream(self.activity.end(self.activity.sentence))
        if events is None:
            examiner.give_up_slices()
        else:
            await self.bus.publish(*events)

    def _learned_all(self, context: RoundContext) -> bool:
        """Whether everything planned is done but for comparisons."""
        config = self.config
        if self._evaluate_next or self.examples.running(config) or self.examples.trial_due(context, self.rounds_done):
            return False
        return config.examples == "only" or 0 < config.rounds <= self.practised

    async def _owe_evaluation(self) -> None:
        """Schedule an evaluation if the weights lack their regular one, or were restored and have no known result."""
        practised = -1 if self.examples.running(self.config) else self.practised
        practised = 0 if self.store.restored >= 0 else practised
        if await self._guarded.due(self.rounds_done, practised):
            self._evaluate_next = self._evaluate_next or eval_items(self.config)

    async def _try_base(self, context: RoundContext, examiner: Evaluator) -> tuple[RoundContext, Evaluator]:
        """Try the base; returns the context and evaluator with the answer limits that follow from it."""
        trial = await self.examples.try_base(context, self.rounds_done)
        self.run_control.succeeded()
        if trial.limits:
            self.config, _ = resolve_run_config(self.config, facts=RunFacts(answer_limits=trial.limits))
            examiner = Evaluator(self.config, self.host, context.scorer, self.setup.folder / "evaluations")
            self._guarded.config, self._guarded.examiner = self.config, examiner
        await self._owe_evaluation()
        return replace(context, config=self.config), examiner

    async def _step(self, context: RoundContext, examiner: Evaluator, work: RoundWork) -> RoundWork:
        """The base answers some held-out questions, or the model works; returns the next round to work on."""
        if not self._base_compared:
            return await self._work(context, examiner, work)
        if await self._slice_due(context, examiner, work):
            await self._ask_slice(examiner)
            return work
        learns, began = not (self._evaluate_next or self._guarded.busy), time.perf_counter()
        work = await self._work(context, examiner, work)
        examiner.learned(time.perf_counter() - began if learns else 0.0)
        return work

    async def _work(self, context: RoundContext, examiner: Evaluator, work: RoundWork) -> RoundWork:
        """An evaluation, a closer look, a reading or a round; returns the next round to work on. A round that is already in
        the weights comes first."""
        work = await self.store.mend(work) if update_interrupted(work) else work
        if work.stats is None and (self._evaluate_next or self._watched):
            await (self._examine(examiner, self._evaluate_next) if self._evaluate_next else self._attend())
            return work
        if work.stats is None and self.examples.running(self.config):
            await self.examples.prepare(context)
            if self.examples.reading_due(self.config):
                reading = await self.examples.read(context, self.rounds_done)
                if reading.over and examiner.regular:
                    self._evaluate_next = self._evaluate_next or eval_items(self.config)
                return work
        if work.stats is None and (finished := self._ended or self._finished_by_examples()):
            self._ended = ""
            self.run_control.nothing_left(finished)
            return work
        await self._round(context, work)
        if not work.examples and (evaluated_after(self.config, self.practised) or (self._ended and examiner.regular)):
            self._evaluate_next = eval_items(self.config)
        if not work.examples:
            await self._reconsider(context)
        self.run_control.succeeded()
        return RoundWork(self.rounds_done)

    def _finished_by_examples(self) -> str:
        """Once, after an examples phase ended: what to say if this run needs nothing more; "" if practice follows."""
        finished, self.examples.ending = self.examples.ending, ""
        return "" if self._practice_follows else finished

    @property
    def _practice_follows(self) -> bool:
        """Whether practice begins unasked after a successful examples phase."""
        return self.setup.exchange is not None or bool(self.config.rounds) or self.config.examples != "auto"

    async def _go_back(self, examiner: Evaluator, work: RoundWork, target: int) -> RoundWork:
        """Do what go_back() asked for; returns the next round to work on. If it cannot be done, nothing changes, and the
        caller learns why."""
        doing = "Going back to an earlier state"
        self.host.cancel.reset()
        try:
            work = await self.store.mend(work) if update_interrupted(work) else work
            await self._finish(work)
            self.bus.stream(self.activity.begin("checkpoint", self.rounds_done, doing))
            await self.host.call(self.store.go_back, target)
        except Exception as error:  # the caller learns of it; training continues unchanged
            self._answer_back(f"{error}" or type(error).__name__)
            return work if work.round == self.rounds_done else RoundWork(self.rounds_done)
        finally:
            self.bus.stream(self.activity.end(doing))
        self.examples.weights_replaced()
        self.run_control.weights_replaced()
        self._evaluate_next, self._ended = 0, ""
        try:
            await examiner.discard_newest()
            await self.store.tell()
            await self._recount()
            # What was learned about the replaced weights no longer counts.
            await self._guarded.open(self.store.rollbacks)
            if examiner.regular:
                await self._owe_evaluation()
        except (JournalError, OSError) as error:
            self._answer_back(f"The weights are back, but the history could not be written yet. {error}")
            await self.run_control.failed(error)
        self._answer_back()
        return RoundWork(self.rounds_done)

    def _answer_back(self, problem: str = "") -> None:
        """Tell the caller of go_back() that it is done, or why not."""
        if self._back is None:
            return
        (_, done), self._back = self._back, None
        if problem:
            done.set_exception(wishes.BadCommand(problem))
        else:
            done.set_result(None)

    async def _reconsider(self, context: RoundContext) -> None:
        """Practice may have found successes to imitate, unless it is over."""
        if not 0 < self.config.rounds <= self.practised:
            await self.examples.reconsider(context, self.rounds_done, others=self._guarded.taking)

    async def _may_work(self, context: RoundContext, work: RoundWork) -> bool:
        """True if nothing is in the way. When a pause begins, unfinished work is saved to disk and free memory is given back."""
        paused_before = self.activity.state == "paused"
        if await self.run_control.may_work(self.rounds_done):
            return True
        self.pace.paused()
        if not paused_before and self.activity.state == "paused":
            await asyncio.to_thread(self.store.keep_in_flight, context, work)
            if (
                self.store.unsaved
                and not update_interrupted(work)
                and self.activity.reason in ("person", "held", "done")
            ):
                await self._save("pause", work)
            await self.host.return_memory()
        return False

    async def _leave(self, context: RoundContext, work: RoundWork) -> None:
        """The end of a run: the round in flight is kept and the weights are saved; finished rounds are on disk anyway."""
        try:
            await asyncio.to_thread(self.store.keep_in_flight, context, work)
            if self.store.unsaved and not update_interrupted(work):  # the next start has the weights before it
                await self._save("stop", work)
        except (OSError, JournalError) as error:
            sentence = f"No checkpoint at the end; finished rounds are in the log. {error}"
            with contextlib.suppress(JournalError):
                await self.run_control.log("error", sentence)

    async def _save(self, reason: str, work: RoundWork) -> None:
        """Save and publish a checkpoint; a round that is in the weights is finished first. Raises OSError, JournalError."""
        await self._finish(work)
        self.bus.stream(self.activity.begin("checkpoint", self.rounds_done, "Saving"))
        await self.host.call(self.store.save, reason)
        await self.store.tell()
        self.bus.stream(self.activity.end("Saving"))

    @property
    def _watched(self) -> bool:
        """The guard has something to do before the next round; alone, only what a session in a swarm left."""
        return (self.setup.exchange is not None or self._left_by_swarm) and self._guarded.busy

    @property
    def _guarded(self) -> RollbackGuard:
        assert self.guard is not None
        return self.guard

    async def _round(self, context: RoundContext, work: RoundWork) -> None:
        """Run the phases that are still missing. The round may have waited for days; external groups may be switched off at
        any time."""
        if work.examples or self.examples.running(self.config):
            await self.examples.train(context, work)
            await self._finish(work)
            return
        if work.external and external_expired(work, time.time()):
            drop_external(work)
        for phase in self._phases():
            if not self._takes_external:
                drop_external(work)
            await phase(context, work)
        await self._finish(work)

    def _phases(self) -> Iterator[Callable[[RoundContext, RoundWork], Awaitable[None]]]:
        """The phases of a round; a node alone has no exchange."""
        yield from (
            round_phases.sample_questions,
            round_phases.generate_groups,
            round_phases.score_groups,
        )
        if self.setup.exchange is not None:
            yield round_phases.share_groups
        yield update_policy

    @property
    def _takes_external(self) -> bool:
        """Whether the round may use groups of others."""
        return self.setup.exchange is not None and self._guarded.taking

    def _swarm_news(self, work: RoundWork) -> list[SwarmUpdated]:
        """What the exchange says once a round has used its groups."""
        if self.setup.exchange is None:
            return []
        news = self.setup.exchange.used([g for g in work.trained if g.external], len(work.trained))
        return [news] if news else []

    async def _finish(self, work: RoundWork) -> None:
        """Log and publish a round that is in the weights. If the disk refuses, it is retried later, and nothing is done
        twice. Raises OSError, JournalError."""
        if work.stats is not None and work.round == self.rounds_done and work.examples:
            done = self.examples.finished(work)
            await asyncio.to_thread(self.store.finished, work, [done], set(self.store.solved))
            self.counts = self.counts.after(done)
            self.examples.trained(done)
            work.untold = (done,)
        elif work.stats is not None and work.round == self.rounds_done:
            solved, external_wanted = set(self.store.solved), self.config.external_groups if self._takes_external else 0
            events = self.firsts.told(
                stamp_round(record_round(work, external_wanted, solved), time.time()), work.external or ()
            )
            await asyncio.to_thread(self.store.finished, work, events, solved)
            self.counts = functools.reduce(TrainingCounts.after, events, self.counts)
            work.untold = (*events, *self._swarm_news(work), *cut_off(work.completions or [], work.round))
            for event in events:
                work.untold += tuple(self.stalled.after(event)) if isinstance(event, RoundFinished) else ()
            if self.stalled.mastered and self.setup.exchange is None and not self.config.rounds:
                self._ended = MASTERED
        if untold := work.untold:
            await self.bus.publish(*untold)
            work.untold = ()
            self.firsts.published(untold)
            self.pace.count(untold)
            self.retention.round_done(self.rounds_done)

    async def _examine(self, examiner: Evaluator, items: int) -> None:
        doing = "Held-out evaluation" if self.rounds_done else "Measuring the untrained model, to compare with later"
        work = examiner.examine(self.rounds_done, items, self._evaluating(doing))
        event = await self._guarded.attempt("held-out evaluation", work)
        self.bus.stream(self.activity.end(doing))
        self._evaluate_next = 0
        if event is not None:
            await self._guarded.evaluated(event, self.rounds_done)
        await self.store.tell()

    async def _attend(self) -> None:
        doing = "Looking closer at a held-out result that fell"
        await self._guarded.attend(self.rounds_done, self._evaluating(doing))
        await self.store.tell()
        await self._recount()
        self.bus.stream(self.activity.end(doing))

    def _evaluating(self, sentence: str) -> Callable[[float], None]:
        """Begin the phase; returns a function that publishes its progress."""
        self.bus.stream(self.activity.begin("evaluate", self.rounds_done, sentence))
        return lambda fraction: self.bus.stream(self.activity.progress(fraction, sentence))
