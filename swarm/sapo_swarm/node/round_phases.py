"""One round (SAPO, algorithm 1): what it works with, its work in progress, and its phases: plan, generate, score, exchange,
update, record. What is done stays done, whatever interrupts."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Protocol

import msgspec
import numpy as np

from sapo_backends.base import Completion, PolicyUpdate, RowSeed, Sampling, TokenSequence, TrainSample, UpdateStats
from sapo_backends.errors import Cancelled
from sapo_swarm.algorithms import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, GroupRecorded, Phase, PhaseName, RoundFinished, State, SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.rollouts import (
    NOTHING,
    BatchSizer,
    Place,
    answer_turns,
    encode_rollout,
    extend_completions,
    is_turn_over,
    next_call,
    prompt_ids,
    score_local_groups,
    turn_length,
)
from sapo_swarm.sapo import adaptive_sampling
from sapo_swarm.sapo.adaptive_sampling import SuccessPosterior
from sapo_swarm.sapo.training_batch import (
    ReplayEntry,
    assemble_batch,
    sample_replay,
    update_replay_entries,
    with_advantages,
)
from sapo_swarm.scoring.rubric import RubricJudge
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import (
    CATALOGUE,
    LIBRARY_PRESET,
    generator_of,
    is_own,
    new_tokens,
    preset_of,
    train_seed,
)
from sapo_swarm.tasks.own import library
from sapo_swarm.types import STRICT, Group, Question, RewardRule, TaskRef, finite_or_none

_SMOOTH = 0.3
"""Weight of the newest round in the typical duration of a phase."""


@dataclass
class NodeActivity:
    """Mutable: what the node is doing now. Written on the event loop only."""

    clock: Callable[[], float] = time.monotonic
    state: State = "starting"
    sentence: str = "Starting"
    reason: str = ""
    since: float = field(default_factory=time.time)
    round: int = 0
    phase: PhaseName | None = None
    fraction: float = 0.0
    eta_s: float = -1.0
    _phase_began: float = 0.0
    _done_before: float = 0.0
    _timed: bool = True
    _typical: dict[str, float] = field(default_factory=dict)

    def begin(self, phase: PhaseName, round_number: int, detail: str, done: float = 0.0, timed: bool = True) -> Phase:
        """Begin a phase; returns its event. done: the fraction done in earlier parts of it. timed: False where a fraction of the
        work says little of the time, so that no time left is estimated."""
        self.phase, self.round, self._phase_began = phase, round_number, self.clock()
        self._done_before, self._timed = done, timed
        return self.progress(done, detail)

    def progress(self, fraction: float, detail: str) -> Phase:
        """The event for a fraction of the current phase; eta from the fraction or from earlier rounds."""
        assert self.phase is not None
        elapsed = self.clock() - self._phase_began
        typical = self._typical.get(self.phase)
        done_now = fraction - self._done_before
        if not self._timed:
            self.eta_s = -1.0
        elif done_now > 0.05:
            self.eta_s = elapsed * (1 - fraction) / done_now
        else:
            self.eta_s = -1.0 if typical is None else max(0.0, typical - elapsed)
        self.fraction, self.sentence = fraction, detail or self.sentence
        return Phase(round=self.round, phase=self.phase, fraction=fraction, eta_s=self.eta_s, detail=detail)

    def end(self, detail: str) -> Phase:
        """End the phase; returns its event, and the duration goes into later estimates."""
        assert self.phase is not None
        took = self.clock() - self._phase_began
        before = self._typical.get(self.phase, took)
        self._typical[self.phase] = before + _SMOOTH * (took - before)
        event = self.progress(1.0, detail)
        self.eta_s = 0.0
        return event


class ReplayBuffer(msgspec.Struct):
    """Mutable. replay: successes that can be trained on again. difficulty: task/preset -> how often it is solved.

    Each is filled only if a setting uses it.
    """

    replay: list[ReplayEntry] = []
    difficulty: dict[str, SuccessPosterior] = {}

    def observe(self, config: RunConfig, round_number: int, groups: Sequence[Group]) -> None:
        """Add the local groups of a round, once."""
        if config.replay_groups:
            self.replay = update_replay_entries(self.replay, round_number, groups, config.replay_half_life)
        if config.curriculum != "uniform":
            adaptive_sampling.update_posteriors(self.difficulty, groups)


def restore_replay_buffer(config: RunConfig, journal: Journal, rounds_done: int) -> ReplayBuffer:
    """The buffer after this many rounds, from the groups of the run's tasks that are still in the journal (keep_groups); a
    task that is no longer in the run may be gone. Raises JournalError."""
    memory = ReplayBuffer()
    if not config.replay_groups and config.curriculum == "uniform":
        return memory
    by_round: dict[int, dict[str, Group]] = {}
    for event in journal.read(kinds=("group",)):
        if not isinstance(event, GroupRecorded) or event.round >= rounds_done:
            continue
        group, ref = event.group, event.group.question.ref
        if not group.external and ref.dataset in config.tasks:
            by_round.setdefault(event.round, {})[ref.label] = group
    for round_number, groups in sorted(by_round.items()):
        memory.observe(config, round_number, tuple(groups.values()))
    return memory


_PROGRESS_S = 0.2
"""Seconds between two progress events of one phase."""


@dataclass(frozen=True, slots=True)
class UpdateCall:
    """Input of the engine's update in a round: enough to take the same step again."""

    batch: Sequence[TrainSample]
    policy: PolicyUpdate
    seed: int


