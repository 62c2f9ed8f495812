"""How much of this machine's time others may cost: an estimate is charged before anything of theirs is read, the measured
seconds afterwards.

As in volunteer computing, a new source gets little and a useful one more. Newcomers pay from three budgets: their own, that of
the origin they share with others (the invite or the network that a coordinator names with their groups, so that fresh
identities from one place have one slice), and that of all newcomers together. A source that was useful leaves the last two.
Engine time stays charged only where the reading was in vain: an honest source never pays for a slow engine.

Pure bookkeeping; the clock is passed in. What a node keeps over a restart is `packed()`: trust, counts and debts.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sapo_swarm.types import NodeId

SOURCE_RATE, SOURCE_BURST = 0.04, 0.8
"""Seconds per second, and at once, that a fully trusted source may cost; an honest one shares a group every 5 s."""
NEWCOMERS_RATE, NEWCOMERS_BURST = 0.15, 3.0
"""The same for all sources together that were never useful,"""
ORIGIN_PART = 0.25
"""of which newcomers of one origin have this part;"""
KNOWN_RATE, KNOWN_BURST = 0.4, 8.0
"""and for all those together that were."""
FIRST_TRUST, LEAST_TRUST = 0.25, 1 / 64
KNOWN_AFTER = 2
"""Usable groups after which a source is no longer a newcomer."""
SOURCES = 8192
"""Sources remembered, and origins; the one that was silent longest becomes a newcomer again."""
MOST_OWED = 86_400
"""A remembered debt in seconds is no larger than this."""

QuotaRefusal = Literal["", "source", "all"]
"""Who has no time left: nobody, the source or its origin (for good reasons), or all sources of its kind together (for now)."""


@dataclass(slots=True)
class _Budget:
    """Seconds left; overdrawn by a job that cost more than a full budget or than was estimated."""

    rate: float
    burst: float
    left: float
    at: float

    def affords(self, seconds: float, now: float, trust: float = 1.0) -> bool:
        """Whether a job may begin. One that costs more than the budget ever holds needs half of it: it cannot save more."""
        most = self.burst * trust
        if self.left < most:
            self.left = min(most, self.left + max(0.0, now - self.at) * self.rate * trust)
        self.at = now
        return self.left > 0.0 and self.left >= min(seconds, most / 2)


@dataclass(slots=True)
class _Account:
    """A source, or an origin that newcomers share. taken, refused: groups that were judged to the end."""

    budget: _Budget
    trust: float
    taken: int = 0
    refused: int = 0

    def judged(self, useful: bool) -> None:
        self.taken += useful
        self.refused += not useful
        self.trust = min(1.0, 2.0 * self.trust) if useful else max(LEAST_TRUST, 0.5 * self.trust)


_Groups = Annotated[int, Meta(ge=0, lt=2**53)]


class KeptSource(msgspec.Struct, frozen=True, array_like=True):
    """What is remembered of a source over a restart. owed: seconds that it overdrew."""

    trust: Annotated[float, Meta(ge=LEAST_TRUST, le=1)]
    taken: _Groups
    refused: _Groups
    owed: Annotated[float, Meta(ge=0, le=MOST_OWED)]


KeptSources = Annotated[dict[NodeId, KeptSource], Meta(max_length=SOURCES)]
"""By node, the one that was silent longest first."""


@dataclass(slots=True)
class TimeQuota:
    """now: seconds of a clock that only goes forward. origin: "" where the coordinator names none: no slice applies then."""

    _sources: OrderedDict[str, _Account] = field(default_factory=OrderedDict)
    _origins: OrderedDict[str, _Account] = field(default_factory=OrderedDict)
    _newcomers: _Budget = field(default_factory=lambda: _Budget(NEWCOMERS_RATE, NEWCOMERS_BURST, NEWCOMERS_BURST, 0.0))
    _known: _Budget = field(default_factory=lambda: _Budget(KNOWN_RATE, KNOWN_BURST, KNOWN_BURST, 0.0))

    def refusal(self, node: str, origin: str, seconds: float, now: float) -> QuotaRefusal:
        """Who cannot afford a job of the source that is estimated to take so many seconds."""
        accounts, shared = self._payers(node, origin, now)
        if not all(account.budget.affords(seconds, now, account.trust) for account in accounts):
            return "source"
        return "" if shared.affords(seconds, now) else "all"

    def charge(self, node: str, origin: str, seconds: float, now: float) -> None:
        """Charge seconds to everybody who pays for the source; a negative number gives back what was estimated too high."""
        accounts, shared = self._payers(node, origin, now)
        for budget in (*(account.budget for account in accounts), shared):
            budget.left = min(budget.burst, budget.left - seconds)

    def judged(self, node: str, origin: str, useful: bool, now: float) -> None:
        """Register that a group was taken, or refused after it had cost time."""
        for account in self._payers(node, origin, now)[0]:
            account.judged(useful)

    def is_known(self, node: str) -> bool:
        """The source was useful before."""
        source = self._sources.get(node)
        return source is not None and source.taken >= KNOWN_AFTER

    def rank(self, node: str, origin: str) -> tuple[bool, int, float]:
        """The order in which groups are read: known sources, then those that were useful once, then origins by their trust."""
        source, place = self._sources.get(node), self._origins.get(origin)
        taken = 0 if source is None else min(source.taken, KNOWN_AFTER)
        return taken < KNOWN_AFTER, -taken, -1.0 if place is None else -place.trust

    def packed(self) -> dict[NodeId, KeptSource]:
        """What is remembered of every source that was judged."""
        return {
            node: KeptSource(source.trust, source.taken, source.refused, min(MOST_OWED, max(0.0, -source.budget.left)))
            for node, source in self._sources.items()
            if source.taken or source.refused
        }

    @staticmethod
    def unpacked(kept: Mapping[NodeId, KeptSource], now: float) -> TimeQuota:
        """Inverse of packed(), as far as it goes: the time between does not count."""
        quota = TimeQuota()
        for node, source in kept.items():
            left = -source.owed if source.owed else SOURCE_BURST * source.trust
            budget = _Budget(SOURCE_RATE, SOURCE_BURST, left, now)
            quota._sources[node] = _Account(budget, source.trust, source.taken, source.refused)
        return quota

    def _payers(self, node: str, origin: str, now: float) -> tuple[list[_Account], _Budget]:
        """The accounts that pay for the source alone, and the budget of all of its kind."""
        source = _account(self._sources, node, SOURCE_RATE, SOURCE_BURST, FIRST_TRUST, now)
        if source.taken >= KNOWN_AFTER:
            return [source], self._known
        if not origin:
            return [source], self._newcomers
        rate, burst = ORIGIN_PART * NEWCOMERS_RATE, ORIGIN_PART * NEWCOMERS_BURST
        return [source, _account(self._origins, origin, rate, burst, 1.0, now)], self._newcomers


def _account(
    accounts: OrderedDict[str, _Account], key: str, rate: float, burst: float, trust: float, now: float
) -> _Account:
    """The account of a key, new if there is none."""
    account = accounts.get(key)
    if account is None:
        account = accounts[key] = _Account(_Budget(rate, burst, burst * trust, now), trust)
        if len(accounts) > SOURCES:
            accounts.popitem(last=False)
    else:
        accounts.move_to_end(key)
    return account
