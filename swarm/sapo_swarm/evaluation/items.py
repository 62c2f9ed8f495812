"""Which held-out items are asked, and the verdicts on the samples of one item."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import msgspec

from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.scorer import Scored
from sapo_swarm.tasks.catalogue import held_out, held_out_count, preset_of
from sapo_swarm.tasks.extra import LIBRARY_PRESET, SOFT
from sapo_swarm.types import Finish, TaskRef


def held_out_items(tasks: Iterable[str], preset: str, per_task: int, start: int = 0) -> list[TaskRef]:
    """per_task held-out items of every task, from number `start` on: the same ones on every node, unreachable by
    training seeds. Fewer of a task of the person's own that has no more.

    Raises UnknownTask, BadTask.
    """
    return [
        held_out(task, preset_of(task, preset), index)
        for task in tasks
        for index in range(start, held_out_count(task, start + per_task))
    ]


FEW_ITEMS, USUAL_ITEMS = 64, 144
"""Items of a regular evaluation over all tasks: the least where the tasks have so many (16 of one task tell a score to +-25
points), and the most, 16 of each of the nine usual tasks."""


def eval_items(config: RunConfig) -> int:
    """Held-out items of each task in a regular evaluation: the setting, or chosen by the number of tasks, so that one task of a
    person's own is measured on more than a few rows and many tasks do not cost many minutes."""
    count = max(len(config.tasks), 1)
    return config.eval_items or max(1, FEW_ITEMS // count, min(16, USUAL_ITEMS // count))


def regular_items(config: RunConfig) -> int:
    """Held-out items that a regular evaluation asks, whether or not they regenerate. Raises UnknownTask, BadTask."""
    return len(held_out_items(config.tasks, config.preset, eval_items(config)))


def held_out_name(tasks: Iterable[str], preset: str) -> str:
    """Names the held-out items of these tasks, in whatever order: 16 hex digits, others where the preset, the generator's
    version, the rule that judges or a task of the person's own is another. Raises UnknownTask, BadTask."""
    first = [held_out(task, preset_of(task, preset), 0) for task in sorted(tasks)]
    text = "\n".join(f"{ref.dataset}/{ref.preset}/{ref.generator}{_rule(ref)}" for ref in first)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _rule(ref: TaskRef) -> str:
    return "/exact" if ref.dataset in SOFT and ref.preset != LIBRARY_PRESET else ""


class ItemResult(msgspec.Struct, frozen=True):
    """The samples of one held-out item: a verdict each, whether it held an answer, whether it hit the token limit.

    permuted: verdicts on this item of the answers to another item of its task (the answer-permutation check); none where
    there was no other.
    """

    ref: TaskRef
    correct: tuple[bool, ...]
    well_formed: tuple[bool, ...]
    truncated: tuple[bool, ...]
    permuted: tuple[bool, ...] = msgspec.field(default=(), name="swapped")

    def __post_init__(self) -> None:
        if not self.correct or not len(self.correct) == len(self.well_formed) == len(self.truncated):
            raise ValueError(f"{self.ref.label} needs one verdict and two flags a sample.")

    @property
    def rate(self) -> float:
        """Share of correct samples: the item's unbiased pass@1."""
        return sum(self.correct) / len(self.correct)


def item_result(ref: TaskRef, scored: Scored, finishes: Sequence[Finish], permuted: Scored | None = None) -> ItemResult:
    """The scorer's verdicts and the engine's finish reasons of one item, and the verdicts on answers to another one.

    Raises ValueError where the counts differ.
    """
    return ItemResult(
        ref,
        correct=tuple(reward == 1.0 for reward in scored.rewards),
        well_formed=scored.well_formed,
        truncated=tuple(finish == "length" for finish in finishes),
        permuted=tuple(reward == 1.0 for reward in permuted.rewards) if permuted else (),
    )


def permutation_partners(refs: Sequence[TaskRef]) -> dict[int, int]:
    """Place of an item -> place of the item that lends it its answer in the answer-permutation check: the next one of the
    same task, the last one's is the first. Tasks with one item are left out."""
    places: dict[str, list[int]] = {}
    for place, ref in enumerate(refs):
        places.setdefault(ref.dataset, []).append(place)
    pairs = [pair for some in places.values() if len(some) > 1 for pair in zip(some, [*some[1:], some[0]], strict=True)]
    return dict(pairs)


def by_task(results: Iterable[ItemResult]) -> dict[str, list[ItemResult]]:
    """Results by task, tasks in order of first appearance."""
    grouped: dict[str, list[ItemResult]] = {}
    for item in results:
        grouped.setdefault(item.ref.shown, []).append(item)
    return grouped