@dataclass
class RoundWork:
    """Mutable on purpose: one object per round.

    questions[i] belongs to prompts[i], completions[i] and local[i]; partial[i]: completions sampled so far, while completions
    is None; over: positions (question, completion) of episodes without a further turn. taken: when the external groups were
    taken, in Unix time. seconds: wall time of work by phase, without pauses. replayed: groups of earlier rounds that the
    update used besides `trained`. untold: events of the finished round that are not in the journal yet. examples: verified
    texts of the update, in an example round. drift: see measure_drift.
    """

    round: int
    questions: list[Question] | None = None
    prompts: list[list[int]] = field(default_factory=list)
    partial: list[list[Completion]] = field(default_factory=list)
    over: set[tuple[int, int]] = field(default_factory=set)
    completions: list[list[Completion]] | None = None
    local: list[Group] | None = None
    well_formed: int = 0
    judge_tokens: int = 0
    external: tuple[Group, ...] | None = None
    taken: float = 0.0
    bytes_sent: int = 0
    bytes_received: int = 0
    call: UpdateCall | None = None
    stats: UpdateStats | None = None
    trained: list[Group] = field(default_factory=list)
    replayed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)
    untold: tuple[Event, ...] = ()
    examples: int = 0
    drift: Mapping[TaskRef, Sequence[float]] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: PhaseName) -> Iterator[None]:
        """Add the time spent inside to the phase's seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start

    @contextmanager
    def judging(self, judge: RubricJudge | None) -> Iterator[None]:
        """Add what the judge reads and writes inside to judge_tokens."""
        before = judge.tokens if judge else 0
        try:
            yield
        finally:
            self.judge_tokens += judge.tokens - before if judge else 0


class ReceivedGroups(msgspec.Struct, frozen=True):
    """Verified, locally scored groups of other nodes; bytes on the wire since the last round."""

    groups: tuple[Group, ...] = ()
    bytes_sent: int = 0
    bytes_received: int = 0


class GroupExchange(Protocol):
    """Shares local groups and fetches external ones. Never raises for a network fault: it returns what there is."""

    def attach(self, host: EngineThread, scorer: Scorer, excluded: frozenset[str]) -> None:
        """Called once the engine is loaded: received groups are judged with these."""
        ...

    def prompts_to_sample(self, local: int, external: int) -> int:
        """Prompts to sample for the next batch of I = local and J = external groups, given what the pool holds."""
        ...

    def take(self, taking: bool) -> None:
        """Whether external groups are wanted at all; if not, the pool is emptied. Local ones are shared either way."""
        ...

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> ReceivedGroups:
        """Hand over this round's local groups; returns what the pool holds for the batch."""
        ...

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        """These external groups went into a batch of this size; returns the swarm's news, if there is any."""
        ...

    async def close(self) -> None:
        """End the exchange."""
        ...


