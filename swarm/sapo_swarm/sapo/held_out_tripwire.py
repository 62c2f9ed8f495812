"""The held-out tripwire: if external text harms a node, it shows on questions that nobody trains on. Pure rules.

Verified-correct text can still poison ("Hail to the Thief", arXiv 2511.09780). So a node in a swarm compares every regular
evaluation with its best one: evidence of a fall adds up over evaluations (CUSUM, Page 1954). The best of many noisy figures
is a lucky one, so evidence alone proves little: the current weights and those of the best checkpoint then answer fresh
held-out questions side by side, more and more of them until a sequential test (Wald 1945) decides. Its power:
docs/decisions/0008-tripwire.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from sapo_swarm.evaluation import ItemResult, gained_and_lost, mcnemar_exact
from sapo_swarm.events import Evaluated, ExternalSwitched, RunStarted

KINDS = ("run_started", "evaluation", "external")
"""Kinds of events that determine the state."""
FALL = 1 / 3
"""Share of the best result whose loss is to be detected; a larger tolerance looks for a larger fall."""
SUSPICION = 0.5
"""Evidence (nats) that triggers a closer look."""
LEAST_RIGHT = 10
"""Below this many right answers in the best evaluation nothing is suspected: there is little to lose, and too little to
detect it."""
FALSE_ALARM, MISSED = 1e-3, 0.03
"""Error rates of one closer look: taking chance for a fall, and a fall for chance."""
STEPS = (1, 1, 2, 4, 8, 16)
"""Fresh questions of a closer look, as multiples of the regular ones: each step is asked only if those before left it open."""
Verdict = Literal["harm", "chance", "open"]


class HeldOut(msgspec.Struct, frozen=True):
    """A held-out result. round: rounds done before it; pass_at_1: in [0, 1], over `items` items.

    looked: the items are those of closer looks, not of the regular evaluation that made it the best.
    """

    round: int
    pass_at_1: float
    items: int
    looked: bool = False

    @property
    def variance(self) -> float:
        """Of pass_at_1, with two successes and two failures added (Agresti and Coull), so that 0 and 1 are not certain."""
        rate = (self.pass_at_1 * self.items + 2) / (self.items + 4)
        return rate * (1 - rate) / (self.items + 4)


class TripwireState(msgspec.Struct, frozen=True):
    """What a run's journal says about its held-out results.

    best: the mark that later results are compared with; best_greedy: the best at temperature 0, which is only kept. evidence:
    in nats, that the current weights lost FALL of it. suspect: a result with which the evidence became enough for a closer
    look. taking: external groups are taken. trips: how often the wire tripped. restored: rounds of the checkpoint that was
    restored last. sentence: why nothing is taken, else "". held_out: of the session (RunStarted): best, suspect and evidence
    are results on its questions.
    """

    best: HeldOut | None = None
    best_greedy: HeldOut | None = None
    suspect: HeldOut | None = None
    evidence: float = 0.0
    taking: bool = True
    trips: int = 0
    restored: int = 0
    sentence: str = ""
    held_out: str = ""


def watch_of(events: Iterable[object], items: int, tolerance: float) -> TripwireState:
    """The state after the events of a journal, in order. items: number of questions in a regular evaluation
    (evaluation.regular_items)."""
    watch = TripwireState()
    for event in events:
        watch = update_tripwire(watch, event, items, tolerance)
    return watch


def update_tripwire(watch: TripwireState, event: object, items: int, tolerance: float) -> TripwireState:
    """The state after one more event. Evaluations with another number of items asked other questions, and those with less
    than half of the answers are about few of them: they are ignored.

    items: number of questions in a regular evaluation. tolerance: share of the best that may be lost; 0 = never suspect
    anything.
    """
    if isinstance(event, RunStarted):
        return _opened(watch, event)
    if isinstance(event, ExternalSwitched):
        return _switched(watch, event)
    if not isinstance(event, Evaluated) or event.belated or not is_regular(event, items):
        return watch
    at_0, greedy = event.greedy, watch.best_greedy
    if at_0 is not None and (greedy is None or at_0.pass_at_1 > greedy.pass_at_1):
        watch = msgspec.structs.replace(watch, best_greedy=HeldOut(event.round, at_0.pass_at_1, at_0.items))
    now = HeldOut(event.round, event.pass_at_1, event.items)
    if watch.best is None or is_new_best(watch.best, now):
        return msgspec.structs.replace(watch, best=now, suspect=None, evidence=0.0)
    found = (
        max(0.0, watch.evidence + fall_evidence(watch.best, now, tolerance)) if watch.taking and tolerance > 0 else 0.0
    )
    return msgspec.structs.replace(watch, evidence=found, suspect=now if found > SUSPICION else None)


def is_regular(event: Evaluated, items: int) -> bool:
    """It asked as many questions as a regular evaluation does, and at least half of them were answered."""
    return (event.asked or event.items) == items and event.items >= items / 2


def regular_results(events: Iterable[object], items: int) -> dict[int, Evaluated]:
    """Rounds done -> the newest regular evaluation after them on the most recently used questions: the comparable ones."""
    watch, results = TripwireState(), dict[int, Evaluated]()
    for event in events:
        if isinstance(event, RunStarted):
            results = results if _same_questions(watch, event) else {}
            watch = _opened(watch, event)
        elif isinstance(event, Evaluated) and is_regular(event, items):
            results[event.round] = event
    return results


def _same_questions(watch: TripwireState, event: RunStarted) -> bool:
    """The session asks the same questions as earlier ones, if there were any."""
    return watch.held_out in ("", event.held_out)


def _opened(watch: TripwireState, event: RunStarted) -> TripwireState:
    """A session that asks other held-out questions starts without a mark: results on different questions cannot be compared.
    Decisions about external groups remain in force."""
    same = _same_questions(watch, event)
    watch = msgspec.structs.replace(watch, held_out=event.held_out)
    return watch if same else msgspec.structs.replace(watch, best=None, best_greedy=None, suspect=None, evidence=0.0)


def _switched(watch: TripwireState, event: ExternalSwitched) -> TripwireState:
    best = watch.best
    if best is not None and event.items:
        best = looked_at(best, event.best, event.items)
    tripped = event.by == "tripwire" and not event.taking
    greedy = watch.best_greedy
    return msgspec.structs.replace(
        watch,
        best=best,
        best_greedy=None if tripped and greedy is not None and greedy.round > event.restored else greedy,
        suspect=None,
        evidence=0.0,
        taking=event.taking,
        trips=watch.trips + tripped,
        restored=event.restored if tripped else watch.restored,
        sentence="" if event.taking else event.sentence,
    )


def is_new_best(best: HeldOut, now: HeldOut) -> bool:
    """Whether this is a new best. A mark that was looked at closer is replaced only by a result one standard error above it:
    otherwise slow harm would hide behind the lucky figures of ever worse weights."""
    doubt = math.sqrt(best.variance + now.variance) if best.looked else 0.0
    return now.pass_at_1 > best.pass_at_1 + doubt


def checkpoints_to_keep(watch: TripwireState, rollbacks: int) -> tuple[int, ...]:
    """Checkpoints that stay, the most needed first: the one to be restored until that is done, or else the best one; then the
    best at temperature 0. rollbacks: those that led to the weights."""
    best = (watch.best.round,) if watch.best else ()
    greedy = (watch.best_greedy.round,) if watch.best_greedy else ()
    needed = (watch.restored,) if rollbacks < watch.trips else best
    return tuple(dict.fromkeys((*needed, *greedy)))


def suspected_fall(tolerance: float) -> float:
    """The share of the best whose loss is to be detected."""
    return min(max(FALL, tolerance), 0.99)


def fall_evidence(best: HeldOut, now: HeldOut, tolerance: float) -> float:
    """Log-likelihood ratio of one evaluation, in nats: that the rate fell by suspected_fall(tolerance), against that it is
    the best's. Positive indicates a fall. Rates are shrunk by two successes and two failures, so that 0 and 1 are not
    certain."""
    if best.pass_at_1 * now.items < LEAST_RIGHT:
        return 0.0
    before = (best.pass_at_1 * best.items + 2) / (best.items + 4)
    after = (1 - suspected_fall(tolerance)) * before
    right = now.pass_at_1 * now.items
    return right * math.log(after / before) + (now.items - right) * math.log((1 - after) / (1 - before))


def closer_look(
    before: Sequence[ItemResult], after: Sequence[ItemResult], tolerance: float, last: bool = False
) -> Verdict:
    """What the best checkpoint's and the current answers to the same fresh questions say so far.

    Wald's test on the questions whose verdict changed: half of them were lost if nothing fell, at least 1 / (2 - FALL) of
    them if FALL of the skill is gone. last: no more can be asked, so McNemar's exact test at FALSE_ALARM decides what Wald's
    leaves open (11 lost and none gained are enough for it, 38 for Wald's). "harm" also needs more than `tolerance` to be
    lost. Raises ValueError if the questions differ.
    """
    if [item.ref for item in before] != [item.ref for item in after]:
        raise ValueError("Both sides must answer the same questions, in the same order.")
    if tolerance <= 0:
        return "chance"
    gained, lost = gained_and_lost(zip(before, after, strict=True))
    share = 1 / (2 - suspected_fall(tolerance))
    ratio = lost * math.log(2 * share) + gained * math.log(2 * (1 - share))
    exact = last and lost > gained and mcnemar_exact(gained, lost) <= FALSE_ALARM
    if exact or ratio >= math.log((1 - MISSED) / FALSE_ALARM):
        return "harm" if mean_pass_rate(after) < (1 - tolerance) * mean_pass_rate(before) else "open"
    return "chance" if ratio <= math.log(MISSED / (1 - FALSE_ALARM)) else "open"


def in_common(before: Sequence[ItemResult], after: Sequence[ItemResult]) -> tuple[list[ItemResult], list[ItemResult]]:
    """Both sides without the questions that only one of them has: an environment may start at one time and not at another."""
    refs = {item.ref for item in before} & {item.ref for item in after}
    return [item for item in before if item.ref in refs], [item for item in after if item.ref in refs]


def looked_at(best: HeldOut, rate: float, items: int) -> HeldOut:
    """The mark after a closer look at it. The figure that made it the best was picked for being high; fresh questions were
    not, so their result replaces it, and several looks are averaged."""
    before = best.items if best.looked else 0
    pooled = (before * best.pass_at_1 + items * rate) / (before + items)
    return msgspec.structs.replace(best, pass_at_1=pooled, items=before + items, looked=True)


def mean_pass_rate(results: Sequence[ItemResult]) -> float:
    """pass@1; 0 without items."""
    return sum(item.rate for item in results) / len(results) if results else 0.0
