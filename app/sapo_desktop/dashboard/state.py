"""The dashboard's state as a pure function of events: `apply_event(state, event) -> state`, O(1) per event; and the messages
between the dashboard and its caller.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

import msgspec
from msgspec import field
from msgspec.structs import replace

from sapo_desktop.dashboard.history.run import ExternalContribution, RunMetrics, RunMilestone, add_milestones
from sapo_desktop.dashboard.history.series import BoundedHistory
from sapo_desktop.services.against_base import describe_base_so_far, describe_difference, describe_greedy
from sapo_desktop.services.swarms.trial import TrialProgress
from sapo_swarm.events import (
    BaseAsked,
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
from sapo_swarm.node.training_count import TrainingCounts

if TYPE_CHECKING:
    from sapo_desktop.dashboard.history.groups import GroupSource

# Messages between the dashboard and its caller, in addition to the node's events.

QuitChoice = Literal["stop", "background"]
"""How the person left the dashboard: stop everything, or keep working in the background."""


@dataclass(frozen=True)
class NodeLink:
    """The connection to the node was made or lost. sentence: shown in the header. ended: the node was
    there, and nothing listens on its socket any more. starting: another node is already starting. refused: one was to start,
    and did not; the sentence says why."""

    connected: bool
    sentence: str
    time: float
    ended: bool = False
    starting: bool = False
    refused: bool = False


@dataclass(frozen=True)
class ReplayRewound:
    """A recording restarts from its beginning: the state built from it is dropped."""


@dataclass(frozen=True)
class ReplayCaption:
    """What there is to see in a recording from `time` (Unix seconds) on, and on which screen ("" is the current one)."""

    time: float
    text: str
    screen: str = ""


class EventFeed(Protocol):
    """The source of events and the target of commands: a node, or a recording."""

    controls: bool
    """Whether commands reach a node; if so, leaving must ask what to do with it."""

    def events(self) -> AsyncIterator[Event | NodeLink | ReplayRewound]:
        """Past events, then live ones; ends only when no more can come."""
        ...

    async def command(self, verb: str, **body: float) -> None:
        """A POST verb of the control API. Raises CommandFailed."""
        ...

    def groups(self) -> GroupSource | None:
        """The source of all groups of the watched run; the same object until the run changes. None: not known yet."""
        ...

    def upto(self) -> int:
        """The number of the newest group to show: a recording has not replayed later ones yet."""
        ...

    def describe(self) -> str:
        """One phrase for the help screen: what is being watched."""
        ...

    def now(self) -> float:
        """Unix seconds on the clock of the events: real time, or a recording's."""
        ...


# The state as a pure function of events: `apply_event(state, event) -> state`, O(1) per event.

Level = Literal["info", "warning", "error"]

