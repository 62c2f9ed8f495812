"""How much time of processor and engine others may cost a node: a quota for each source that errors shrink and usable groups
restore. The engine's time counts for groups that were refused after it had read them: an honest source never pays for slow
engines, and all newcomers together have 15 % of one at most.

As in volunteer computing, who is new gets little, who was useful gets more, and all newcomers together share one budget:
making more identities buys no more time. Pure bookkeeping; the clock is passed in.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field

SOURCE_RATE, SOURCE_BURST = 0.04, 0.8
"""Processor seconds a second, and at once, that a source of full trust may cost; an honest one shares a group in 5 s."""
NEWCOMERS_RATE, NEWCOMERS_BURST = 0.15, 3.0
"""The same for all sources together that were never useful;"""
KNOWN_RATE, KNOWN_BURST = 0.4, 8.0
"""and for all those together that were."""
FIRST_TRUST, LEAST_TRUST = 0.25, 1 / 64
KNOWN_AFTER = 2
"""Usable groups after which a source is a newcomer no more."""
SOURCES = 8192
"""Sources remembered; the one that was quiet longest is a newcomer again."""


@dataclass(slots=True)
class _Budget:
    """Seconds left; may be overdrawn by the job that was running."""

    rate: float
    burst: float
    left: float
    at: float

    def refill(self, now: float, scale: float = 1.0) -> float:
        gained = max(0.0, now - self.at) * self.rate * scale
        self.left = min(self.burst * scale, self.left + gained) if self.left < self.burst * scale else self.left
        self.at = now
        return self.left


@dataclass(slots=True)
class _Source:
    budget: _Budget
    trust: float = FIRST_TRUST
    useful: int = 0


@dataclass(slots=True)
class TimeQuota:
    """Asked before a source's group is regenerated, told afterwards what it cost."""

    _sources: OrderedDict[str, _Source] = field(default_factory=OrderedDict)
    _newcomers: _Budget = field(default_factory=lambda: _Budget(NEWCOMERS_RATE, NEWCOMERS_BURST, NEWCOMERS_BURST, 0.0))
    _known: _Budget = field(default_factory=lambda: _Budget(KNOWN_RATE, KNOWN_BURST, KNOWN_BURST, 0.0))

    def allows(self, node: str, now: float) -> bool:
        """The source, and those like it, have time left. now: seconds of a clock that goes forward."""
        source = self._source(node, now)
        return source.budget.refill(now, source.trust) > 0.0 and self._shared(source).refill(now) > 0.0

    def spent(self, node: str, seconds: float, useful: bool | None, now: float) -> None:
        """A group of the source took so many seconds. useful: it was taken; None: nobody can say, or it is said elsewhere."""
        source = self._source(node, now)
        source.budget.left -= seconds
        self._shared(source).left -= seconds
        if useful is None:
            return
        source.useful += useful
        source.trust = min(1.0, 2.0 * source.trust) if useful else max(LEAST_TRUST, 0.5 * source.trust)

    def is_known(self, node: str) -> bool:
        """The source was useful before; those go first."""
        source = self._sources.get(node)
        return source is not None and source.useful >= KNOWN_AFTER

    def _shared(self, source: _Source) -> _Budget:
        return self._known if source.useful >= KNOWN_AFTER else self._newcomers

    def _source(self, node: str, now: float) -> _Source:
        source = self._sources.get(node)
        if source is None:
            budget = _Budget(SOURCE_RATE, SOURCE_BURST, SOURCE_BURST * FIRST_TRUST, now)
            source = self._sources[node] = _Source(budget)
            if len(self._sources) > SOURCES:
                self._sources.popitem(last=False)
        else:
            self._sources.move_to_end(node)
        return source
