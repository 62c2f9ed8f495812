"""The dashboard's whole picture as a pure function of events: `apply(state, event) -> state`, O(1) per event."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

from sapo_desktop.dashboard.look.show import after
from sapo_desktop.dashboard.messages import Link
from sapo_desktop.dashboard.series import Series, Trail
from sapo_swarm.events import (
    Evaluated,
    Event,
    ExternalSwitched,
    GroupRecorded,
    LogLine,
    Phase,
    PhaseName,
    RoundFinished,
    RunStarted,
    State,
    StateChanged,
    SwarmUpdated,
    Vitals,
)

Level = Literal["info", "warning", "error"]

_MAX_GROUPS = 1600
"""200 rounds of eight groups."""
_MAX_LOG = 1000
_MAX_SESSIONS = 400
_MAX_EVALUATIONS = 400


def _groups() -> Trail[GroupRecorded]:
    return Trail(_MAX_GROUPS)


def _sessions() -> Trail[RunStarted]:
    return Trail(_MAX_SESSIONS)


def _log() -> Trail[LogLine]:
    return Trail(_MAX_LOG)


def _evaluations() -> Trail[Evaluated]:
    return Trail(_MAX_EVALUATIONS)


@dataclass(frozen=True, slots=True)
class Figures:
    """One series per figure, over rounds (the first is 1) unless said otherwise. Rewards are never mixed."""

    reward_local: Series = field(default_factory=Series)
    reward_external: Series = field(default_factory=Series)
    reward_batch: Series = field(default_factory=Series)
    nonzero_groups: Series = field(default_factory=Series)
    """Share of local groups with unequal rewards, in [0, 1]."""
    well_formed: Series = field(default_factory=Series)
    truncated: Series = field(default_factory=Series)
    tokens_per_s: Series = field(default_factory=Series)
    external_share: Series = field(default_factory=Series)
    """J_actual / (I + J) of each batch."""
    share: Series = field(default_factory=Series)
    """My accepted groups / all accepted groups."""
    uptake: Series = field(default_factory=Series)
    """Times other nodes sampled mine, in the coordinator's window."""
    memory: Series = field(default_factory=Series)
    """Bytes of the node's process tree, over time in seconds."""
    cpu: Series = field(default_factory=Series)
    watts: Series = field(default_factory=Series)
    celsius: Series = field(default_factory=Series)


@dataclass(frozen=True, slots=True)
class DashboardState:
    """Everything the screens draw. Frozen: keeping an old one freezes a chart."""

    run: RunStarted | None = None
    state: State = "starting"
    sentence: str = "Waiting for the node"
    reason: str = ""
    since: float = 0.0
    link: Link | None = None
    phase: Phase | None = None
    phases: tuple[PhaseName, ...] = ()
    """Phases seen in the round in flight, in order."""
    phase_since: float = 0.0
    vitals: Vitals | None = None
    round: RoundFinished | None = None
    rounds: int = 0
    """Rounds finished in this run, as told."""
    round_time: float = 0.0
    round_seconds: float | None = None
    """Time worked on the last round; pauses do not count."""
    tokens: int = 0
    figures: Figures = field(default_factory=Figures)
    evaluations: Trail[Evaluated] = field(default_factory=_evaluations)
    base: Evaluated | None = None
    """The first evaluation of the run."""
    sessions: Trail[RunStarted] = field(default_factory=_sessions)
    """Every time that training of this model was begun or gone on with; `changed` says what was different."""
    groups: Trail[GroupRecorded] = field(default_factory=_groups)
    solved: frozenset[str] = frozenset()
    """Tasks solved at least once."""
    swarm: SwarmUpdated | None = None
    external_off: str = ""
    """Why no external groups are taken; "" when they are."""
    log: Trail[LogLine] = field(default_factory=_log)
    newest: float = 0.0
    """Time of the newest event."""

    @property
    def silo(self) -> bool:
        """No run yet, or one that trains alone."""
        return self.run is None or self.run.mode == "silo"

    @property
    def gone(self) -> bool:
        """The node is not there any more (not merely out of reach for a moment): it said so before it left, or was killed."""
        left = self.state in ("stopped", "failed")
        return self.link is not None and not self.link.connected and (left or self.link.ended)

    @property
    def paused(self) -> bool:
        """The node does not work now, for whatever reason."""
        return self.state in ("paused", "pausing", "stopped", "failed")


def apply(state: DashboardState, event: Event | Link) -> DashboardState:  # noqa: C901 - one case an event
    """The state after the event. Never raises on an event that decodes."""
    match event:
        case Link():
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
            state = _group(state, event)
        case Evaluated():
            line = LogLine(time=event.time, level="info", text=_evaluation_sentence(event))
            base = state.base or event
            state = replace(state, evaluations=state.evaluations.append(event), base=base, log=state.log.append(line))
        case SwarmUpdated():
            state = _swarm(state, event)
        case ExternalSwitched():
            line = LogLine(time=event.time, level="info" if event.taking else "warning", text=event.sentence)
            off = "" if event.taking else event.sentence
            state = replace(state, external_off=off, log=state.log.append(line))
        case LogLine():
            state = replace(state, log=state.log.append(event))
    return replace(state, newest=max(state.newest, event.time))


