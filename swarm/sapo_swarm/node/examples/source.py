"""Verified texts to imitate: the answers that a run's tasks give themselves, as completions that pass their own verifiers, and
where a question has none, known successes (see successes).

Never a held-out question, and never one of the rows set aside, which tell whether the phase still helps. What a pass holds is a
pure function of who, when and the tasks: a node that was killed goes on with the same batches.
"""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sapo_swarm.config import RunConfig
from sapo_swarm.node.evaluation.held_out_exclusion import SLOW
from sapo_swarm.node.examples.successes import Success, Writer, train_place
from sapo_swarm.node.round.phases import round_seed
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import generator_of, is_own, preset_of, train_seed
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.row_roles import key
from sapo_swarm.types import Question, TaskRef

if TYPE_CHECKING:
    from sapo_swarm.tasks.own.folder import OwnTask

BATCH = 16
"""Texts of one optimizer step, about: a pass is cut into equal parts."""
ROWS_OF_A_PASS = 2048
"""Rows of a table in one pass at most; of more, every pass takes others."""
FRESH, FRESH_SLOW = 256, 64
"""Fresh questions of a pass where a task makes as many as are wanted: of all such tasks together, and where they are slow to
make."""
SHARE_APART, LEAST_APART, MOST_APART = 8, 16, 48
"""One in so many questions of a table is set aside, but so many at least (never more than a quarter) and at most."""
APART_ROUND = -1
"""In place of a round's number: the questions set aside of a task that makes fresh ones. Pass 0 is -2, and so on."""
AT_ONCE = 256
"""References in one call of the scorer, so that others get a turn."""


@dataclass(frozen=True, slots=True)
class Example:
    """A question, and a completion that its own verifier gives everything."""

    question: Question
    text: str
    writer: Writer | Literal["task"] = "task"


