"""What happened in a run that a chart marks with a letter."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sapo_swarm.events import (
    CheckpointSaved,
    Event,
    ExamplesRead,
    ExternalSwitched,
    FirstSuccess,
    GroupRecorded,
    RunStarted,
    StateChanged,
    TrialMeasured,
)

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
"""What the letters stand for; where several fall on one place, the first of these is shown."""
_MOST = 800
JOINED, LEFT = "joined", "left"
"""How a session's `changed` begins where a swarm was joined or left."""


@dataclass(frozen=True, slots=True)
class Moment:
    """round: rounds that were done (the first success: the round it came in). time: Unix seconds."""

    letter: Letter
    round: float
    time: float


def noted(known: tuple[Moment, ...], event: Event, rounds: int) -> tuple[Moment, ...]:
    """With what the event says, if a chart marks it. rounds: done so far. Of very many the old ones grow sparse."""
    found = _of(event, rounds)
    if not found or (found[0].letter == "S" and any(m.letter == "S" and m.round == found[0].round for m in known)):
        return known
    known = (*known, *found)
    return known if len(known) < _MOST else (*known[: _MOST // 2 : 2], *known[_MOST // 2 :])


def of_session(event: RunStarted) -> tuple[Moment, ...]:
    """What was different when training went on."""
    letters: set[Letter] = set()
    for change in event.changed:
        letters.add("J" if change.startswith(JOINED) else "L" if change.startswith(LEFT) else "C")
    return tuple(Moment(letter, event.round, event.time) for letter in sorted(letters))


def _of(event: Event, rounds: int) -> tuple[Moment, ...]:
    match event:
        case RunStarted():
            return of_session(event)
        case StateChanged(state="paused"):
            return (Moment("P", rounds, event.time),)
        case TrialMeasured(plan="examples" | "only") | ExamplesRead(over=True):
            return (Moment("E", event.round, event.time),)
        case ExternalSwitched() | CheckpointSaved() if _went_back(event):
            return (Moment("R", event.round, event.time),)
        case GroupRecorded(first_solved=True) | FirstSuccess(node=""):
            return (Moment("S", event.round + 1, event.time),)
    return ()


def _went_back(event: ExternalSwitched | CheckpointSaved) -> bool:
    """Older weights came back: by the tripwire, or by a person, who may go back to round 0."""
    return event.restored > (-1 if isinstance(event, CheckpointSaved) else 0)