@dataclass(frozen=True)
class RoundContext:
    """What a round works with; constant over a run. stream takes ephemeral events on the event loop. exchange: None: alone.

    per_source: external groups of one node in a batch at most (None: no cap). memory: local
    groups of earlier rounds, for replay and the curriculum. rule: how completions
    are rewarded. excluded: hashes of prompts that must not be trained on
    (node.evaluation.held_out_exclusion). portion: how much is sampled at once. examples_rounds: steps of examples before
    practice. before_practice: what the running number of a round exceeds the rounds of practice in the weights by.
    """

    config: RunConfig
    node_key: str
    swarm: str
    host: EngineThread
    scorer: Scorer
    exchange: GroupExchange | None
    algorithm: Algorithm
    policy: PolicyUpdate
    activity: NodeActivity
    stream: Callable[[Phase], None]
    model_label: str
    per_source: int | None = 1
    memory: ReplayBuffer = field(default_factory=ReplayBuffer)
    rule: RewardRule = STRICT
    excluded: frozenset[str] = frozenset()
    portion: BatchSizer = field(default_factory=BatchSizer)
    examples_rounds: int = 0
    before_practice: int = 0

    @property
    def sampling(self) -> Sampling:
        """How training rollouts are sampled."""
        return Sampling(self.config.temperature, 1.0, self.config.max_new_tokens)

    def begin(self, work: RoundWork, phase: PhaseName, detail: str) -> None:
        """Publish that a phase begins."""
        self.stream(self.activity.begin(phase, work.round, detail))

    def end(self) -> None:
        """Publish that the phase is done."""
        self.stream(self.activity.end(self.activity.sentence))

    def from_thread(self, describe: Callable[..., tuple[float, str]]) -> Callable[..., None]:
        """A progress callback for the engine's thread. It reaches the event loop at most every _PROGRESS_S seconds, and rests
        there if the duty asks for it."""
        loop, last = asyncio.get_running_loop(), [0.0]

        def report(*numbers: float) -> None:
            self.host.rest()
            now = time.monotonic()
            if now - last[0] >= _PROGRESS_S:
                last[0] = now
                loop.call_soon_threadsafe(lambda: self.stream(self.activity.progress(*describe(*numbers))))

        return report


# The phases of one round (SAPO, Algorithm 1): plan, generate, score, exchange, update, record.
#
# Each looks at the work so far and does only what is missing. What a round works on is a pure function of node and
# round. An interruption loses nothing: finished completions stay, unfinished ones are continued. Every completion has
# its own random numbers (RowSeed), so that it does not matter when it is sampled, beside which others, or in how many
# pieces. On an engine whose logits do not depend on the batch (the fake one) an interrupted round equals that of an
# undisturbed run bit for bit; on others a token can differ where two computations of the same logits round differently.


def round_seed(node_key: str, seed: int, round_number: int, purpose: str) -> int:
    """A 63-bit seed for one use in one round, the same after a resume."""
    text = f"sapo-round-v1|{node_key}|{seed}|{round_number}|{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


NO_EVIDENCE: Mapping[str, SuccessPosterior] = {}


def candidate_refs(
    config: RunConfig,
    node_key: str,
    swarm: str,
    round_number: int,
    posteriors: Mapping[str, SuccessPosterior] = NO_EVIDENCE,
) -> Iterator[TaskRef]:
    """Endless fresh questions of a round: tasks sampled uniformly with replacement (SAPO, section 5), or by the posteriors of
    their success rates if config.curriculum says so.

    More than local_groups are available because some coordinates regenerate nothing.
    """
    rng = random.Random(round_seed(node_key, config.seed, round_number, "tasks"))
    choices = task_preset_pairs(config)
    weights = None
    if config.curriculum != "uniform":
        weights = adaptive_sampling.sampling_weights(
            posteriors, [adaptive_sampling.difficulty_key(*choice) for choice in choices]
        ).tolist()
    slot = 0
    while True:
        dataset, preset = rng.choice(choices) if weights is None else rng.choices(choices, weights)[0]
        seed = train_seed(node_key, swarm, round_number, slot, config.seed)
        yield TaskRef(dataset, preset, seed, generator=generator_of(dataset, swarm))
        slot += 1


def task_preset_pairs(config: RunConfig) -> list[tuple[str, str]]:
    """(task, preset) pairs that questions are sampled from. A swarm agrees on one preset. Raises UnknownTask."""
    if config.curriculum == "presets" and not config.external_groups:
        return [
            (task, preset)
            for task in config.tasks
            for preset in (library.task_levels(task) if is_own(task) else CATALOGUE[task])
            if preset != LIBRARY_PRESET or is_own(task)
        ]
    return [(task, preset_of(task, config.preset)) for task in config.tasks]