@dataclass
class ExampleSource:
    """Call open() first. excluded: hashes of held-out prompts. fits: whether the model's context has room for an example.
    successes: for questions to which their task gives no answer that passes.

    apart: the questions set aside, with their right answers. tables: own task -> places of its rows that may be examples.
    endless: tasks that make fresh questions. rejected: references whose own answer did not pass, that do not fit, or that are
    held out.
    """

    config: RunConfig
    node_key: str
    swarm: str
    scorer: Scorer
    excluded: frozenset[str]
    fits: Callable[[Example], bool]
    successes: Sequence[Success] = ()
    apart: list[Example] = field(default_factory=list)
    tables: dict[str, list[int]] = field(default_factory=dict)
    endless: list[str] = field(default_factory=list)
    rejected: int = 0
    _known: list[Example] = field(default_factory=list)
    _pass: tuple[int, list[Example]] | None = None

    async def open(self) -> None:
        """Decide which rows are set aside. Raises ScorerUnavailable, BadTask."""
        apart: list[TaskRef] = []
        places_apart: dict[str, list[int]] = {}
        most = max(8, MOST_APART // len(self.config.tasks))
        for task in self.config.tasks:
            if not is_own(task):
                self.endless.append(task)
                apart += self._fresh(task, APART_ROUND, most)
                continue
            own = library.find(task)
            if own.spec.turns or own.spec.rubric:
                continue  # an episode, or a judge: there is no text that is right
            training, aside = rows_apart(own, most)
            self.tables[task], places_apart[task] = training, aside
            apart += [self._row(task, place) for place in aside]
        self.apart = await self._verified(apart, frozenset())
        self._part_successes(places_apart, most)

    def _part_successes(self, places_apart: Mapping[str, Sequence[int]], most: int) -> None:
        """Successes to rows set aside are set aside, and one that asks what a held-out row asks is none. Where nothing would be
        set aside so, some of all successes are."""
        hidden = self.excluded | {example.question.prompt_sha256 for example in self.apart}
        known: list[Example] = []
        for success in self.successes:
            example, ref = Example(success.question, success.text, success.writer), success.question.ref
            if success.question.prompt_sha256 in hidden or not self.fits(example):
                continue
            if not is_own(ref.dataset):
                known.append(example)
            elif (place := train_place(ref)) in places_apart.get(ref.dataset, ()):
                self.apart.append(example)
            elif place in self.tables.get(ref.dataset, ()):
                known.append(example)
        known.sort(key=lambda example: hashlib.sha256(f"sapo-apart-v1|{example.question.prompt}".encode()).digest())
        count = 0 if self.apart else min(max(LEAST_APART, len(known) // SHARE_APART), most, len(known) // 4)
        self.apart += known[:count]
        self._known = known[count:]

    @property
    def bounded(self) -> bool:
        """All examples are rows of tables: there are no more than these."""
        return not self.endless

    async def of_pass(self, number: int) -> list[Example]:
        """The verified texts of a pass in its order; of the last one asked for they are kept. Raises ScorerUnavailable."""
        if self._pass is None or self._pass[0] != number:
            refs = self._references(number)
            hidden = frozenset(example.question.prompt_sha256 for example in self.apart)
            found = await self._verified(refs, hidden)
            self.rejected = len(refs) - len(found)
            if self._known:
                prompts = {example.question.prompt_sha256 for example in found}
                found += [example for example in self._known if example.question.prompt_sha256 not in prompts]
                random.Random(round_seed(self.node_key, self.config.seed, number, "examples-known")).shuffle(found)
            self._pass = number, found
        return self._pass[1]

    def _references(self, number: int) -> list[TaskRef]:
        seed = round_seed(self.node_key, self.config.seed, number, "examples")
        rng = random.Random(seed)
        refs = []
        for task, places in self.tables.items():
            chosen = places if len(places) <= ROWS_OF_A_PASS else rng.sample(places, ROWS_OF_A_PASS)
            refs += [self._row(task, place) for place in chosen]
        for task in self.endless:
            slow = f"{task}/{preset_of(task, self.config.preset)}" in SLOW
            each = max(8, (FRESH_SLOW if slow else FRESH) // len(self.config.tasks))
            refs += self._fresh(task, APART_ROUND - 1 - number, each)
        rng.shuffle(refs)
        return refs

    def _row(self, task: str, place: int) -> TaskRef:
        return TaskRef(task, library.PRESET, place, 0, generator_of(task, self.swarm))

    def _fresh(self, task: str, number: int, count: int) -> list[TaskRef]:
        preset, generator = preset_of(task, self.config.preset), generator_of(task, self.swarm)
        seeds = [train_seed(self.node_key, self.swarm, number, slot, self.config.seed) for slot in range(count)]
        return [TaskRef(task, preset, seed, 0, generator) for seed in seeds]

    async def _verified(self, refs: Sequence[TaskRef], hidden: frozenset[str]) -> list[Example]:
        """Those whose own answer passes. hidden: prompts that are not to be shown, beside the held-out ones."""
        found: list[Example] = []
        for start in range(0, len(refs), AT_ONCE):
            for pair in await self.scorer.examples(refs[start : start + AT_ONCE]):
                if pair is None or pair[0].prompt_sha256 in self.excluded or pair[0].prompt_sha256 in hidden:
                    continue
                if self.fits(example := Example(*pair)):
                    found.append(example)
        return found


def rows_apart(task: OwnTask, most: int = MOST_APART) -> tuple[list[int], list[int]]:
    """(places of rows that may be examples, places of rows set aside): training rows by what they ask, so that what asks the same
    is on one side; of the set-aside ones each question once. A training row that asks what a held-out row asks is in neither.

    The same rows part the same way everywhere.
    """
    held_out = {key(task.spec.cells(row)) for row in task.held_out}
    places: dict[str, list[int]] = {}
    for place, row in enumerate(task.train):
        if (asked := key(task.spec.cells(row))) not in held_out:
            places.setdefault(asked, []).append(place)
    ranked = sorted(places, key=lambda asked: hashlib.sha256(f"sapo-apart-v1|{asked}".encode()).digest())
    count = min(max(LEAST_APART, len(ranked) // SHARE_APART), most, len(ranked) // 4)
    training = sorted(place for asked in ranked[count:] for place in places[asked])
    return training, [places[asked][0] for asked in ranked[:count]]


def cut_into_batches(examples: Sequence[Example]) -> list[Sequence[Example]]:
    """A pass as batches of about BATCH, none of them a small rest."""
    count = max(1, round(len(examples) / BATCH))
    bounds = [len(examples) * i // count for i in range(count + 1)]
    return [examples[a:b] for a, b in itertools.pairwise(bounds)]
