"""One round's work in progress, phase by phase. What a pause interrupts is done again; what is done stays done."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from sapo_backends.base import Completion, UpdateStats
from sapo_swarm.events import PhaseName
from sapo_swarm.types import Group, Question


@dataclass
class RoundWork:
    """Mutable on purpose: one object lives for one round.

    questions[i] belongs to prompts[i], completions[i] and own[i]; seconds: wall time by phase.
    replayed: groups of earlier rounds that the update used besides `trained`.
    """

    round: int
    questions: list[Question] | None = None
    prompts: list[list[int]] = field(default_factory=list)
    completions: list[list[Completion]] | None = None
    own: list[Group] | None = None
    well_formed: int = 0
    external: tuple[Group, ...] | None = None
    bytes_sent: int = 0
    bytes_received: int = 0
    stats: UpdateStats | None = None
    trained: list[Group] = field(default_factory=list)
    replayed: int = 0
    seconds: dict[str, float] = field(default_factory=dict)

    @contextmanager
    def timed(self, phase: PhaseName) -> Iterator[None]:
        start = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[phase] = self.seconds.get(phase, 0.0) + time.perf_counter() - start