def _run_started(state: DashboardState, event: RunStarted) -> DashboardState:
    line = LogLine(
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
            sessions=state.sessions.append(event),
            phase=None,
            phases=(),
            round_time=0.0,
            solved=state.solved | set(event.solved),
            swarm=None if event.mode == "silo" else state.swarm,
            external_off="" if event.mode == "silo" else state.external_off,
            log=state.log.append(line),
        )
    fresh = DashboardState(run=event, link=state.link, log=state.log.append(line), solved=frozenset(event.solved))
    fresh = replace(fresh, sessions=fresh.sessions.append(event))
    return replace(fresh, state=state.state, sentence=state.sentence, reason=state.reason, since=state.since)


def _state_changed(state: DashboardState, event: StateChanged) -> DashboardState:
    level: Level = "error" if event.state == "failed" else "info"
    quiet = event.state == state.state == "running"
    log = state.log if quiet else state.log.append(LogLine(time=event.time, level=level, text=event.sentence))
    return replace(
        state,
        state=event.state,
        sentence=event.sentence,
        reason=event.reason,
        since=event.time,
        phase_since=state.phase_since if quiet else event.time,
        log=log,
    )


def _phase(state: DashboardState, event: Phase) -> DashboardState:
    same_round = state.phase is not None and state.phase.round == event.round
    phases = state.phases if same_round else ()
    new = event.phase not in phases
    return replace(
        state,
        phase=event,
        phases=(*phases, event.phase) if new else phases,
        phase_since=event.time if new else state.phase_since,
    )


def _group(state: DashboardState, event: GroupRecorded) -> DashboardState:
    state = replace(state, groups=state.groups.append(event))
    if not event.first_solved:
        return state
    task = event.group.question.ref.dataset
    line = LogLine(time=event.time, level="info", text=f"First success at {task}, in round {event.round + 1}")
    return replace(state, solved=state.solved | {task}, log=state.log.append(line))


def _vitals(state: DashboardState, event: Vitals) -> DashboardState:
    figures = state.figures
    return replace(
        state,
        vitals=event,
        figures=replace(
            figures,
            memory=figures.memory.append(event.time, event.memory),
            cpu=figures.cpu.append(event.time, event.cpu_percent),
            watts=figures.watts.append(event.time, event.watts),
            celsius=figures.celsius.append(event.time, event.celsius),
        ),
    )


def _round_finished(state: DashboardState, event: RoundFinished) -> DashboardState:
    figures, x = state.figures, event.round + 1
    generating = event.seconds.get("generate", 0.0)
    batch = event.local_groups + event.external_groups
    completions = event.completions or None
    return replace(
        state,
        round=event,
        rounds=event.round + 1,
        round_time=event.time,
        round_seconds=sum(event.seconds.values()) / event.covers or None,
        tokens=state.tokens + event.tokens_generated,
        phase=None,
        phases=(),
        figures=replace(
            figures,
            reward_local=figures.reward_local.append(x, event.reward_local),
            reward_external=figures.reward_external.append(x, event.reward_external),
            reward_batch=figures.reward_batch.append(x, event.reward_batch),
            nonzero_groups=figures.nonzero_groups.append(
                x, event.nonzero_groups / event.local_groups if event.local_groups else None
            ),
            well_formed=figures.well_formed.append(x, event.well_formed / completions if completions else None),
            truncated=figures.truncated.append(x, event.truncated / completions if completions else None),
            tokens_per_s=figures.tokens_per_s.append(
                x, event.tokens_generated / generating if generating > 0 else None
            ),
            external_share=figures.external_share.append(x, event.external_groups / batch if batch else None),
        ),
    )


def _swarm(state: DashboardState, event: SwarmUpdated) -> DashboardState:
    figures, log = state.figures, state.log
    if state.swarm is None or state.swarm.connected != event.connected:
        level: Level = "info" if event.connected else "warning"
        log = log.append(LogLine(time=event.time, level=level, text=event.sentence))
    return replace(
        state,
        swarm=event,
        log=log,
        figures=replace(
            figures,
            share=figures.share.append(state.rounds, event.share),
            uptake=figures.uptake.append(state.rounds, event.uptake),
        ),
    )


def _evaluation_sentence(event: Evaluated) -> str:
    items = f"{event.items} items, T={event.temperature:g}"
    text = f"Held-out pass@1 {100 * event.pass_at_1:.1f} % {after(event.round)} ({items})"
    if event.delta is None or event.delta_low is None or event.delta_high is None:
        return text
    if event.delta_low <= 0 <= event.delta_high:
        return f"{text}: no measurable change from base"
    return f"{text}: {100 * event.delta:+.1f} points from base ({100 * event.delta_low:+.1f} to {100 * event.delta_high:+.1f})"