async def generate_groups(context: RoundContext, work: RoundWork) -> None:
    """Sample the missing completions of every prompt in the engine's thread. Raises Cancelled.

    Those of an environment are continued turn by turn: all rows of a turn generate together, then the environment answers
    each.
    """
    if work.completions is not None:
        return
    assert work.questions is not None
    context.begin(work, "generate", _detail(context, work))
    with work.timed("generate"):
        if not work.partial:
            work.partial = [[NOTHING] * context.config.group_size for _ in work.prompts]
        limits = token_limits(context, work)
        while True:
            while call := next_call(work.partial, limits, context.portion):
                await _sample(context, work, call)
            if not await answer_turns(
                context.host.engine, context.scorer, work.questions, work.prompts, work.partial, work.over, limits
            ):
                break
    work.completions = work.partial
    context.end()


def token_limits(context: RoundContext, work: RoundWork) -> list[int]:
    """Token limit of a completion of each prompt."""
    assert work.questions is not None
    by_task = {task: new_tokens(context.config, task) for task in {q.ref.dataset for q in work.questions}}
    return [by_task[q.ref.dataset] for q in work.questions]


async def _sample(context: RoundContext, work: RoundWork, call: Sequence[Place]) -> None:
    """Extend these completions; what is there at an interruption is added too."""
    i, j = call[0]
    seed = round_seed(context.node_key, context.config.seed, work.round, "generate")
    first = [0, *itertools.accumulate(len(row) for row in work.partial)]
    seeds = [RowSeed(seed + first[i] + j, work.partial[i][j].sampled) for i, j in call]
    left = token_limits(context, work)[i] - turn_length(work.partial[i][j])
    sampling = Sampling(context.config.temperature, 1.0, left, for_training=True)
    progress = context.from_thread(_describe(context, work))
    await extend_completions(context.host, context.portion, work.prompts, work.partial, call, sampling, seeds, progress)


def _detail(context: RoundContext, work: RoundWork) -> str:
    total = sum(map(len, work.partial)) or len(work.prompts) * context.config.group_size
    ended = _ended(work, token_limits(context, work))
    return (
        f"Generating {total} rollouts"
        if not ended
        else f"Generating {total - ended} rollouts, {ended} of {total} are kept"
    )


def _ended(work: RoundWork, most: Sequence[int]) -> int:
    """Number of finished completions; 0 before the first call."""
    return sum(is_turn_over(c, limit) for row, limit in zip(work.partial, most, strict=False) for c in row)


def _describe(context: RoundContext, work: RoundWork) -> Callable[[int, int], tuple[float, str]]:
    """Maps progress of one call to progress of the whole phase."""
    total, limits = sum(map(len, work.partial)), token_limits(context, work)
    completions = [c for row in work.partial for c in row]
    before, tokens_before = _ended(work, limits), sum(turn_length(c) for c in completions)
    whole = sum(limit * len(row) for limit, row in zip(limits, work.partial, strict=True))
    start = time.perf_counter()

    def describe(finished: int, tokens: int) -> tuple[float, str]:
        rate = tokens / max(time.perf_counter() - start, 1e-6)
        done = before + finished
        fraction = max(done / total, (tokens_before + tokens) / whole) if total else 1.0
        return min(fraction, 0.99), f"Generating {total} rollouts · {done} done · {rate:,.0f} tok/s"

    return describe


TRIES = 64
"""References tried per question of a round, on average; beyond that the round is given up;"""
HOPELESS = 8
"""it is also given up if this many per question were all useless (but not before TRIES), so that nobody waits minutes for the
error."""


class NoQuestions(Exception):
    """The task settings regenerate too few questions to work with."""