_MAX_GROUPS = 256
"""Groups kept for screen 1; screen 3 reads the journal, which has them all."""
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
    """The running number of the weights, as reported."""
    counts: TrainingCounts = field(default_factory=TrainingCounts)
    """What is behind the running numbers: steps of examples and rounds of practice."""
    base_trial: TrialMeasured | None = None
    """How the untrained model did on training questions."""
    reading: ExamplesRead | None = None
    """Progress of the examples phase, or its last progress."""
    round_time: float = 0.0
    round_seconds: float | None = None
    """Working time of the last round, without pauses."""
    tokens: int = 0
    figures: RunMetrics = field(default_factory=RunMetrics)
    latest: Evaluated | None = None
    """The newest evaluation."""
    base: Evaluated | None = None
    """The first evaluation of the untrained model."""
    base_asked: BaseAsked | None = None
    """How far the untrained model is with the held-out questions, while it is asked them beside training."""
    groups: BoundedHistory[GroupRecorded] = field(default_factory=_groups)
    solved: frozenset[str] = frozenset()
    """Tasks solved at least once."""
    swarm: SwarmUpdated | None = None
    external_off: str = ""
    """Why no external groups are taken; "" when they are."""
    moments: tuple[RunMilestone, ...] = ()
    """The milestones marked in charts: paused, joined, left, settings changed, rolled back, first solved."""
    gained: ExternalContribution = field(default_factory=ExternalContribution)
    trails: Trails = field(default_factory=dict)
    """For every task: who solved it first, as far as this node saw, and when it was solved here."""
    trial: TrialProgress = field(default_factory=TrialProgress)
    """The trial of this model in an open swarm."""
    log: BoundedHistory[LogLine] = field(default_factory=_log)
    newest: float = 0.0
    """Time of the newest event."""

    @property
    def practised(self) -> int:
        """Rounds of practice in the weights; the planned number of rounds counts these."""
        return self.counts.now.rounds

    @property
    def examples_rounds(self) -> int:
        """Steps of examples in the weights."""
        return self.counts.now.steps

    @property
    def silo(self) -> bool:
        """Whether there is no run yet, or one that trains alone."""
        return self.run is None or self.run.mode == "silo"

    @property
    def gone(self) -> bool:
        """Whether the node is gone for good (not just unreachable for a moment): it said so before it exited, or was killed."""
        if self.link is None or self.link.connected or self.link.starting:
            return False
        return self.state in ("stopped", "failed") or self.link.ended

    @property
    def absent(self) -> bool:
        """Whether no node is working: it is gone, or restarting. Its last reported work is over."""
        return self.gone or (self.link is not None and self.link.starting and not self.link.connected)

    @property
    def absence(self) -> str:
        """Why no node works, in a sentence without its full stop: for panels that would show work."""
        return "The node is gone: space starts it again" if self.gone else "The node is starting again"

    @property
    def besides(self) -> str:
        """The node's sentence after its first phrase: which rule slows it, until when it overrides the rules, what was
        requested and will happen once its model is open."""
        return self.sentence.partition(" · ")[2]

    @property
    def paused(self) -> bool:
        """Whether the node is not working now, for whatever reason."""
        return self.state in ("paused", "pausing", "stopped", "failed")

    @property
    def finished(self) -> bool:
        """Whether the run has done what it was to do: nothing is left to learn, or the planned rounds are done."""
        planned = self.run.rounds_planned if self.run is not None else 0
        ended = self.state == "stopped" and bool(planned) and self.practised >= planned
        return ended or (self.state == "paused" and self.reason == "done")

    @property
    def in_examples(self) -> bool:
        """Whether the run is in the examples phase, which imitates correct answers; practice may follow."""
        return bool(self.phase and self.phase.phase == "examples") and not self.paused

    @property
    def before_practice(self) -> bool:
        """Whether there were examples only so far, which make no groups."""
        return self.in_examples or (self.examples_rounds > 0 and not self.practised)

    @property
    def examples_left(self) -> bool:
        """Whether the examples phase has begun, or is what follows the trial of the base, and is not over yet."""
        planned = self.base_trial is not None and self.base_trial.plan in ("examples", "only")
        over = self.finished or self.practised > 0 or (self.reading is not None and self.reading.over)
        return (planned or self.examples_rounds > 0) and not over

    @property
    def resumable(self) -> bool:
        """Whether space resumes the node: it is paused, or will be once its model is open."""
        return self.paused or (self.state == "starting" and bool(self.reason))


