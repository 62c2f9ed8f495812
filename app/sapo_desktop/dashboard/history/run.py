"""What the dashboard remembers of a run: metrics as series, when each round ran, chart marks, external contributions."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass
from math import exp
from typing import Literal

import msgspec
from msgspec import field
from msgspec.structs import replace

from sapo_desktop.dashboard.history.series import BoundedHistory, Series
from sapo_swarm.events import (
    BaseAsked,
    CheckpointSaved,
    Evaluated,
    Event,
    ExamplesRead,
    ExternalSwitched,
    FirstSuccess,
    GroupRecorded,
    RoundFinished,
    RunStarted,
    StateChanged,
    SwarmUpdated,
    TrialMeasured,
    Vitals,
)

# When each round ran: rounds to wall-clock time and back, and pauses.

PAUSE_S = 120.0
"""Idle seconds from which a pause shows as a gap; shorter ones are bridged."""
_PAUSES = 400

Pause = tuple[float, float]
"""Start and end of an idle period, in Unix seconds."""


class RoundClock(msgspec.Struct, frozen=True):
    """ends: Unix seconds at which each round ended; the range of each entry starts where work on the round started."""

    ends: Series = field(default_factory=Series)
    pauses: tuple[Pause, ...] = ()
    """Ascending; when there are very many, only the longest."""
    beside: float = 0.0
    """Seconds of work outside of rounds (evaluations) since the last round."""
    ahead: float = 0.0
    """Seconds by which these times are ahead of the system clock since it was set back; idle time makes up for them."""

    def worked(self, seconds: float) -> RoundClock:
        """The clock after `seconds` of other work between rounds, which do not count as a pause."""
        return replace(self, beside=self.beside + seconds)

    def finished(self, round_: float, time: float, seconds: float, covers: int = 1) -> RoundClock:
        """The clock after round `round_` ended at `time` after `seconds` of work. covers: rounds merged into this event. If the
        system clock was set back, a round still lasts at least as long as its work."""
        before = self.ends.latest
        if before is None:
            return RoundClock(self.ends.append(round_, time, covers, time - seconds, time))
        worked = seconds + self.beside
        without_idle = before + worked - time
        set_back = time + self.ahead < before
        ahead = without_idle if set_back else min(self.ahead, max(without_idle, 0.0))
        end = time + ahead
        start = max(end - worked, before)
        pauses = self.pauses
        if start - before > PAUSE_S:
            pauses = _bounded((*pauses, (before, start)))
        return RoundClock(self.ends.append(round_, end, covers, start, end), pauses, ahead=ahead)

    def paused_at(self, time: float) -> bool:
        """Whether that time lies in a pause longer than PAUSE_S."""
        place = bisect_right(self.pauses, time, key=lambda pause: pause[0]) - 1
        return place >= 0 and time < self.pauses[place][1]

    def time_of(self, round_: float) -> float | None:
        """Approximately when that round ended, clamped to the first and last round; None before any round."""
        return self.ends.rising_at(round_) if len(self.ends) else None

    def round_at(self, time: float) -> float | None:
        """The round that ran at that time, as a fractional number; None before any round."""
        return self.ends.x_of_rising(time) if len(self.ends) else None

    @property
    def span(self) -> tuple[float, float] | None:
        """Start of the first round and end of the last; None before any round."""
        spread = self.ends.range()
        return None if spread is None else (spread.low, spread.high)


def _bounded(pauses: tuple[Pause, ...]) -> tuple[Pause, ...]:
    if len(pauses) <= _PAUSES:
        return pauses
    longest = sorted(pauses, key=lambda pause: pause[1] - pause[0])[_PAUSES // 2 :]
    return tuple(sorted(longest))


# External groups in this model's training, and the held-out result before the first of them.


class ExternalContribution(msgspec.Struct, frozen=True):
    """batches: groups in all training batches so far. external: how many of them came from other nodes. before: the last
    held-out result before the first external group."""

    batches: int = 0
    external: int = 0
    before: Evaluated | None = None

    def after(self, event: Event) -> ExternalContribution:
        """The contribution after this event."""
        if isinstance(event, RoundFinished):
            batch = event.local_groups + event.external_groups
            return replace(self, batches=self.batches + batch, external=self.external + event.external_groups)
        if isinstance(event, Evaluated) and not self.external:
            return replace(self, before=event)
        return self


# Milestones of a run, which a chart marks with a letter.

Letter = Literal["P", "J", "L", "C", "R", "B", "S", "E"]
MEANINGS: dict[Letter, str] = {
    "B": "best",
    "R": "rolled back",
    "S": "first solved",
    "E": "examples began or ended",
    "J": "joined",
    "L": "left",
    "C": "changed",
    "P": "paused",
}
"""What the letters stand for; where several coincide, the first in this order is shown."""
_MOST = 800
JOINED, LEFT = "joined", "left"
"""The first word of a session's `changed` when a swarm was joined or left."""