async def sample_questions(context: RoundContext, work: RoundWork) -> None:
    """Sample this round's questions and turn them into prompts. Raises NoQuestions."""
    if work.questions is not None:
        return
    config = context.config
    goal = config.local_groups + config.external_groups
    if context.exchange is not None:
        goal = context.exchange.prompts_to_sample(config.local_groups, config.external_groups)
    context.begin(work, "questions", f"Sampling {goal} questions")
    sampled: list[tuple[Question, list[int]]] = []
    left_out, reason = Counter[str](), ""
    room, tokenizer = context.host.engine.info.context_length, context.host.engine.tokenizer
    with work.timed("questions"):
        refs = candidate_refs(config, context.node_key, context.swarm, work.round, context.memory.difficulty)
        while len(sampled) < goal:
            tried = len(sampled) + left_out.total()
            if tried >= (TRIES * goal if sampled else max(HOPELESS * goal, TRIES)):
                raise NoQuestions(
                    f"Only {len(sampled)} of {goal} questions could be sampled from tasks {', '.join(config.tasks)} with preset "
                    f"{config.preset!r}. Of {tried} that were tried "
                    f"{', '.join(f'{count} {why}' for why, count in left_out.items())}. {reason}"
                    "Choose other tasks, another preset or a smaller max_new_tokens."
                )
            for question in await context.scorer.questions(list(itertools.islice(refs, goal - len(sampled)))):
                if not isinstance(question, Question):
                    left_out["could not be made"] += 1
                    reason = f"The last that could not: {question.reason} "
                elif question.prompt_sha256 in context.excluded:
                    left_out["are held out"] += 1
                elif len(ids := prompt_ids(tokenizer, context.scorer, question)) + config.max_new_tokens > room:
                    left_out[f"do not fit into {room} tokens beside an answer of {config.max_new_tokens}"] += 1
                else:
                    sampled.append((question, ids))
    work.prompts = [ids for _, ids in sampled]
    work.questions = [q for q, _ in sampled]
    context.end()


async def score_groups(context: RoundContext, work: RoundWork) -> None:
    """Reward every local completion with this node's own verifier."""
    if work.local is not None:
        return
    assert work.questions is not None
    assert work.completions is not None
    context.begin(work, "score", "Scoring")
    rule, label = context.rule, context.model_label
    with work.timed("score"), work.judging(context.scorer.judge):
        scored = await score_local_groups(
            context.host.engine.tokenizer, context.scorer, work.questions, work.completions, rule, label
        )
    work.local = [group for group, _ in scored]
    work.well_formed = sum(formed for _, formed in scored)
    context.memory.observe(context.config, work.round, work.local)
    context.end()


async def share_groups(context: RoundContext, work: RoundWork) -> None:
    """Share local groups and fetch external ones; only for a node in a swarm."""
    if work.external is not None:
        return
    assert work.local is not None
    assert context.exchange is not None
    wanted = context.config.external_groups
    if wanted:
        context.begin(work, "exchange", f"Sharing {len(work.local)} groups, asking for {wanted}")
    with work.timed("exchange"):
        received = await context.exchange.exchange(work.round, work.local, wanted)
    work.external, work.taken = received.groups, time.time()
    work.bytes_sent, work.bytes_received = received.bytes_sent, received.bytes_received
    if wanted:
        context.end()


# The update of a round, and what the finished round leaves: its groups and its figures, as events.

_NAN = float("nan")
NO_UPDATE = UpdateStats(_NAN, _NAN, 0, _NAN, _NAN, _NAN, _NAN, _NAN, 0, 0, 0.0)
"""What an engine with nothing to train reports."""


async def update_policy(context: RoundContext, work: RoundWork) -> None:
    """Assemble I local and J external groups into a batch and take the policy-gradient step.

    A node that only generates (method none) shares its groups and trains nothing.
    """
    if work.stats is not None:
        return
    if context.host.engine.info.trainable == 0:
        work.stats = NO_UPDATE
        return
    assert work.local is not None
    context.begin(work, "update", "Updating the model")
    rng = np.random.default_rng(round_seed(context.node_key, context.config.seed, work.round, "assemble"))
    with work.timed("update"):
        drift = await measure_drift(context, work)
        batch = assemble_batch(
            work.local,
            work.external or (),
            context.config.local_groups,
            context.config.external_groups,
            rng,
            context.algorithm.advantages,
            context.config.sampling,
            context.per_source,
            {ref: [DRIFT_PRICE * nats for nats in of] for ref, of in drift.items()},
        )
        samples, replayed, policy = await _practised(context, work, batch, rng)
        seed = round_seed(context.node_key, context.config.seed, work.round, "update")
        work.call = call = UpdateCall(samples, policy, seed)
        tell = context.from_thread(lambda fraction: (fraction, "Updating the model"))
        try:
            work.stats = await context.host.call(
                context.host.engine.update, call.batch, call.policy, call.seed, context.host.cancel, tell
            )
        except Cancelled:
            work.call = None  # before its first step: nothing is interrupted
            raise
    work.trained, work.replayed, work.drift = batch, len(replayed), drift
    context.end()


DRIFT_PRICE = 0.1
"""What a nat a token that the policy is away from the base takes off a reward: measured, see decision 61."""


