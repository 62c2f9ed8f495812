"""How far a model was trained, as people read it: steps of examples and rounds of practice, counted separately.

The journal and the checkpoints number both with one running number, which going back to an earlier state raises too: such a
number says which state is meant, not how much is in it. Only what led to the weights counts here.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TypeGuard

import msgspec

from sapo_swarm.events import CheckpointSaved, Event, ExternalSwitched, RoundFinished, RunStarted

LINEAGE = ("round", "checkpoint", "external")
"""Kinds of events from which TrainingCounts are computed."""


class TrainingCount(msgspec.Struct, frozen=True):
    """What some weights were trained with. steps: of examples. rounds: of practice."""

    steps: int = 0
    rounds: int = 0

    def __str__(self) -> str:
        """All of it: 19 steps of examples and 12 rounds of practice. Without examples there is nothing to tell rounds from."""
        if not self.steps:
            return count_of(self.rounds, "round")
        steps = f"{count_of(self.steps, 'step')} of examples"
        return f"{steps} and {count_of(self.rounds, 'round')} of practice" if self.rounds else steps

    @property
    def newest(self) -> str:
        """The last thing that they were trained with, by its number: round 12, or step 19 of examples; "" for nothing."""
        if self.rounds:
            return f"round {self.rounds:,}"
        return f"step {self.steps:,} of examples" if self.steps else ""

    @property
    def when(self) -> str:
        """The time of something that happened to these weights: after round 12."""
        return f"after {self.newest}" if self.newest else "before training"


class Stretch(msgspec.Struct, frozen=True):
    """From the running number `start` on, with `steps` and `rounds` done there, each number is one more step or round."""

    start: int
    steps: int
    rounds: int
    examples: bool

    def at(self, number: int) -> TrainingCount:
        """The counts at that running number, which is in this stretch or follows it."""
        more = max(0, number - self.start)
        return TrainingCount(self.steps + (more if self.examples else 0), self.rounds + (0 if self.examples else more))


class TrainingCounts(msgspec.Struct, frozen=True):
    """The counts behind every running number: a pure function of the journal's events, O(1) per event.

    end: the newest running number. trained: all that was done, also what is not in the weights because an earlier state was
    restored.
    """

    stretches: tuple[Stretch, ...] = (Stretch(0, 0, 0, examples=False),)
    end: int = 0
    trained: TrainingCount = TrainingCount()

    @classmethod
    def of(cls, events: Iterable[object]) -> TrainingCounts:
        """The counts after these events, of a journal in order."""
        counts = cls()
        for event in events:
            if isinstance(event, RoundFinished | CheckpointSaved | ExternalSwitched | RunStarted):
                counts = counts.after(event)
        return counts

    @property
    def now(self) -> TrainingCount:
        """What the present weights were trained with."""
        return self.at(self.end)

    @property
    def undone(self) -> TrainingCount:
        """What is not in the present weights, because an earlier state was restored."""
        return _minus(self.trained, self.now)

    def at(self, number: int) -> TrainingCount:
        """What the weights with that running number were trained with. Numbers to come are of the kind done last."""
        return next(stretch for stretch in reversed(self.stretches) if stretch.start <= max(0, number)).at(number)

    def done_in(self, number: int) -> TrainingCount:
        """The counts once the step or round that the journal calls `number`, from 0 on, is done; it is counted already."""
        return self.at(number + 1)

    def practice_round(self, number: int) -> int:
        """Which round of practice the one is that the journal calls `number`, from 0 on. It may be in flight."""
        return self.at(number).rounds + 1

    def after(self, event: Event) -> TrainingCounts:
        """The counts after one more event; most change nothing."""
        match event:
            case RoundFinished():
                return self._trained(event)
            case CheckpointSaved() | ExternalSwitched() if _restores(event):
                return self._restored(event.round, event.restored)
            case RunStarted():
                return self._opened(event)
        return self

    def _trained(self, event: RoundFinished) -> TrainingCounts:
        first = max(0, event.round + 1 - event.covers)
        trained = _minus(self.trained, self._lost(first))  # what a killed node had not saved is done once more
        stretches, examples = self._until(first), event.examples > 0
        if stretches[-1].examples != examples:
            done = stretches[-1].at(first)
            stretches = (*stretches, Stretch(first, done.steps, done.rounds, examples))
        steps, rounds = (event.covers, 0) if examples else (0, event.covers)
        trained = TrainingCount(trained.steps + steps, trained.rounds + rounds)
        return TrainingCounts(stretches, event.round + 1, trained)

    def _restored(self, number: int, earlier: int) -> TrainingCounts:
        back = self.at(earlier)
        stretches = tuple(stretch for stretch in self.stretches if stretch.start < number) or self.stretches[:1]
        stretch = Stretch(number, back.steps, back.rounds, examples=False)
        return TrainingCounts((*stretches, stretch), number, self.trained)

    def _opened(self, event: RunStarted) -> TrainingCounts:
        """A node says where it is: what came before may be unknown here, or the newest rounds may not have been saved."""
        if event.round <= self.end:
            return TrainingCounts(self._until(event.round), event.round, _minus(self.trained, self._lost(event.round)))
        steps = max(self.now.steps, event.examples_rounds)
        rounds = max(0, self.now.rounds + event.round - self.end - (steps - self.now.steps))
        stretch = Stretch(event.round, steps, rounds, examples=False)
        trained = TrainingCount(
            self.trained.steps + steps - self.now.steps, self.trained.rounds + rounds - self.now.rounds
        )
        return TrainingCounts((*self.stretches, stretch), event.round, trained)

    def _lost(self, number: int) -> TrainingCount:
        """What was done after that running number."""
        return _minus(self.now, self.at(number)) if number < self.end else TrainingCount()

    def _until(self, number: int) -> tuple[Stretch, ...]:
        return tuple(stretch for stretch in self.stretches if stretch.start <= number)


def _restores(event: object) -> TypeGuard[CheckpointSaved | ExternalSwitched]:
    """Whether an earlier state was restored: by a person, or by the tripwire."""
    if isinstance(event, CheckpointSaved):
        return event.restored >= 0
    return isinstance(event, ExternalSwitched) and event.by == "tripwire" and not event.taking


def find_lineage(events: Iterable[object], end: int) -> Callable[[int, int], bool]:
    """(seq of an event, running number it reports) -> whether that led to the weights with running number `end`: it did not if
    an earlier state was restored since. events: of LINEAGE, in order."""
    back = [e for e in events if _restores(e)]
    spans: list[tuple[int, int, int, int]] = []  # after which event and before which, from which number to which
    before = sys.maxsize
    for event in reversed(back):
        if event.round <= end:
            spans.append((event.seq, before, event.round, end))
            before, end = event.seq, event.restored
    spans.append((-1, before, 0, end))
    return lambda seq, number: any(
        after < seq < until and first <= number <= last for after, until, first, last in spans
    )


ROUNDS_ONLY = TrainingCounts()
"""Where nothing is known of examples: every number is a round of practice."""


def _minus(more: TrainingCount, less: TrainingCount) -> TrainingCount:
    return TrainingCount(max(0, more.steps - less.steps), max(0, more.rounds - less.rounds))


def count_of(number: int, what: str) -> str:
    """A number with its noun: 1 round, 1,200 rounds."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