@dataclass(frozen=True, slots=True)
class RunMilestone:
    """round: rounds done by then (for a first success, the round in which it came). time: Unix seconds."""

    letter: Letter
    round: float
    time: float


def add_milestones(known: tuple[RunMilestone, ...], event: Event, rounds: int) -> tuple[RunMilestone, ...]:
    """The milestones plus any from this event. rounds: done so far. When there are very many, old ones are thinned out."""
    milestones = _of(event, rounds)
    if not milestones or (
        milestones[0].letter == "S" and any(m.letter == "S" and m.round == milestones[0].round for m in known)
    ):
        return known
    known = (*known, *milestones)
    return known if len(known) < _MOST else (*known[: _MOST // 2 : 2], *known[_MOST // 2 :])


def of_session(event: RunStarted) -> tuple[RunMilestone, ...]:
    """What had changed when training resumed."""
    letters: set[Letter] = set()
    for change in event.changed:
        letters.add("J" if change.startswith(JOINED) else "L" if change.startswith(LEFT) else "C")
    return tuple(RunMilestone(letter, event.round, event.time) for letter in sorted(letters))


def _of(event: Event, rounds: int) -> tuple[RunMilestone, ...]:
    match event:
        case RunStarted():
            return of_session(event)
        case StateChanged(state="paused"):
            return (RunMilestone("P", rounds, event.time),)
        case TrialMeasured(plan="examples" | "only") | ExamplesRead(over=True):
            return (RunMilestone("E", event.round, event.time),)
        case ExternalSwitched() | CheckpointSaved() if _went_back(event):
            return (RunMilestone("R", event.round, event.time),)
        case GroupRecorded(first_solved=True) | FirstSuccess(node=""):
            return (RunMilestone("S", event.round + 1, event.time),)
    return ()


def _went_back(event: ExternalSwitched | CheckpointSaved) -> bool:
    """Whether older weights were restored, by the tripwire or by a person (who may go back to round 0)."""
    return event.restored > (-1 if isinstance(event, CheckpointSaved) else 0)


# One series per metric, from the node's events.

_RECENT = 300
"""Values in a sparkline; metrics shown only there are kept no longer than this."""


def _recent() -> BoundedHistory[float | None]:
    return BoundedHistory(_RECENT)


class HeldOut(msgspec.Struct, frozen=True):
    """Held-out pass@1 over rounds, with both ends of its 95 % interval."""

    mean: Series = field(default_factory=Series)
    low: Series = field(default_factory=Series)
    high: Series = field(default_factory=Series)
    best: tuple[float, float] | None = None
    """Round and pass@1 of the best result, the first of equals."""
    tasks: Mapping[str, Series] = field(default_factory=dict)
    """pass@1 of every evaluated task."""
    base: tuple[float, float, float] | None = None
    """pass@1 of the untrained model and its interval, so far, where it is asked beside training: the result of round 0."""

    def append(self, event: Evaluated) -> HeldOut:
        """A copy with one more result. A belated one repeats a result, or is the base's."""
        if event.belated:
            return self if event.round else replace(self, base=(event.pass_at_1, event.low, event.high))
        best = self.best
        if best is None or event.pass_at_1 > best[1]:
            best = (event.round, event.pass_at_1)
        return HeldOut(
            self.mean.append(event.round, event.pass_at_1),
            self.low.append(event.round, event.low),
            self.high.append(event.round, event.high),
            best,
            {
                **self.tasks,
                **{s.task: self.tasks.get(s.task, Series()).append(event.round, s.pass_at_1) for s in event.tasks},
            },
            self.base,
        )


class RunMetrics(msgspec.Struct, frozen=True):
    """One series per metric, over rounds (starting at 1) unless stated otherwise. Kinds of reward are never mixed."""

    reward_local: Series = field(default_factory=Series)
    reward_external: Series = field(default_factory=Series)
    nonzero_groups: Series = field(default_factory=Series)
    """Share of local groups with unequal rewards, in [0, 1]."""
    tokens_per_s: BoundedHistory[float | None] = field(default_factory=_recent)
    external_share: Series = field(default_factory=Series)
    """As reported by the node (SwarmUpdated), like `share` below."""
    share: Series = field(default_factory=Series)
    """My accepted groups / all accepted groups."""
    memory: BoundedHistory[float | None] = field(default_factory=_recent)
    """Bytes used by the node's process tree, as reported by the node, like the two below."""
    cpu: BoundedHistory[float | None] = field(default_factory=_recent)
    celsius: BoundedHistory[float | None] = field(default_factory=_recent)
    set_aside: Series = field(default_factory=Series)
    """In the examples phase: share of correct answers on the training rows not used as examples, at temperature 0."""
    likelihood: Series = field(default_factory=Series)
    """In the examples phase: what the model gave each token of the right answers, as a geometric mean, before the step."""
    held_out: HeldOut = field(default_factory=HeldOut)
    clock: RoundClock = field(default_factory=RoundClock)

    def finished(self, event: RoundFinished) -> RunMetrics:
        """The metrics after one more round, or a block of rounds."""
        x, covers = event.round + 1, event.covers
        generating = event.seconds.get("generate", 0.0)

        def ranged(name: str) -> Series:
            series: Series = getattr(self, name)
            return series.append(x, getattr(event, name), covers, event.lowest.get(name), event.highest.get(name))

        unequal = event.nonzero_groups / event.local_groups if event.local_groups else None
        likelihood = self.likelihood
        if event.examples and event.logprob_local is not None:
            likelihood = likelihood.append(x, exp(min(0.0, event.logprob_local)), covers)
        return replace(
            self,
            likelihood=likelihood,
            reward_local=ranged("reward_local"),
            reward_external=ranged("reward_external"),
            nonzero_groups=self.nonzero_groups.append(x, unequal, covers),
            tokens_per_s=self.tokens_per_s.append(event.tokens_generated / generating if generating > 0 else None),
            clock=self.clock.finished(x, event.time, sum(event.seconds.values()), covers),
        )

    def read(self, event: ExamplesRead) -> RunMetrics:
        """The metrics with the progress of the examples phase."""
        share = event.right / event.items if event.items else None
        return replace(self, set_aside=self.set_aside.append(event.round, share))

    def measured(self, event: Vitals) -> RunMetrics:
        """The metrics with the machine's newest vitals."""
        return replace(
            self,
            memory=self.memory.append(event.memory),
            cpu=self.cpu.append(event.cpu_percent),
            celsius=self.celsius.append(event.celsius),
        )

    def told(self, event: SwarmUpdated, rounds: int) -> RunMetrics:
        """The metrics with the coordinator's update after `rounds` rounds."""
        return replace(
            self,
            share=self.share.append(rounds, event.share),
            external_share=self.external_share.append(rounds, event.external_share),
        )

    def base_asked(self, event: BaseAsked) -> RunMetrics:
        """The metrics with more answers of the untrained model."""
        base = event.pass_at_1, event.low, event.high
        return replace(self, held_out=replace(self.held_out, base=base), clock=self.clock.worked(event.seconds))

    def evaluated(self, event: Evaluated) -> RunMetrics:
        """The metrics with one more held-out result."""
        return replace(self, held_out=self.held_out.append(event), clock=self.clock.worked(event.seconds))