async def measure_drift(context: RoundContext, work: RoundWork) -> dict[TaskRef, list[float]]:
    """For each local question whose task grades answers itself, by completion: how much likelier a token is under the policy
    than under the base, in nats, the mean over the tokens. Its mean over samples is the policy's KL divergence from the base.

    Empty where the base cannot answer any more (full fine-tuning), and after examples, which move the policy on purpose.
    """
    assert work.questions is not None
    assert work.completions is not None
    engine = context.host.engine
    if not engine.keeps_untrained or context.examples_rounds:
        return {}
    graded = [
        (question.ref, tuple(prompt), completions)
        for question, prompt, completions in zip(work.questions, work.prompts, work.completions, strict=True)
        if library.is_graded(question.ref)
    ]
    sequences = [TokenSequence(prompt, c.tokens) for _, prompt, completions in graded for c in completions]
    if not sequences:
        return {}

    def base_logprobs() -> list[list[float]]:
        with engine.untrained():
            return engine.logprobs(sequences, context.policy.temperature)

    base = iter(await context.host.call(base_logprobs))
    return {ref: [_drift(c, next(base)) for c in completions] for ref, _, completions in graded}


def _drift(completion: Completion, base: Sequence[float]) -> float:
    """0 for a completion without a sampled token."""
    sampled = completion.loss_mask or (True,) * len(base)
    apart = [now - before for now, before, own in zip(completion.logprobs, base, sampled, strict=True) if own]
    return _mean_of(apart)


AFTER_EXAMPLES = {"lora": 0.1, "full": 0.3}
"""By method, factor on the default learning rate for practice after an examples phase: most answers are right then, and the
few wrong ones of a batch, with normalised advantages, would pull at everything learned. Measured: decisions 48 and 52."""


def rate_share(config: RunConfig, round_number: int) -> float:
    """The share of the learning rate in a round of practice (0, 1, …): 1, or in the second half of a planned run falling
    linearly to final_rate at the last round.

    A constant rate leaves the noise of the last steps in the weights: see docs/decisions/0011-falling-rate.md.
    """
    last = config.rounds - 1
    if last < 1 or round_number <= last / 2:
        return 1.0
    return 1.0 - (1.0 - config.final_rate) * min(1.0, round_number / last * 2.0 - 1.0)


async def _practised(
    context: RoundContext, work: RoundWork, batch: Sequence[Group], rng: np.random.Generator
) -> tuple[list[TrainSample], list[Group], PolicyUpdate]:
    """The samples of a batch and of replayed groups, and the update that trains on them."""
    samples = [sample for group in batch for sample in _samples_training(context, work, group)]
    replayed = _replayed(context, work, rng)
    for group in replayed:
        samples += _samples_training(context, work, group, positive_only=True)
    if context.policy.epochs * context.policy.minibatches > 1:
        samples = await _with_old_logprobs(context, samples)
    rate = context.policy.learning_rate * rate_share(context.config, work.round - context.before_practice)
    if context.examples_rounds and not context.config.learning_rate:
        rate *= AFTER_EXAMPLES[context.host.engine.info.method]
    return samples, replayed, replace(context.policy, learning_rate=rate)


def _replayed(context: RoundContext, work: RoundWork, rng: np.random.Generator) -> list[Group]:
    """Local groups of earlier rounds to train on again, with advantages."""
    config = context.config
    if not config.replay_groups:
        return []
    past = sample_replay(context.memory.replay, work.round, config.replay_groups, config.replay_half_life, rng)
    return [with_advantages(group, context.algorithm.advantages) for group in past]


def _samples_training(
    context: RoundContext, work: RoundWork, group: Group, positive_only: bool = False
) -> list[TrainSample]:
    """Rollouts of this round keep the ids they were sampled with; other text is encoded without special tokens.

    Left out are texts that do not fit into this model's context, and with positive_only completions without a positive
    advantage: of replayed groups, and of external ones (docs/decisions/0013-default-strategy.md).
    """
    tokenizer, longest = context.host.engine.tokenizer, context.host.engine.info.context_length
    positive_only |= group.external and context.config.external_advantages == "positive"
    assert work.questions is not None
    assert work.completions is not None
    sampled_with: list[tuple[float, ...] | None] = [None] * len(group.rollouts)
    i = next((i for i, q in enumerate(work.questions) if q.ref == group.question.ref), None)
    if not group.external and i is not None:
        prompt, completions = work.prompts[i], [(c.tokens, c.loss_mask) for c in work.completions[i]]
        if context.host.engine.separate_generator:  # kept here: the engine forgets them on reloading
            sampled_with = [c.logprobs for c in work.completions[i]]
    else:
        prompt = prompt_ids(tokenizer, context.scorer, group.question)
        completions = [encode_rollout(tokenizer, rollout) for rollout in group.rollouts]
    return [
        TrainSample(tuple(prompt), tuple(ids), advantage, group.external, behaviour_logprobs=behaviour, loss_mask=mask)
        for (ids, mask), advantage, behaviour in zip(completions, group.advantages, sampled_with, strict=True)
        if ids and len(prompt) + len(ids) <= longest and (advantage > 0 or not positive_only)
    ]


