"""Verified texts to imitate: the answers that a run's tasks provide, in passes and batches, and as samples of an update."""

from __future__ import annotations

import hashlib
import itertools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from sapo_backends.base import TrainSample
from sapo_swarm.config import RunConfig
from sapo_swarm.node.evaluation import SLOW
from sapo_swarm.node.known_successes import KnownSuccess, Writer, train_place
from sapo_swarm.node.rollouts import prompt_ids
from sapo_swarm.node.round_phases import RoundContext, round_seed
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import generator_of, is_own, preset_of, train_seed
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.row_roles import prompt_key
from sapo_swarm.types import Question, TaskRef

if TYPE_CHECKING:
    from sapo_swarm.tasks.own.folder import OwnTask

# Verified texts to imitate: the answers that the run's tasks provide, as completions that pass the tasks' verifiers,
# and for questions without one, known successes (see known_successes).
#
# Never a held-out question, and never one of the rows set aside, which show whether the phase still helps. The contents
# of a pass are a pure function of the node, the time and the tasks: a node that was killed continues with the same
# batches.

BATCH = 16
"""Approximate number of texts per optimizer step: a pass is cut into equal parts."""
ROWS_OF_A_PASS = 2048
"""At most this many rows of a table in one pass; of a larger table every pass takes different rows."""
FRESH, FRESH_SLOW = 256, 64
"""Fresh questions per pass for tasks that generate any number of them: all such tasks together, and where they are slow to
generate."""
SHARE_APART, LEAST_APART, MOST_APART = 8, 16, 48
"""One in SHARE_APART questions of a table is set aside, at least LEAST_APART (but never more than a quarter) and at most
MOST_APART."""
LEAST_OF_MANY = 3
"""Set-aside questions of a task that generates fresh ones, if there are so many tasks that MOST_APART does not suffice for
more: with eight of each of twenty tasks a reading took a third as long as the examples themselves."""
APART_ROUND = -1
"""Replaces the round number for the set-aside questions of a task that generates fresh ones. Pass 0 is -2, and so on."""
AT_ONCE = 256
"""References per call of the scorer, so that other callers get a turn."""


@dataclass(frozen=True, slots=True)
class VerifiedExample:
    """A question and a completion to which its own verifier gives the full reward."""

    question: Question
    text: str
    writer: Writer | Literal["task"] = "task"


