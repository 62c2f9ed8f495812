"""Examples first, then practice: verified texts, the rounds that imitate them, a reading after every pass, and the end of the
phase."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from sapo_backends.base import PolicyUpdate, Sampling, TokenSequence
from sapo_backends.errors import Cancelled
from sapo_swarm.algorithms import examples_rate
from sapo_swarm.config import RunConfig
from sapo_swarm.events import ExamplesRead, LogLine, RoundFinished, TrialMeasured
from sapo_swarm.node import known_successes
from sapo_swarm.node.base_trial import (
    BaseTrial,
    Show,
    StoredTrials,
    no_questions,
    plan_of,
    sentence_of,
    sources_in_words,
)
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.evaluation import EvaluationProgress, sample_completions
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.rollouts import Table, score_completions
from sapo_swarm.node.round_phases import RoundContext, RoundWork, UpdateCall, round_seed
from sapo_swarm.node.training_count import LINEAGE, find_lineage
from sapo_swarm.node.verified_examples import (
    ExampleSource,
    VerifiedExample,
    as_sample,
    cut_into_batches,
    source_of,
)
from sapo_swarm.tasks.catalogue import is_own, new_tokens, task_tokens
from sapo_swarm.tasks.own import library
from sapo_swarm.types import finite_or_none

if TYPE_CHECKING:
    pass

# The examples phase: rounds that imitate verified texts, a reading after every pass, and the end of the phase.
#
# Its whole state is in the journal (the trial, its readings, its rounds) and in the checkpoint (rounds that led to the
# weights): a node that was killed continues with the next batch. Example rounds are like other rounds for the update
# log, the checkpoints and the charts; they do not count towards the planned rounds.

TAUGHT = ("starter", "starter-1m", "fake")
"""Bases that were taught the form of an answer before they were bundled: they need no trial."""
LONG_S, MOST_PASSES = 600.0, 12
"""After LONG_S seconds of work the phase ends at the first reading without a gain, after MOST_PASSES in any case. A
machine that is slow or busy needs more minutes, not fewer examples."""
READ_MOST, READ_LEAST = 16, 12
"""Most and fewest steps between two readings (of large tables not every pass is read): with 112 rows a pass has seven steps,
too few to move the 16 set-aside rows by more than chance, and the phase ended at 70 % of what it reaches at 81."""
ENOUGH_RIGHT = 0.98
PATIENCE, PATIENCE_HIGH, HIGH = 3, 2, 0.9
"""The phase ends after PATIENCE consecutive readings without a gain; after PATIENCE_HIGH once the share of right answers
reaches HIGH."""
SMALLER = 0.5
"""Factor on the step size after each consecutive reading without a gain: with the full step a table of 224 rewritten notes
went from 22 to 17 of 28 right between two passes."""
LIKELIER = 0.02
"""A mean log-probability of the right answers that is nearer to 0 by this share is a gain too: before the first answer is
right, nothing else shows learning."""
ROWS_AT_ONCE = 32
"""Completions in one call of a reading; progress is published between calls."""
LOOK_EVERY = 32
"""Every LOOK_EVERY rounds of practice, those rounds decide whether successes are to be imitated."""
RARE = 0.1
"""Below this share of questions with both right and wrong answers, practice has hardly anything to learn from."""
ENOUGH_KNOWN = 16
"""Questions with a known success that a phase needs if the tasks provide no answers; a later phase needs as many new ones."""
SUFFICES = 0.8
"""If at least this share of the set-aside rows is right after the phase, practice does not start unasked: on two tables it
added nothing over the same number of seconds of examples (docs/benchmarks/practice-worth.md)."""
LEAST_LIMIT, SPARE = 24, 1.5
"""Token limit of an answer after the phase: LEAST_LIMIT at least, else SPARE times the longest verified one."""


@dataclass
class _Reading:
    """Mutable: the progress of one reading; an interrupted reading continues from here.

    greedy: the answer to each set-aside row at temperature 0; groups: for the first GROUPS_READ of them, a group at the
    training temperature.
    """

    greedy: Table = field(default_factory=list)
    logprob: float | None = None
    seconds: float = 0.0
    _begun: EvaluationProgress = field(default_factory=EvaluationProgress)

    async def answer(self, context: RoundContext, apart: Sequence[VerifiedExample], show: Show) -> None:
        """Everything the model has to do for the reading. Raises Cancelled, BackendError."""
        config, engine = context.config, context.host.engine
        if not apart:
            return
        if self.logprob is None:
            samples = [sample for example in apart if (sample := as_sample(context, example)) is not None]
            sequences = [TokenSequence(sample.prompt, sample.completion) for sample in samples]
            rows = await context.host.call(engine.logprobs, sequences, 1.0)
            values = [value for sample, row in zip(samples, rows, strict=True) for value in sample.masked(row)]
            self.logprob = finite_or_none(sum(values) / len(values)) if values else None
        while len(self.greedy) < len(apart):
            show(len(self.greedy) / len(apart))
            self.greedy += await sample_completions(
                context.host,
                context.scorer,
                [example.question for example in apart[len(self.greedy) :][:ROWS_AT_ONCE]],
                Sampling(0.0, 1.0, config.max_new_tokens),
                1,
                round_seed(context.node_key, config.seed, len(self.greedy), "examples-read"),
                partial(new_tokens, config),
                self._begun,
                context.portion,
            )
            self._begun = EvaluationProgress()

    async def right(self, context: RoundContext, apart: Sequence[VerifiedExample]) -> int:
        """Rows right at temperature 0. Raises ScorerUnavailable."""
        questions = [example.question for example in apart]
        if not questions:
            return 0
        results = await score_completions(context.host.engine.tokenizer, context.scorer, questions, self.greedy)
        return sum(scored.rewards[0] == 1.0 for scored, *_ in results)


@dataclass
class ExamplesPhase:
    """Mutable; belongs to the run's journal and bus. folder: the model's; written, trials: see NodeSetup. steps: rounds of
    examples that led to the weights, `before` of them in an earlier phase. readings, tokens, seconds: of the newest phase.
    ending: what to say if the phase ended in this session and practice need not follow. Call open() before anything else."""

    journal: Journal
    bus: EventBus
    folder: Path
    written: Path | None = None
    trials: StoredTrials | None = None
    trial: TrialMeasured | None = None
    readings: list[ExamplesRead] = field(default_factory=list)
    steps: int = 0
    before: int = 0
    tokens: int = 0
    seconds: float = 0.0
    source: ExampleSource | None = None
    ending: str = ""
    _steps_of_a_pass: int = 0
    _measuring: BaseTrial = field(default_factory=BaseTrial)
    _reading: _Reading | None = None
    _again: bool = False
    _known: Sequence[known_successes.KnownSuccess] | None = None

    async def open(self, rounds_done: int) -> None:
        """Read the phase's progress from the journal. rounds_done: running number of the weights; what did not lead to them
        does not count. Raises JournalError."""
        events = await asyncio.to_thread(self.journal.read, 0, ("base_trial", "examples"))
        self.trial = next((e for e in reversed(events) if isinstance(e, TrialMeasured)), None)
        if not events:  # most models have no such phase, and thousands of rounds
            self.readings = []
            return
        done = await asyncio.to_thread(self.journal.read, 0, LINEAGE)
        led_here = find_lineage(done, rounds_done)
        readings = [e for e in events if isinstance(e, ExamplesRead) and led_here(e.seq, e.round)]
        earlier = [e for e in readings if self.trial is not None and e.seq < self.trial.seq]
        self.readings = readings[len(earlier) :]
        if self.trial is None and not self.readings:
            return
        last = self.readings[-1] if self.readings else None
        self.before = earlier[-1].step if earlier else 0
        self.steps, self.tokens, self.seconds = (
            (last.step, last.tokens, last.seconds) if last else (self.before, 0, 0.0)
        )
        if last is not None and last.over:
            return
        since = last.round if last else earlier[-1].round if earlier else 0
        trained = [e for e in done if isinstance(e, RoundFinished) and led_here(e.seq, e.round + 1)]
        newest = {e.round: e for e in trained}  # one that a kill undid is there twice
        for number, event in newest.items():
            if event.examples and since <= number < rounds_done:
                self._count(event)

    def _count(self, event: RoundFinished) -> None:
        self.steps += event.covers
        self.tokens += event.tokens_trained
        self.seconds += sum(event.seconds.values())

    @property
    def over(self) -> bool:
        """The phase took place and has ended."""
        return bool(self.readings) and self.readings[-1].over

    def running(self, config: RunConfig) -> bool:
        """Whether its rounds come next."""
        if config.examples == "off" or self.over or self.trial is None:
            return False
        return self.trial.plan in ("examples", "only") or (config.examples == "only" and self.trial.examples > 0)

    def doing(self, config: RunConfig) -> str:
        """What the status says while its rounds come next; "" otherwise."""
        if not self.running(config):
            return ""
        last = self.readings[-1] if self.readings else None
        return (
            f"Working on examples · {last.right} of {last.items} right"
            if last and last.items
            else "Working on examples"
        )

    # -- the trial -------------------------------------------------------------------------------------------------

    def trial_due(self, context: RoundContext, rounds_done: int) -> bool:
        """Whether to try the base now: before the first round, unless it was taught what an answer looks like."""
        config, info = context.config, context.host.engine.info
        if self._again:
            return True
        if self.trial is not None or self.readings or not info.trainable:
            return False
        taught = config.model.partition(":")[0] in TAUGHT
        return config.examples == "only" or (not rounds_done and not taught)

    async def try_base(self, context: RoundContext, rounds_done: int) -> TrialMeasured:
        """The published trial, with what follows from it. Raises Cancelled, BackendError, ScorerUnavailable, JournalError."""
        detail = f"Trying the {'model' if self._again else 'base'} on a few training questions"
        context.stream(context.activity.begin("trial", rounds_done, detail))

        def show(part: float) -> None:
            context.stream(context.activity.progress(part, detail))

        counts = await self._counts(context, rounds_done, show)
        source = await self._opened(context)
        why_none = reason_without_examples(context)
        examples = [] if why_none or context.config.examples == "off" else await source.of_pass(0)
        sources = Counter(source_of(example) for example in examples)
        if (
            context.config.examples == "auto"
            and not sources["table"] + sources["task"]
            and len(examples) < ENOUGH_KNOWN
        ):
            examples, sources = [], Counter()
        if not why_none and context.config.examples == "off":
            why_none = "examples are switched off (examples = off)."
        elif not examples and not why_none:
            why_none = "its tasks give no answers that pass their own verifiers."
        if counts is None:
            counts = no_questions(context.config)
        plan = plan_of(context.config, counts, len(examples), why_none)
        imitates = plan in ("examples", "only")
        limits = answer_limits(context, [*examples, *source.apart]) if imitates else {}
        limits = (self.trial.limits if self.trial else {}) | limits  # those of an earlier phase still apply
        sentence = sentence_of(counts, plan, why_none)
        if imitates:
            sentence = f"{sentence} {sources_in_words(sources, len(source.apart))}"
        changes = {
            "round": rounds_done,
            "examples": len(examples),
            "sources": dict(sources),
            "plan": plan,
            "limits": limits,
            "sentence": sentence,
        }
        event = msgspec.structs.replace(counts, **changes)
        await self.bus.publish(event)
        self._begin(event)
        if imitates:
            await self._keep_known(event)
        if source.rejected and examples:
            text = (
                f"{source.rejected} of {source.rejected + len(examples)} training questions are no examples: their answer does "
                "not pass its own verifier, they are too long, or they are held out."
            )
            await self.bus.publish(LogLine(level="info", text=text))
        context.stream(context.activity.end(sentence))
        self._measuring = BaseTrial()
        return event

    async def _counts(self, context: RoundContext, rounds_done: int, show: Show) -> TrialMeasured | None:
        """What a trial of the model shows: of a base, what an earlier one under the same conditions showed."""
        trials = None if self._again or rounds_done else self.trials
        if trials is not None and (known := await asyncio.to_thread(trials.find, context.config, context.swarm)):
            return msgspec.structs.replace(known, time=0.0, tried_at=known.time)
        counts = await self._measuring.measure(context, show)
        if trials is not None and counts is not None:
            await asyncio.to_thread(trials.store, context.config, context.swarm, counts, time.time())
        return counts

    def _begin(self, trial: TrialMeasured) -> None:
        """Start a phase with this trial."""
        self.trial, self._again = trial, False
        self.before, self.readings, self.tokens, self.seconds, self._steps_of_a_pass = self.steps, [], 0, 0.0, 0

    async def reconsider(self, context: RoundContext, rounds_done: int, others: bool) -> None:
        """After each round of practice: try the model again if its questions taught hardly anything and there are enough new
        successes to imitate. others: whether other nodes' successes count. A function of the journal, and of what the person
        wrote. Raises ScorerUnavailable, JournalError."""
        trial, practised = self.trial, rounds_done - self.steps
        if self._again or context.config.examples != "auto" or trial is None or self.running(context.config):
            return
        if trial.round >= rounds_done or not practised or practised % LOOK_EVERY or reason_without_examples(context):
            return
        rounds = await asyncio.to_thread(self.journal.read, 0, ("round",), LOOK_EVERY)
        newest = [e for e in rounds if isinstance(e, RoundFinished) and not e.examples]
        if sum(e.nonzero_groups for e in newest) >= RARE * sum(e.local_groups for e in newest):
            return
        successes = await self._collect(context, others)
        imitated = await asyncio.to_thread(known_successes.read_kept, self.folder)
        old = {success.question.prompt_sha256 for success in imitated.successes} if imitated else set()
        if sum(success.question.prompt_sha256 not in old for success in successes) >= ENOUGH_KNOWN:
            self._again, self._known, self.source = True, successes, None

    async def _collect(self, context: RoundContext, others: bool) -> list[known_successes.KnownSuccess]:
        """The current successes, verified."""
        if reason_without_examples(context):
            return []
        events = await asyncio.to_thread(self.journal.read, 0, ("group",), known_successes.GROUPS_READ)
        written = await asyncio.to_thread(known_successes.read_written, self.written)
        config = context.config
        texts = known_successes.collect_candidates(events, written, config.tasks, others, config.answer_format)
        return await known_successes.verify_candidates(context.scorer, texts, context.excluded)

    async def _keep_known(self, trial: TrialMeasured) -> None:
        """If the node is killed before this or the disk refuses, the next start finds the same successes in the journal."""
        successes = known_successes.KeptSuccesses(trial.round, tuple(self._known or ()))
        try:
            await asyncio.to_thread(known_successes.write_kept, self.folder, successes)
        except OSError as error:
            await self.bus.publish(LogLine(level="warning", text=f"The examples are not kept on the disk: {error}"))

    async def _opened(self, context: RoundContext) -> ExampleSource:
        if self._known is None:
            saved = await asyncio.to_thread(known_successes.read_kept, self.folder) if self.trial else None
            if saved is not None and self.trial is not None and saved.round == self.trial.round:
                self._known = saved.successes
            else:
                self._known = await self._collect(context, others=context.config.external_groups > 0)
        if self.source is None:
            source = ExampleSource(
                context.config,
                context.node_key,
                context.swarm,
                context.scorer,
                context.excluded,
                lambda example: as_sample(context, example) is not None,
                self._known,
            )
            await source.open()
            self.source = source
        return self.source

    # -- its rounds ------------------------------------------------------------------------------------------------

    async def train(self, context: RoundContext, work: RoundWork) -> None:
        """One step on the next batch of verified texts. Raises Cancelled (before the step), BackendError."""
        if work.stats is not None:
            return
        source, engine = await self._opened(context), context.host.engine
        detail = self._progress_words()
        context.begin(work, "examples", detail)
        with work.timed("examples"):
            batch = await self._batch(source)
            samples = [sample for example in batch if (sample := as_sample(context, example)) is not None]
            work.examples = max(1, len(samples))
            rate = examples_rate(engine.info.method, engine.info.parameters)
            policy = PolicyUpdate(rate * SMALLER ** without_gain(self.readings))
            seed = round_seed(context.node_key, context.config.seed, work.round, "examples-update")
            work.call = call = UpdateCall(samples, policy, seed)
            tell = context.from_thread(lambda fraction: (fraction, detail))
            try:
                work.stats = await context.host.call(
                    engine.update, call.batch, call.policy, call.seed, context.host.cancel, tell
                )
            except Cancelled:
                work.call = None
                raise
        context.end()

    async def _batch(self, source: ExampleSource) -> Sequence[VerifiedExample]:
        """The batch of the next step. Each pass has as many steps as the first."""
        number, place = divmod(self.steps - self.before, self._steps_of_a_pass)
        batches = cut_into_batches(await source.of_pass(number))
        return batches[place % len(batches)]

    def finished(self, work: RoundWork) -> RoundFinished:
        """The figures of an example round that is in the weights."""
        assert work.stats is not None
        stats = work.stats
        return RoundFinished(
            time=time.time(),
            round=work.round,
            reward_local=None,
            reward_external=None,
            reward_batch=None,
            local_groups=0,
            external_groups=0,
            external_wanted=0,
            nonzero_groups=0,
            truncated=0,
            well_formed=0,
            completions=0,
            tokens_generated=0,
            tokens_trained=stats.tokens_local + stats.tokens_external,
            bytes_sent=0,
            bytes_received=0,
            loss=finite_or_none(-stats.logprob_local),
            grad_norm=finite_or_none(stats.grad_norm),
            entropy=finite_or_none(stats.entropy),
            clip_fraction=finite_or_none(stats.clip_fraction),
            logprob_local=finite_or_none(stats.logprob_local),
            logprob_external=None,
            ratio_max=finite_or_none(stats.ratio_max),
            task_rewards={},
            seconds=dict(work.seconds),
            examples=work.examples,
        )

    def trained(self, event: RoundFinished) -> None:
        """Record a round that is in the weights and in the update log."""
        self._count(event)

    def weights_replaced(self) -> None:
        """Earlier weights were restored: drop what the replaced ones answered in a trial or a reading."""
        self._measuring, self._reading = BaseTrial(), None

    # -- its readings ----------------------------------------------------------------------------------------------

    def reading_due(self, config: RunConfig) -> bool:
        """Whether the set-aside rows are to be read now."""
        steps = self.steps - self.before
        if not self.running(config) or not steps or not self._steps_of_a_pass:
            return False
        if self.readings and self.readings[-1].step == self.steps:
            return False
        return steps % steps_between_readings(self._steps_of_a_pass) == 0

    async def prepare(self, context: RoundContext) -> None:
        """Determine how long a pass is; call before reading_due() and train(). Raises ScorerUnavailable."""
        if self.running(context.config) and not self._steps_of_a_pass:
            source = await self._opened(context)
            self._steps_of_a_pass = len(cut_into_batches(await source.of_pass(0)))

    async def read(self, context: RoundContext, rounds_done: int) -> ExamplesRead:
        """Answer the set-aside rows, decide whether the phase is over, and publish that. Raises Cancelled, BackendError."""
        source, detail = await self._opened(context), self._progress_words("Reading the rows set aside")
        context.stream(context.activity.begin("examples", rounds_done, detail))
        reading = self._reading = self._reading or _Reading()
        began = time.perf_counter()

        def show(part: float) -> None:
            context.stream(context.activity.progress(part, detail))

        try:
            await reading.answer(context, source.apart, show)
            right = await reading.right(context, source.apart)
        finally:
            reading.seconds += time.perf_counter() - began
        self.seconds += reading.seconds
        event = ExamplesRead(
            round=rounds_done,
            step=self.steps,
            passes=(self.steps - self.before) / max(1, self._steps_of_a_pass),
            right=right,
            items=len(source.apart),
            logprob=reading.logprob,
            tokens=self.tokens,
            seconds=self.seconds,
            over=False,
            sentence="",
        )
        why = why_over([*self.readings, event])
        event = msgspec.structs.replace(event, over=bool(why), sentence=reading_sentence(event, why))
        await self.bus.publish(event)
        self.readings.append(event)
        if event.over and source.bounded and event.items and event.right >= SUFFICES * event.items:
            self.ending = f"Finished: {event.right} of {event.items} set-aside rows right · space goes on"
        self._reading = None
        context.stream(context.activity.end(event.sentence))
        return event

    def _progress_words(self, doing: str = "Examples") -> str:
        passes, step = divmod(self.steps - self.before, max(1, self._steps_of_a_pass))
        text = f"{doing}: pass {passes + 1}, step {step + 1} of {max(1, self._steps_of_a_pass)}"
        last = self.readings[-1] if self.readings else None
        return f"{text} · {last.right} of {last.items} right on rows set aside" if last and last.items else text


def steps_between_readings(steps_of_a_pass: int) -> int:
    """One pass; if passes are short, as many as give READ_LEAST steps; READ_MOST if a pass is longer than that."""
    if steps_of_a_pass >= READ_MOST:
        return READ_MOST
    return steps_of_a_pass * math.ceil(READ_LEAST / steps_of_a_pass)


def why_over(readings: Sequence[ExamplesRead]) -> str:
    """Why the phase ends with the last of these readings; "" if it continues."""
    last = readings[-1]
    share = last.right / last.items if last.items else 0.0
    if last.items and share >= ENOUGH_RIGHT:
        return f"{'all' if last.right == last.items else 'nearly all'} rows set aside are right"
    if last.seconds >= LONG_S and without_gain(readings):
        return f"it has taken {format_duration(LONG_S)}, and the last reading brought nothing more"
    if last.passes >= MOST_PASSES:
        return f"it had its {MOST_PASSES} passes"
    if len(readings) > 1 and without_gain(readings) >= (PATIENCE_HIGH if share >= HIGH else PATIENCE):
        return "more passes bring nothing more"
    return ""


def without_gain(readings: Sequence[ExamplesRead]) -> int:
    """How many of the last readings were no better than an earlier one."""
    best, likely, count = -1, -math.inf, 0
    for reading in readings:
        likelier = reading.logprob is not None and reading.logprob > likely + LIKELIER * abs(likely)
        counts = likelier and reading.right < HIGH * reading.items
        count = 0 if reading.right > best or counts else count + 1
        best = max(best, reading.right)
        likely = likely if reading.logprob is None else max(likely, reading.logprob)
    return count


def reading_sentence(event: ExamplesRead, why: str) -> str:
    """A reading in words."""
    passes = (
        f"{event.passes:.0f} pass{'' if round(event.passes) == 1 else 'es'}"
        if event.passes >= 1
        else f"{event.step} steps"
    )
    right = f"{event.right} of {event.items} right on rows set aside" if event.items else "no rows set aside to read"
    text = f"Examples, {passes}: {right}"
    return f"{text}. The phase is over after {format_duration(event.seconds)}: {why}." if why else text


def reason_without_examples(context: RoundContext) -> str:
    """Why there can be no examples at all, as the end of a sentence; "" if there can."""
    config = context.config
    if context.scorer.in_reasoning or config.thinking == "on":
        return "this model reasons before it answers, and no task knows the reasoning."
    without = [is_own(task) and bool((s := library.load_task(task).spec).turns or s.rubric) for task in config.tasks]
    return "an environment or a judge decides here, and no text is known to be right." if all(without) else ""


def answer_limits(context: RoundContext, examples: Sequence[VerifiedExample]) -> dict[str, int]:
    """Task -> token limit of an answer from now on, by the longest verified one. {} if the person chose a limit; a task's own
    limit stays."""
    config, engine = context.config, context.host.engine
    if config.max_new_tokens != RunConfig().max_new_tokens:
        return {}
    limits: dict[str, int] = {}
    for task in config.tasks:
        if task in task_tokens(config):
            continue
        if is_own(task) and (tokens := library.load_task(task).spec.max_new_tokens):
            limits[task] = tokens
            continue
        texts = [example.text for example in examples if example.question.ref.dataset == task]
        longest = max((len(engine.tokenizer.encode_text(text)) + 1 for text in texts), default=0)
        if longest:
            limits[task] = min(max(LEAST_LIMIT, math.ceil(SPARE * longest)), engine.info.context_length // 2)
    return limits