async def _with_old_logprobs(context: RoundContext, samples: Sequence[TrainSample]) -> list[TrainSample]:
    sequences = [TokenSequence(s.prompt, s.completion) for s in samples]
    logprobs = await context.host.call(context.host.engine.logprobs, sequences, context.policy.temperature)
    return [replace(s, old_logprobs=tuple(old)) for s, old in zip(samples, logprobs, strict=True)]


RoundEvents = list[GroupRecorded | RoundFinished]


def record_round(work: RoundWork, external_wanted: int, solved: set[str]) -> RoundEvents:
    """The events of the finished round; adds tasks solved for the first time to `solved`."""
    assert work.local is not None
    assert work.stats is not None
    assert work.completions is not None
    used = {g.question.ref: g for g in work.trained if not g.external}
    events: RoundEvents = []
    for group in [*work.local, *(g for g in work.trained if g.external)]:
        first = not group.external and group.solved and group.question.ref.dataset not in solved
        if first:
            solved.add(group.question.ref.dataset)
        recorded = group if group.external else used.get(group.question.ref, group)
        events.append(
            GroupRecorded(round=work.round, group=recorded, trained=any(recorded.advantages), first_solved=first)
        )
    stats, flat = work.stats, [c for group in work.completions for c in group]
    drifts = [nats for of in work.drift.values() for nats in of]
    counts = {"replayed": work.replayed, "judge_tokens": work.judge_tokens, "kl": _mean_of(drifts)}
    external = [g for g in work.trained if g.external]
    local = [g for g in work.trained if not g.external] if work.trained else work.local
    events.append(
        RoundFinished(
            round=work.round,
            reward_local=_mean(work.local),
            reward_external=_mean(external),
            reward_batch=_mean(work.trained),
            local_groups=len(local),
            external_groups=len(external),
            external_wanted=external_wanted,
            nonzero_groups=sum(g.nonzero_advantage for g in local),
            truncated=sum(c.finish == "length" for c in flat),
            well_formed=work.well_formed,
            completions=len(flat),
            tokens_generated=sum(c.sampled for c in flat),
            tokens_trained=stats.tokens_local + stats.tokens_external,
            bytes_sent=work.bytes_sent,
            bytes_received=work.bytes_received,
            loss=finite_or_none(stats.loss),
            grad_norm=finite_or_none(stats.grad_norm),
            entropy=finite_or_none(stats.entropy),
            clip_fraction=finite_or_none(stats.clip_fraction),
            logprob_local=finite_or_none(stats.logprob_local),
            logprob_external=finite_or_none(stats.logprob_external),
            ratio_max=finite_or_none(stats.ratio_max),
            task_rewards=_by_task(work.local),
            seconds=dict(work.seconds),
            figures={name: float(count) for name, count in counts.items() if count},
            taught=dict(Counter(g.question.ref.dataset for g in external if g.teaches)),
        )
    )
    return events


def _mean(groups: Sequence[Group]) -> float | None:
    rewards = [r for g in groups for r in g.rewards]
    return _mean_of(rewards) if rewards else None


def _mean_of(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _by_task(groups: Sequence[Group]) -> dict[str, float]:
    tasks = sorted({g.question.ref.shown for g in groups})
    means = {t: _mean([g for g in groups if g.question.ref.shown == t]) for t in tasks}
    return {t: m for t, m in means.items() if m is not None}


def stamp_round(events: Sequence[GroupRecorded | RoundFinished], now: float) -> RoundEvents:
    """The same events with their time set, so that a checkpoint's copy and the journal agree."""
    return [msgspec.structs.replace(e, time=now) for e in events]
