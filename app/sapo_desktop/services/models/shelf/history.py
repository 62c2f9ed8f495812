"""What a model's journal says about its life: sessions, evaluations, rounds, tokens. Read while a node may be writing it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.config import RunConfig
from sapo_swarm.events import (
    CheckpointSaved,
    Evaluated,
    Event,
    ExamplesRead,
    ExternalSwitched,
    RoundFinished,
    RunStarted,
    TrialMeasured,
    settled_evaluations,
)
from sapo_swarm.node.journal import JournalError, leads_here, read_only
from sapo_swarm.node.training_count import LINEAGE, TrainingCount, TrainingCounts
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.tasks.catalogue import new_tokens

STORY = ("run_started", "round", "evaluation", "external", "checkpoint", "base_trial", "examples")
"""Kinds of events that make up a model's history."""


@dataclass(frozen=True)
class TrainingHistory:
    """Oldest first. problem: why the journal could not be read, "" when it could or when there is none yet. undone:
    evaluations of weights that a rollback discarded. counts: what each of its weights were trained with. backs:
    rollbacks by a person. examples: what began, was measured in and ended the examples phase."""

    sessions: tuple[RunStarted, ...] = ()
    rounds: tuple[RoundFinished, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()
    problem: str = ""
    counts: TrainingCounts = field(default_factory=TrainingCounts)
    undone: tuple[Evaluated, ...] = ()
    backs: tuple[CheckpointSaved, ...] = ()
    examples: tuple[TrialMeasured | ExamplesRead, ...] = ()

    @property
    def tokens(self) -> int:
        """Tokens generated in all rounds in the journal."""
        return sum(event.tokens_generated for event in self.rounds)

    @property
    def held_out(self) -> Evaluated | None:
        """The newest evaluation of the weights, or of those they came from."""
        return next((event for event in reversed(self.evaluations) if event not in self.undone), None)

    @property
    def computed(self) -> str:
        """The engine, type and device of the last session; "" where its engine did not report them."""
        last = self.sessions[-1] if self.sessions else None
        if last is None or not last.computed_by:
            return ""
        return safe_text(f"{last.computed_by}, {last.precision} on {last.device}", 300, lines=False)

    @property
    def judged(self) -> bool:
        """Whether its rewards are verdicts of a judge; else they are verified."""
        return bool(self.sessions) and self.sessions[-1].judged


def load_history(folder: Path) -> TrainingHistory:
    """The history of the model in that folder. Never raises: what cannot be read is described in `problem`."""
    try:
        events = _events(folder, STORY)
    except JournalError as error:
        return TrainingHistory(problem=str(error))
    return TrainingHistory(
        tuple(e for e in events if isinstance(e, RunStarted)),
        tuple(e for e in events if isinstance(e, RoundFinished)),
        tuple(settled_evaluations(events)),
        counts=TrainingCounts.of(events),
        undone=tuple(undone_evaluations(events)),
        backs=tuple(e for e in events if isinstance(e, CheckpointSaved) and e.restored >= 0),
        examples=tuple(e for e in events if isinstance(e, TrialMeasured | ExamplesRead)),
    )


def undone_evaluations(events: Sequence[Event]) -> list[Evaluated]:
    """The evaluations of weights that the tripwire or a person rolled back. events: of a journal, in order."""
    leads = leads_here(events)
    undone = [event for event in events if isinstance(event, Evaluated) and not leads(event.round)]
    for place, back in enumerate(events):
        if isinstance(back, ExternalSwitched) and back.by == "tripwire" and not back.taking:
            undone += [e for e in events[:place] if isinstance(e, Evaluated) and e.round > back.restored]
    return undone


def describe_session(session: RunStarted) -> str:
    """What was different in this session, in words."""
    return safe_text("; ".join(session.changed), 2000, lines=False) or ("continued" if session.round else "begun")


def session_start(done: TrainingCount) -> str:
    """Where in training a session started, in a column's words."""
    return done.when if done.newest else "from the start"


def last_session(folder: Path) -> RunStarted | None:
    """How training was started the last time; None where it never was, or the journal cannot be read."""
    try:
        events = _events(folder, ("run_started",), tail=1)
    except JournalError:
        return None
    return next((e for e in events if isinstance(e, RunStarted)), None)


def rounds_told(folder: Path) -> int:
    """Rounds recorded in the journal; 0 where it cannot be read."""
    try:
        events = _events(folder, ("round",), tail=1)
    except JournalError:
        return 0
    return max((e.round + 1 for e in events if isinstance(e, RoundFinished)), default=0)


def rounds_behind(model: Model) -> int:
    """Rounds that the model was trained for; after a kill some of them are in its log, not yet in a checkpoint."""
    return max(model.rounds_done, rounds_told(model.folder))


def training_counts(folder: Path) -> TrainingCounts:
    """What each of its weights were trained with: steps of examples and rounds of practice. Where the journal cannot be read,
    every number is a round."""
    try:
        return TrainingCounts.of(_events(folder, LINEAGE))
    except JournalError:
        return TrainingCounts()


def trained_count(model: Model) -> TrainingCount:
    """What the model's weights were trained with, what is in its log included."""
    return training_counts(model.folder).at(rounds_behind(model))


def with_room(config: RunConfig, folder: Path) -> RunConfig:
    """The settings, with room for answers that the model learned from examples: these may be longer than the default limit,
    and the results of base and trained model need the same limit. Raises BadTask."""
    try:
        trials = _events(folder, ("base_trial",), tail=1)
    except JournalError:
        return config
    limits = next((e.limits for e in trials if isinstance(e, TrialMeasured)), {})
    limits_above = {task: number for task, number in limits.items() if number > new_tokens(config, task)}
    return resolve_run_config(config, facts=RunFacts(answer_limits=limits_above))[0]


def _events(folder: Path, kinds: tuple[str, ...], tail: int = 0) -> list[Event]:
    journal = folder / "journal.db"
    return read_only(journal, kinds=kinds, tail=tail) if journal.exists() else []