@dataclass
class ExampleSource:
    """Call open() first. excluded: hashes of held-out prompts. fits: whether the model's context has room for an example.
    successes: for questions to which their task gives no answer that passes.

    apart: the set-aside questions with their right answers. tables: own task -> positions of its rows that may be examples.
    endless: tasks that generate fresh questions. rejected: references whose own answer did not pass, that do not fit, or that
    are held out.
    """

    config: RunConfig
    node_key: str
    swarm: str
    scorer: Scorer
    excluded: frozenset[str]
    fits: Callable[[VerifiedExample], bool]
    successes: Sequence[KnownSuccess] = ()
    apart: list[VerifiedExample] = field(default_factory=list)
    tables: dict[str, list[int]] = field(default_factory=dict)
    endless: list[str] = field(default_factory=list)
    rejected: int = 0
    _known: list[VerifiedExample] = field(default_factory=list)
    _pass: tuple[int, list[VerifiedExample]] | None = None

    async def open(self) -> None:
        """Decide which rows are set aside. Raises ScorerUnavailable, BadTask."""
        apart: list[TaskRef] = []
        places_apart: dict[str, list[int]] = {}
        most = max(8, MOST_APART // len(self.config.tasks))
        for task in self.config.tasks:
            if not is_own(task):
                self.endless.append(task)
                each = max(LEAST_OF_MANY, MOST_APART // len(self.config.tasks))
                apart += self._fresh(task, APART_ROUND, each)
                continue
            own = library.load_task(task)
            if own.spec.turns or own.spec.rubric:
                continue  # an episode, or a judge: no text is known to be right
            training, aside = rows_apart(own, most)
            self.tables[task], places_apart[task] = training, aside
            apart += [self._row(task, place) for place in aside]
        self.apart = await self._verified(apart, frozenset())
        self._part_successes(places_apart, most)

    def _part_successes(self, places_apart: Mapping[str, Sequence[int]], most: int) -> None:
        """Set aside successes to set-aside rows; drop those that ask the same as a held-out row. If nothing would be set
        aside this way, some of all successes are."""
        hidden = self.excluded | {example.question.prompt_sha256 for example in self.apart}
        examples: list[VerifiedExample] = []
        for success in self.successes:
            example, ref = VerifiedExample(success.question, success.text, success.writer), success.question.ref
            if success.question.prompt_sha256 in hidden or not self.fits(example):
                continue
            if not is_own(ref.dataset):
                examples.append(example)
            elif (place := train_place(ref)) in places_apart.get(ref.dataset, ()):
                self.apart.append(example)
            elif place in self.tables.get(ref.dataset, ()):
                examples.append(example)
        examples.sort(key=lambda example: hashlib.sha256(f"sapo-apart-v1|{example.question.prompt}".encode()).digest())
        count = 0 if self.apart else min(max(LEAST_APART, len(examples) // SHARE_APART), most, len(examples) // 4)
        self.apart += examples[:count]
        self._known = examples[count:]

    @property
    def bounded(self) -> bool:
        """All examples are rows of tables: their number is finite."""
        return not self.endless

    async def of_pass(self, number: int) -> list[VerifiedExample]:
        """The verified texts of a pass in order; those of the last pass asked for are cached. Raises ScorerUnavailable."""
        if self._pass is None or self._pass[0] != number:
            refs = self._references(number)
            hidden = frozenset(example.question.prompt_sha256 for example in self.apart)
            examples = await self._verified(refs, hidden)
            self.rejected = len(refs) - len(examples)
            if self._known:
                prompts = {example.question.prompt_sha256 for example in examples}
                examples += [example for example in self._known if example.question.prompt_sha256 not in prompts]
                random.Random(round_seed(self.node_key, self.config.seed, number, "examples-known")).shuffle(examples)
            self._pass = number, examples
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

    async def _verified(self, refs: Sequence[TaskRef], hidden: frozenset[str]) -> list[VerifiedExample]:
        """Those whose own answer passes. hidden: prompts that must not be shown, besides the held-out ones."""
        examples: list[VerifiedExample] = []
        for start in range(0, len(refs), AT_ONCE):
            for pair in await self.scorer.examples(refs[start : start + AT_ONCE]):
                if pair is None or pair[0].prompt_sha256 in self.excluded or pair[0].prompt_sha256 in hidden:
                    continue
                if self.fits(example := VerifiedExample(*pair)):
                    examples.append(example)
        return examples


def rows_apart(task: OwnTask, most: int = MOST_APART) -> tuple[list[int], list[int]]:
    """(positions of rows that may be examples, positions of set-aside rows): training rows are split by what they ask, so
    that rows that ask the same are on one side; each set-aside question appears once. A training row that asks the same as a
    held-out row is in neither.

    The same rows are split the same way everywhere.
    """
    held_out = {prompt_key(task.spec.cells(row)) for row in task.held_out}
    places: dict[str, list[int]] = {}
    for place, row in enumerate(task.train):
        if (asked := prompt_key(task.spec.cells(row))) not in held_out:
            places.setdefault(asked, []).append(place)
    ranked = sorted(places, key=lambda asked: hashlib.sha256(f"sapo-apart-v1|{asked}".encode()).digest())
    count = min(max(LEAST_APART, len(ranked) // SHARE_APART), most, len(ranked) // 4)
    training = sorted(place for asked in ranked[count:] for place in places[asked])
    return training, [places[asked][0] for asked in ranked[:count]]


def cut_into_batches(examples: Sequence[VerifiedExample]) -> list[Sequence[VerifiedExample]]:
    """A pass as batches of about BATCH, without a small remainder."""
    count = max(1, round(len(examples) / BATCH))
    bounds = [len(examples) * i // count for i in range(count + 1)]
    return [examples[a:b] for a, b in itertools.pairwise(bounds)]


def source_of(example: VerifiedExample) -> str:
    """The example's source, as TrialMeasured.sources counts it."""
    if example.writer != "task":
        return example.writer
    return "table" if is_own(example.question.ref.dataset) else "task"


def as_sample(context: RoundContext, example: VerifiedExample) -> TrainSample | None:
    """The example as the update gets it, with advantage 1: at ratio 1 its gradient is that of the likelihood. None if it does
    not fit into the model's context."""
    engine = context.host.engine
    prompt = prompt_ids(engine.tokenizer, context.scorer, example.question)
    completion = (*engine.tokenizer.encode_text(example.text), engine.tokenizer.eot_id)
    if len(prompt) + len(completion) > engine.info.context_length:
        return None
    return TrainSample(tuple(prompt), completion, 1.0)
