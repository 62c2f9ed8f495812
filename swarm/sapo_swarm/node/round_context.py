"""What a round works with, and one round's work in progress, phase by phase. What is done stays done, whatever interrupts."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import msgspec

from sapo_backends.base import Completion, PolicyUpdate, Sampling, TrainSample, UpdateStats
from sapo_swarm.algorithms import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Event, GroupRecorded, Phase, PhaseName, State
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.exchange import GroupExchange
from sapo_swarm.node.journal import Journal
from sapo_swarm.sapo import adaptive_sampling, training_batch
from sapo_swarm.sapo.adaptive_sampling import SuccessPosterior
from sapo_swarm.sapo.training_batch import ReplayEntry
from sapo_swarm.scoring.rubric import RubricJudge
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import STRICT, Group, Question, RewardRule

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
            self.replay = training_batch.update_replay_entries(
                self.replay, round_number, groups, config.replay_half_life
            )
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


SHRINK = 4


class BatchSizer:
    """Rows in one call of the engine; 0 = all. An interrupted call makes the next ones smaller, a completed one makes them
    larger again: an undisturbed node never works in small batches. most: rows that fit into memory."""

    def __init__(self, most: int = 0) -> None:
        self.rows, self.most = 0, most

    def interrupted(self, rows: int) -> None:
        """A call with this many rows was cancelled. Its tokens are kept, but continuing a completion means processing its
        text again before the first new token; with fewer rows that costs less."""
        self.rows = max(1, rows // SHRINK)

    def refused(self, rows: int) -> None:
        """There was no memory for this many rows: use half of them from now on."""
        self.most = max(1, rows // 2)

    def completed(self, rows: int) -> None:
        """A call with this many rows completed."""
        self.rows = 0 if not self.rows or rows < self.rows else 2 * self.rows

    def of(self, rows: int) -> int:
        """Rows of the next call when this many are left."""
        return min(rows, self.rows or rows, self.most or rows)


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
    texts of the update, in an example round.
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
