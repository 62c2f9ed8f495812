"""The held-out tripwire: when external text harms a node, it shows on questions that nobody trains on. Pure rules.

Verified-correct text can still poison ("Hail to the Thief", arXiv 2511.09780). So a node in a swarm compares every
regular evaluation with its best one. The best of many noisy figures is a lucky one, so a fall alone proves little: the
present weights and those of the best checkpoint then answer fresh held-out questions side by side, and only that
comparison trips the wire. What the numbers cost and catch: docs/decisions/0008-tripwire.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import msgspec

from sapo_swarm.evaluation import ItemResult, gained_and_lost, mcnemar_exact
from sapo_swarm.events import Evaluated, ExternalSwitched

SUSPICION = 2.5
"""Standard errors of the difference under the best at which a closer look is taken."""
CERTAINTY = 1e-4
"""Largest p of McNemar's exact test in the closer look."""
CLOSER = 2
"""Fresh questions of the closer look, as a multiple of the regular ones."""


class HeldOut(msgspec.Struct, frozen=True):
    """A held-out result. round: rounds done before it; pass_at_1: in [0, 1], of so many items.

    looked: the items are those of closer looks, not of the regular evaluation that made it the best.
    """

    round: int
    pass_at_1: float
    items: int
    looked: bool = False

    @property
    def variance(self) -> float:
        """Of pass_at_1, two successes and two failures added (Agresti and Coull), so that 0 and 1 are not certain."""
        rate = (self.pass_at_1 * self.items + 2) / (self.items + 4)
        return rate * (1 - rate) / (self.items + 4)


class Watch(msgspec.Struct, frozen=True):
    """What a run's journal says about its held-out results.

    best: the mark that later results are compared with. suspect: a result that fell and waits for a closer look.
    taking: external groups are taken. trips: times that the wire tripped. restored: rounds in the checkpoint that came
    back last. sentence: why nothing is taken, else "".
    """

    best: HeldOut | None = None
    suspect: HeldOut | None = None
    taking: bool = True
    trips: int = 0
    restored: int = 0
    sentence: str = ""


def watch_of(events: Iterable[object], items: int, tolerance: float) -> Watch:
    """The watch after the events of a journal, in order. items: of a regular evaluation."""
    watch = Watch()
    for event in events:
        watch = observe(watch, event, items, tolerance)
    return watch


def observe(watch: Watch, event: object, items: int, tolerance: float) -> Watch:
    """The watch after one more event. Evaluations on another number of items are on other questions: they say nothing.

    tolerance: part of the best that may be lost; 0 = suspect nothing, ever.
    """
    if isinstance(event, ExternalSwitched):
        return _switched(watch, event)
    if not isinstance(event, Evaluated) or event.items != items:
        return watch
    now = HeldOut(event.round, event.pass_at_1, event.items)
    if watch.best is None or better(watch.best, now):
        return msgspec.structs.replace(watch, best=now, suspect=None)
    suspicious = watch.taking and fell(watch.best, now, tolerance)
    return msgspec.structs.replace(watch, suspect=now if suspicious else None)


def _switched(watch: Watch, event: ExternalSwitched) -> Watch:
    best = watch.best
    if best is not None and event.items:
        best = looked_at(best, event.best, event.items)
    tripped = event.by == "tripwire" and not event.taking
    return msgspec.structs.replace(
        watch,
        best=best,
        suspect=None,
        taking=event.taking,
        trips=watch.trips + tripped,
        restored=event.restored if tripped else watch.restored,
        sentence="" if event.taking else event.sentence,
    )


def better(best: HeldOut, now: HeldOut) -> bool:
    """A new best. A mark that was looked at closer gives way only to what is a standard error above it: else slow harm
    would hide behind the lucky figures of ever worse weights."""
    doubt = math.sqrt(best.variance + now.variance) if best.looked else 0.0
    return now.pass_at_1 > best.pass_at_1 + doubt


def fell(best: HeldOut, now: HeldOut, tolerance: float) -> bool:
    """A reason to look closer: more than `tolerance` of the best is gone, and more than chance explains."""
    if tolerance <= 0 or now.pass_at_1 >= (1 - tolerance) * best.pass_at_1:
        return False
    return best.pass_at_1 - now.pass_at_1 > SUSPICION * math.sqrt(best.variance + now.variance)


def confirmed(before: Sequence[ItemResult], after: Sequence[ItemResult], tolerance: float) -> bool:
    """The closer look: the best checkpoint's answers and the present ones to the same fresh questions.

    True when more than `tolerance` is lost and McNemar's exact test is sure of a loss. Raises ValueError where the
    questions differ.
    """
    if [item.ref for item in before] != [item.ref for item in after]:
        raise ValueError("Both sides must answer the same questions, in the same order.")
    gained, lost = gained_and_lost(zip(before, after, strict=True))
    enough = tolerance > 0 and mean(after) < (1 - tolerance) * mean(before)
    return enough and lost > gained and mcnemar_exact(gained, lost) < CERTAINTY


def looked_at(best: HeldOut, rate: float, items: int) -> HeldOut:
    """The mark after a closer look at it. The figure that made it the best was picked for being high; fresh questions
    were not, so theirs replaces it, and several looks are averaged."""
    before = best.items if best.looked else 0
    pooled = (before * best.pass_at_1 + items * rate) / (before + items)
    return msgspec.structs.replace(best, pass_at_1=pooled, items=before + items, looked=True)


def mean(results: Sequence[ItemResult]) -> float:
    """pass@1; 0 without items."""
    return sum(item.rate for item in results) / len(results) if results else 0.0
