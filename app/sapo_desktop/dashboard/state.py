"""The dashboard's whole picture as a pure function of events: `apply(state, event) -> state`, O(1) per event; and the messages
between the dashboard and whoever opened it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import msgspec
from msgspec import field
from msgspec.structs import replace

from sapo_desktop.dashboard.history.run import ExternalContribution, RunMetrics, RunMilestone, add_milestones
from sapo_desktop.dashboard.history.series import BoundedHistory
from sapo_desktop.dashboard.look import format_after_round
from sapo_desktop.services.against_base import describe_difference, describe_greedy
from sapo_desktop.services.swarms.trial import TrialProgress
from sapo_swarm.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    ExamplesRead,
    ExternalSwitched,
    FirstSuccess,
    GroupRecorded,
    LogLine,
    Phase,
    PhaseName,
    RoundFinished,
    RunStarted,
    State,
    StateChanged,
    SwarmUpdated,
    TrialMeasured,
    Vitals,
)
from sapo_swarm.node.aha_trail import Trails, update_trails

if TYPE_CHECKING:
    from sapo_desktop.dashboard.history.groups import GroupSource

# What travels between the dashboard and whoever opened it, beside the node's own events.

QuitChoice = Literal["stop", "background"]
"""How the dashboard was left: stop everything, or keep working in the background."""


@dataclass(frozen=True)
class NodeLink:
    """The dashboard's own line to the node came or went; sentence: what the person reads in the header. ended: the node was
    there, and nobody listens in its place any more. starting: another one is on its way already."""

    connected: bool
    sentence: str
    time: float
    ended: bool = False
    starting: bool = False


@dataclass(frozen=True)
class ReplayRewound:
    """A recording is told again from its beginning: what was known of it is forgotten."""


@dataclass(frozen=True)
class ReplayCaption:
    """What there is to see in a recording from `time` (Unix seconds) on, and on which screen ("" the one that is shown)."""

    time: float
    text: str
    screen: str = ""


class EventFeed(Protocol):
    """Where the events come from and the commands go to: a node, or a recording."""

    controls: bool
    """Commands reach a node, so leaving has to ask what becomes of it."""

    def events(self) -> AsyncIterator[Event | NodeLink | ReplayRewound]:
        """Past events first, then live ones; ends only when there will be no more."""
        ...

    async def command(self, verb: str, **body: float) -> None:
        """A POST verb of the control API. Raises CommandFailed."""
        ...

    def groups(self) -> GroupSource | None:
        """Where all groups of what is watched lie: the same one until another run is watched. None: not known yet."""
        ...

    def upto(self) -> int:
        """The number of the newest group that is to be shown: a recording has not told its later ones yet."""
        ...

    def describe(self) -> str:
        """One phrase for the help screen: what is being watched."""
        ...

    def now(self) -> float:
        """Unix seconds on the clock of the events: the wall's, or a recording's."""
        ...


# The dashboard's whole picture as a pure function of events: `apply(state, event) -> state`, O(1) per event.

Level = Literal["info", "warning", "error"]

_MAX_GROUPS = 256
"""What screen 1 looks back on; screen 3 reads the journal, which has them all."""
_MAX_LOG = 1000


def _groups() -> BoundedHistory[GroupRecorded]:
    return BoundedHistory(_MAX_GROUPS)


def _log() -> BoundedHistory[LogLine]:
    return BoundedHistory(_MAX_LOG)


class DashboardState(msgspec.Struct, frozen=True):
    """Everything the screens draw. Frozen: keeping an old one freezes a chart."""

    run: RunStarted | None = None
    state: State = "starting"
    sentence: str = "Waiting for the node"
    reason: str = ""
    anyway_until: float = 0.0
    since: float = 0.0
    link: NodeLink | None = None
    phase: Phase | None = None
    phases: tuple[PhaseName, ...] = ()
    """Phases seen in the round in flight, in order."""
    phase_since: float = 0.0
    vitals: Vitals | None = None
    round: RoundFinished | None = None
    rounds: int = 0
    """Rounds finished in this run, as told."""
    examples_rounds: int = 0
    """Of them those of examples."""
    base_trial: TrialMeasured | None = None
    """What the untrained model made of training questions."""
    reading: ExamplesRead | None = None
    """How far the examples phase is, or was when it ended."""
    round_time: float = 0.0
    round_seconds: float | None = None
    """Time worked on the last round; pauses do not count."""
    tokens: int = 0
    figures: RunMetrics = field(default_factory=RunMetrics)
    latest: Evaluated | None = None
    """The newest evaluation."""
    base: Evaluated | None = None
    """The first evaluation of the untrained model."""
    groups: BoundedHistory[GroupRecorded] = field(default_factory=_groups)
    solved: frozenset[str] = frozenset()
    """Tasks solved at least once."""
    swarm: SwarmUpdated | None = None
    external_off: str = ""
    """Why no external groups are taken; "" when they are."""
    moments: tuple[RunMilestone, ...] = ()
    """What a chart marks: paused, joined, left, settings changed, rolled back, first solved."""
    gained: ExternalContribution = field(default_factory=ExternalContribution)
    trails: Trails = field(default_factory=dict)
    """Of every task: who solved it first, as far as this node saw, and when it was solved here."""
    trial: TrialProgress = field(default_factory=TrialProgress)
    """Of this model, in an open swarm."""
    log: BoundedHistory[LogLine] = field(default_factory=_log)
    newest: float = 0.0
    """Time of the newest event."""

    @property
    def practised(self) -> int:
        """Rounds of practice, which planned rounds count."""
        return self.rounds - self.examples_rounds

    @property
    def silo(self) -> bool:
        """No run yet, or one that trains alone."""
        return self.run is None or self.run.mode == "silo"

    @property
    def gone(self) -> bool:
        """The node is not there any more (not merely out of reach for a moment): it said so before it left, or was killed."""
        if self.link is None or self.link.connected or self.link.starting:
            return False
        return self.state in ("stopped", "failed") or self.link.ended

    @property
    def absent(self) -> bool:
        """No node works: it is gone, or being started again. What it told last of its work is over."""
        return self.gone or (self.link is not None and self.link.starting and not self.link.connected)

    @property
    def besides(self) -> str:
        """What the node's sentence says after its first phrase: which rule slows it, until when it runs anyway, what was asked
        for and happens once its model is open."""
        return self.sentence.partition(" · ")[2]

    @property
    def paused(self) -> bool:
        """The node does not work now, for whatever reason."""
        return self.state in ("paused", "pausing", "stopped", "failed")

    @property
    def in_examples(self) -> bool:
        """Right answers are imitated now; practice may follow."""
        return bool(self.phase and self.phase.phase == "examples") and not self.paused

    @property
    def resumable(self) -> bool:
        """Space asks the node to go on: it is paused, or will be once its model is open."""
        return self.paused or (self.state == "starting" and bool(self.reason))


def apply_event(state: DashboardState, event: Event | NodeLink) -> DashboardState:  # noqa: C901, PLR0912 - one case an event
    """The state after the event. Never raises on an event that decodes."""
    match event:
        case NodeLink():
            if event.ended and not (state.link is not None and state.link.ended):
                text = f"{event.sentence.rstrip('.')}. Finished rounds are kept; space starts it again."
                state = replace(state, log=state.log.append(LogLine(time=event.time, level="warning", text=text)))
            return replace(state, link=event)
        case RunStarted():
            state = _run_started(state, event)
        case StateChanged():
            state = _state_changed(state, event)
        case Phase():
            state = _phase(state, event)
        case Vitals():
            state = _vitals(state, event)
        case RoundFinished():
            state = _round_finished(state, event)
        case GroupRecorded():
            state = replace(_group(state, event), groups=state.groups.append(event))
        case FirstSuccess():
            state = _first_success(state, event)
        case Evaluated():
            line = LogLine(seq=event.seq, time=event.time, level="info", text=evaluation_sentence(event))
            base = state.base or (None if event.round else event)
            state = replace(
                state,
                latest=event,
                base=base,
                figures=state.figures.evaluated(event),
                gained=state.gained.after(event),
                log=state.log.append(line),
            )
        case TrialMeasured():
            line = LogLine(seq=event.seq, time=event.time, level="info", text=event.sentence)
            state = replace(state, base_trial=event, log=state.log.append(line))
        case ExamplesRead():
            line = LogLine(seq=event.seq, time=event.time, level="info", text=event.sentence)
            state = replace(state, reading=event, figures=state.figures.read(event), log=state.log.append(line))
        case SwarmUpdated():
            state = _swarm(state, event)
        case ExternalSwitched():
            line = LogLine(
                seq=event.seq, time=event.time, level="info" if event.taking else "warning", text=event.sentence
            )
            off = "" if event.taking else event.sentence
            state = replace(state, external_off=off, log=state.log.append(line))
        case CheckpointSaved() if event.restored >= 0:  # a step that trains nothing, and counts as a round
            state = replace(state, rounds=event.round)
        case LogLine():
            state = replace(state, log=state.log.append(event))
    newest, moments = max(state.newest, event.time), add_milestones(state.moments, event, state.rounds)
    trails = update_trails(state.trails, event)
    if newest == state.newest and moments is state.moments and trails is state.trails:
        return state
    return replace(state, newest=newest, moments=moments, trails=trails)


def _run_started(state: DashboardState, event: RunStarted) -> DashboardState:
    line = LogLine(
        seq=event.seq,
        time=event.time,
        level="info",
        text=f"{event.name or event.run_id} opened, round {event.round + 1} is next: "
        f"{event.model} on {event.device} ({event.backend}), "
        f"{event.algorithm}, {event.local_groups}/{event.external_groups} groups of {event.group_size}"
        + "".join(f"; {change}" for change in event.changed),
    )
    if state.run is not None and state.run.run_id == event.run_id:
        return replace(
            state,
            run=event,
            examples_rounds=event.examples_rounds,
            trial=state.trial.after(event),
            phase=None,
            phases=(),
            round_time=0.0,
            solved=state.solved | set(event.solved),
            swarm=None if event.mode == "silo" else state.swarm,
            external_off="" if event.mode == "silo" else state.external_off,
            log=state.log.append(line),
        )
    fresh = DashboardState(run=event, link=state.link, log=state.log.append(line), solved=frozenset(event.solved))
    fresh = replace(fresh, trial=fresh.trial.after(event), examples_rounds=event.examples_rounds)
    return replace(fresh, state=state.state, sentence=state.sentence, reason=state.reason, since=state.since)


def _state_changed(state: DashboardState, event: StateChanged) -> DashboardState:
    level: Level = "error" if event.state == "failed" else "info"
    still = event.state == state.state == "running"
    then = replace(
        state,
        state=event.state,
        sentence=event.sentence,
        reason=event.reason,
        anyway_until=event.anyway_until,
        since=event.time,
        phase_since=state.phase_since if still else event.time,
    )
    if still and then.besides == state.besides:
        return then
    line = LogLine(seq=event.seq, time=event.time, level=level, text=event.sentence)
    return replace(then, log=state.log.append(line))


def _phase(state: DashboardState, event: Phase) -> DashboardState:
    phases = state.phases if state.phase is not None and state.phase.round == event.round else ()
    new = event.phase not in phases
    return replace(
        state,
        phase=event,
        phases=(*phases, event.phase) if new else phases,
        phase_since=event.time if new else state.phase_since,
    )


def _group(state: DashboardState, event: GroupRecorded) -> DashboardState:
    """Journals from before FirstSuccess mark the group."""
    task = event.group.question.ref.dataset
    trail = state.trails.get(task)
    if not event.first_solved or (trail is not None and trail.solved is not None and trail.solved.round >= 0):
        return state
    return _first_success(state, FirstSuccess(time=event.time, round=event.round, task=task))


def _first_success(state: DashboardState, event: FirstSuccess) -> DashboardState:
    if event.node:
        return state
    line = LogLine(
        seq=event.seq, time=event.time, level="info", text=f"First success at {event.task}, in round {event.round + 1}"
    )
    return replace(state, solved=state.solved | {event.task}, log=state.log.append(line))


def _vitals(state: DashboardState, event: Vitals) -> DashboardState:
    return replace(state, vitals=event, figures=state.figures.measured(event))


def _round_finished(state: DashboardState, event: RoundFinished) -> DashboardState:
    return replace(
        state,
        round=event,
        rounds=event.round + 1,
        examples_rounds=state.examples_rounds + (event.covers if event.examples else 0),
        round_time=event.time,
        round_seconds=sum(event.seconds.values()) / event.covers or None,
        tokens=state.tokens + event.tokens_generated,
        phase=None,
        phases=(),
        figures=state.figures.finished(event),
        gained=state.gained.after(event),
        trial=state.trial.after(event),
        newest=max(state.newest, event.time),
    )


def _swarm(state: DashboardState, event: SwarmUpdated) -> DashboardState:
    log = state.log
    if state.swarm is None or state.swarm.connected != event.connected:
        level: Level = "info" if event.connected else "warning"
        log = log.append(LogLine(seq=event.seq, time=event.time, level=level, text=event.sentence))
    return replace(state, swarm=event, log=log, figures=state.figures.told(event, state.rounds))


def before_measurement(state: DashboardState) -> str:
    """What is known before the first evaluation: how far the examples phase is, else the trial's sentence, else nothing."""
    if state.reading is not None:
        return state.reading.sentence
    return state.base_trial.sentence if state.base_trial is not None else ""


def evaluation_sentence(event: Evaluated) -> str:
    """A held-out result, and how it stands to the base."""
    items = f"{event.items} items, T={event.temperature:g}"
    text = f"Held-out pass@1 {100 * event.pass_at_1:.1f} % {format_after_round(event.round)} ({items})"
    difference = describe_difference(event)
    at_0 = describe_greedy(event)
    return (f"{text}: {difference}" if difference else text) + (f"; {at_0}" if at_0 else "")