def apply_event(state: DashboardState, event: Event | NodeLink) -> DashboardState:  # noqa: C901, PLR0912 - one case per event
    """The state after the event. Never raises on an event that decodes."""
    state = _counted(state, event)
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
            state = replace(state, groups=state.groups.append(event))
        case FirstSuccess():
            state = _first_success(state, event)
        case Evaluated():
            line = LogLine(seq=event.seq, time=event.time, level="info", text=evaluation_sentence(event, state.counts))
            base = state.base or (None if event.round else event)
            latest = event if event.round or not event.belated or state.latest is None else state.latest
            state = replace(
                state,
                latest=latest,
                base=base,
                base_asked=None if event.belated else state.base_asked,
                figures=state.figures.evaluated(event),
                gained=state.gained.after(event),
                log=state.log.append(line),
            )
        case BaseAsked():
            state = replace(state, base_asked=event, figures=state.figures.base_asked(event))
            if text := describe_base_so_far(event):
                state = replace(
                    state, log=state.log.append(LogLine(seq=event.seq, time=event.time, level="info", text=text))
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
        case CheckpointSaved() if event.restored >= 0:  # a rollback trains nothing, but counts as a round
            state = replace(state, rounds=event.round, **_undone(state, event.restored))
        case LogLine():
            state = replace(state, log=state.log.append(event))
    newest, moments = max(state.newest, event.time), add_milestones(state.moments, event, state.rounds)
    trails = update_trails(state.trails, event)
    if newest == state.newest and moments is state.moments and trails is state.trails:
        return state
    return replace(state, newest=newest, moments=moments, trails=trails)


def _undone(state: DashboardState, restored: int) -> dict[str, Any]:
    """What no longer holds once the weights after `restored` rounds are back: results of what came later."""
    later = state.latest is not None and state.latest.round > restored
    read = state.reading is not None and state.reading.round > restored
    return {"latest": state.base if later else state.latest, "reading": None if read else state.reading}


def _counted(state: DashboardState, event: Event | NodeLink) -> DashboardState:
    """The state with the steps and rounds up to this event; a start of a node has its own way."""
    if not isinstance(event, RoundFinished | CheckpointSaved | ExternalSwitched):
        return state
    counts = state.counts.after(event)
    return state if counts is state.counts else replace(state, counts=counts)


def _run_started(state: DashboardState, event: RunStarted) -> DashboardState:
    same = state.run is not None and state.run.run_id == event.run_id
    counts = (state.counts if same else TrainingCounts()).after(event)
    trained = f" {counts.now.when}" if counts.now.newest else ""
    line = LogLine(
        seq=event.seq,
        time=event.time,
        level="info",
        text=f"{event.name or event.run_id} opened{trained}: "
        f"{event.model} on {event.device} ({event.backend}), "
        f"{event.algorithm}, {event.local_groups}/{event.external_groups} groups of {event.group_size}"
        + "".join(f"; {change}" for change in event.changed),
    )
    if same:
        return replace(
            state,
            run=event,
            counts=counts,
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
    fresh = replace(fresh, trial=fresh.trial.after(event), counts=counts)
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


def _first_success(state: DashboardState, event: FirstSuccess) -> DashboardState:
    if event.node:
        return state
    line = LogLine(
        seq=event.seq,
        time=event.time,
        level="info",
        text=f"First success at {event.task}, in round {state.counts.practice_round(event.round)}",
    )
    return replace(state, solved=state.solved | {event.task}, log=state.log.append(line))


def _vitals(state: DashboardState, event: Vitals) -> DashboardState:
    return replace(state, vitals=event, figures=state.figures.measured(event))


def _round_finished(state: DashboardState, event: RoundFinished) -> DashboardState:
    return replace(
        state,
        round=event,
        rounds=event.round + 1,
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
    """The text before the first evaluation: how far the untrained model is, then progress of the examples phase, else the
    base trial's sentence; "" without any of them."""
    asked = describe_base_so_far(state.base_asked) if state.base_asked is not None else ""
    if state.reading is not None:
        rest = state.reading.sentence
    else:
        rest = state.base_trial.sentence if state.base_trial is not None else ""
    return f"{asked}. {rest}".strip() if asked else rest


def evaluation_sentence(event: Evaluated, counts: TrainingCounts) -> str:
    """A held-out result, compared with the base. counts: to say when it was."""
    items = f"{event.items} items, T={event.temperature:g}"
    text = f"Held-out pass@1 {100 * event.pass_at_1:.1f} % {counts.at(event.round).when} ({items})"
    difference = describe_difference(event)
    at_0 = describe_greedy(event)
    return (f"{text}: {difference}" if difference else text) + (f"; {at_0}" if at_0 else "")
