"""What the node is doing now, in one sentence, with progress and an estimate from the rounds before."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sapo_swarm.events import Phase, PhaseName, State

_SMOOTH = 0.3
"""Weight of the newest round in the typical duration of a phase."""


@dataclass
class Activity:
    """Mutable picture of the present. Written on the event loop only."""

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
    _typical: dict[str, float] = field(default_factory=dict)

    def begin(self, phase: PhaseName, round_number: int, detail: str) -> Phase:
        """The event with which a phase begins."""
        self.phase, self.round, self._phase_began = phase, round_number, self.clock()
        return self.progress(0.0, detail)

    def progress(self, fraction: float, detail: str) -> Phase:
        """The event for a fraction of the current phase; eta from the fraction or from earlier rounds."""
        assert self.phase is not None
        elapsed = self.clock() - self._phase_began
        typical = self._typical.get(self.phase)
        if fraction > 0.05:
            self.eta_s = elapsed * (1 - fraction) / fraction
        else:
            self.eta_s = -1.0 if typical is None else max(0.0, typical - elapsed)
        self.fraction, self.sentence = fraction, detail or self.sentence
        return Phase(round=self.round, phase=self.phase, fraction=fraction, eta_s=self.eta_s, detail=detail)

    def end(self, detail: str) -> Phase:
        """The event with which the phase is done; how long it took goes into later estimates."""
        assert self.phase is not None
        took = self.clock() - self._phase_began
        before = self._typical.get(self.phase, took)
        self._typical[self.phase] = before + _SMOOTH * (took - before)
        event = self.progress(1.0, detail)
        self.eta_s = 0.0
        return event
