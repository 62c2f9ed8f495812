"""What a round works with, and one round's work in progress, phase by phase. What is done stays done, whatever interrupts."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

from sapo_backends.base import Completion, PolicyUpdate, Sampling, TrainSample, UpdateStats
from sapo_swarm.algorithms.base import Algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Phase, PhaseName
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.round.memory import Memory
from sapo_swarm.node.round.portion import Portion
from sapo_swarm.node.round.progress import Activity
from sapo_swarm.node.swarm.exchange import Exchange
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group, Question

_PROGRESS_S = 0.2
"""Seconds between two progress events of one phase."""

Correction = Callable[[Group, list[TrainSample]], Awaitable[list[TrainSample]]]
"""Off-policy correction: the samples of one external group, with other weights or old log-probabilities."""


@dataclass(frozen=True, slots=True)
class UpdateCall:
    """What the engine's update of a round gets: enough to take the same step again."""

    batch: Sequence[TrainSample]
    policy: PolicyUpdate
    seed: int


@dataclass
class RoundWork:
    """Mutable on purpose: one object lives for one round.

    questions[i] belongs to prompts[i], completions[i] and own[i]; partial[i]: completions as far as they are sampled,
    while completions is None. seconds: wall time of work by phase, without pauses. replayed:
    groups of earlier rounds that the update used besides `trained`.
    """

    round: int
    questions: list[Question] | None = None
    prompts: list[list[int]] = field(default_factory=list)
    partial: list[list[Completion]] = field(default_factory=list)
    completions: list[list[Completion]] | None = None
    own: list[Group] | None = None
    well_formed: int = 0
    external: tuple[Group, ...] | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    call: UpdateCall | None = None
    stats: UpdateStats | None = None
    trained: list[Group] = field(default_factory=list)
    replayed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: PhaseName) -> Iterator[None]:
        """Adds the time spent inside to the phase's seconds."""
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start


@dataclass(frozen=True)
class RoundContext:
    """What a round works with; stays the same over a run. stream takes ephemeral events on the event loop.

    per_source: external groups of one node in a batch at most (None: no cap). seen: what was trained on so far.
    memory: local groups of earlier rounds, for replay and the curriculum.
    apart: hashes of prompts that are not to be trained on (node.evaluation.held_out_exclusion). portion: how much is
    sampled at once.
    """

    config: RunConfig
    node_key: str
    swarm: str
    host: EngineHost
    scorer: Scorer
    exchange: Exchange
    algorithm: Algorithm
    policy: PolicyUpdate
    activity: Activity
    stream: Callable[[Phase], None]
    model_label: str
    per_source: int | None = 1
    correction: Correction | None = None
    seen: Counter[str] = field(default_factory=Counter)
    memory: Memory = field(default_factory=Memory)
    apart: frozenset[str] = frozenset()
    portion: Portion = field(default_factory=Portion)

    @property
    def sampling(self) -> Sampling:
        """How training rollouts are sampled."""
        return Sampling(self.config.temperature, 1.0, self.config.max_new_tokens)

    def begin(self, work: RoundWork, phase: PhaseName, detail: str) -> None:
        """Tell that a phase begins."""
        self.stream(self.activity.begin(phase, work.round, detail))

    def end(self) -> None:
        """Tell that the phase is done."""
        self.stream(self.activity.end(self.activity.sentence))

    def from_thread(self, describe: Callable[..., tuple[float, str]]) -> Callable[..., None]:
        """A progress callback for the engine's thread that reaches the event loop at most every _PROGRESS_S seconds."""
        loop, last = asyncio.get_running_loop(), [0.0]

        def report(*numbers: float) -> None:
            now = time.monotonic()
            if now - last[0] >= _PROGRESS_S:
                last[0] = now
                loop.call_soon_threadsafe(lambda: self.stream(self.activity.progress(*describe(*numbers))))

        return report
