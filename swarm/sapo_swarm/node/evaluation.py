"""Asks an engine the held-out questions. What the verdicts mean is in sapo_swarm.evaluation."""

from __future__ import annotations

import asyncio
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import msgspec

from sapo_backends.base import CancelToken, EngineInfo, RowSeed, Sampling
from sapo_backends.errors import Cancelled, OutOfMemory
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import (
    ItemResult,
    compare_so_far,
    eval_items,
    evaluation_event,
    greedy_score,
    held_out_items,
    item_result,
    permutation_partners,
    wilson_interval,
)
from sapo_swarm.events import BaseAsked, Evaluated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.rollouts import (
    NOTHING,
    BatchSizer,
    Place,
    Table,
    answer_turns,
    cut_at_limits,
    extend_completions,
    next_call,
    prompt_ids,
    score_completions,
    shared_limits,
    turn_length,
    turns_before,
)
from sapo_swarm.node.round_phases import round_seed
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import held_out_count, is_own, new_tokens, preset_of
from sapo_swarm.tasks.own import library
from sapo_swarm.types import UNREADABLE, Question, TaskRef
from sapo_swarm.whole_file import write_atomically

# Held-out questions that training must not ask, though none of its seeds reaches them: a task with few questions draws
# the same question from different seeds (of 800 drawn with training seeds 324 of jugs were held out, 281 of
# prime_factorization, 80 of n_queens).

EXCLUDED_PER_TASK = 400
"""Held-out questions per task, counted from the first, that are never trained on;"""
IN_ALL = 4000
"""but no more than this over all tasks."""
FEW = {"string_splitting/default": 125, "string_synthesis/default": 125, "tower_of_hanoi/default": 60}
"""Tasks that have 216, 216 and 90 questions in all: this many held-out ones are half of them, and the rest can be trained on."""
SLOW = frozenset(
    {
        "bf/hard",
        "figlet_font/default",
        "quantum_lock/default",
        "quantum_lock/library",
        "rearc/default",
        "sudoku/default",
        "zebra_puzzles/default",
    }
)
"""Tasks whose questions take 30 to 200 ms each to draw. Of 300 drawn with training seeds none was held out (quantum_lock: 3)."""


async def held_out_exclusion(scorer: Scorer, tasks: Sequence[str], preset: str) -> frozenset[str]:
    """SHA-256 of the prompts that training leaves out: takes about a second for nine tasks.

    Raises ScorerUnavailable, UnknownTask.
    """
    questions = await scorer.questions(refs) if (refs := _excluded(tasks, preset)) else []
    return frozenset(question.prompt_sha256 for question in questions if isinstance(question, Question))


def beyond_exclusion(refs: Iterable[TaskRef], tasks: Sequence[str], preset: str) -> int:
    """How many of these held-out questions training on `tasks` may have asked, because it does not exclude them. Questions of
    tasks too slow to draw for that (SLOW) do not count, nor do custom tasks: their held-out rows are in no training file.

    Raises UnknownTask.
    """
    left_out = {*_excluded(tasks, preset)}
    drawn = [ref for ref in refs if ref.dataset in tasks and not is_own(ref.dataset)]
    return sum(ref not in left_out and f"{ref.dataset}/{ref.preset}" not in SLOW for ref in drawn)


def _excluded(tasks: Sequence[str], preset: str) -> list[TaskRef]:
    named = [(task, f"{task}/{preset_of(task, preset)}") for task in tasks]
    quick = [(task, name) for task, name in named if name not in SLOW]
    per_task = min(EXCLUDED_PER_TASK, IN_ALL // max(len(quick), 1))
    counts = [(task, min(per_task, FEW.get(name, per_task))) for task, name in quick]
    return [ref for task, count in counts for ref in held_out_items([task], preset, count)]


# The untrained model's answers to the held-out questions, sampled (temperature 1) and greedy (0): base.json in the
# model's folder, to be paired with later answers.
#
# Other tasks, another preset or more items bring questions that the base was never asked, and answers given under other
# conditions do not count. The base is asked the missing ones when the model is opened, after the base is loaded and
# before the trained weights are restored: at no other moment is the base in memory.


class _Account(msgspec.Struct, frozen=True):
    """base.json. results: answers at temperature 1; greedy: at 0, empty in files of versions that did not ask for them.
    max_new_tokens: the token limit of an answer, by_task: per task; answers under another limit are not comparable.
    conditions: see evaluation_conditions(); empty in files of versions that did not record them."""

    max_new_tokens: int
    results: list[ItemResult]
    by_task: dict[str, int] = {}
    conditions: dict[str, str] = {}
    greedy: list[ItemResult] = []


def evaluation_conditions(config: RunConfig, engine: EngineInfo) -> dict[str, str]:
    """What decides an answer and its verdict besides the weights, the question and the token limit. A difference between
    answers under different conditions is not learning."""
    return {
        "thinking": "on" if config.thinking == "on" else "off",
        "answer_format": config.answer_format,
        "judge": config.judge_model,
        "engine": engine.backend,
        "precision": engine.precision,
    }


class BaseAnswers:
    """path: of base.json; limit: task -> current token limit of an answer; conditions: the current ones."""

    def __init__(self, path: Path, limit: Callable[[str], int], conditions: Mapping[str, str]) -> None:
        self._path, self._limit, self._conditions = path, limit, dict(conditions)

    def known(self, temperature: float = 1.0) -> dict[TaskRef, ItemResult]:
        """By question, at temperature 1 or 0, without those asked under another token limit. Empty under other or unknown
        conditions, and if the file is missing or was cut off by a full disk."""
        try:
            account = msgspec.json.decode(self._path.read_bytes(), type=_Account)
        except (OSError, *UNREADABLE):  # a list: from versions that did not even record the limit
            return {}
        if account.conditions != self._conditions:
            return {}
        results = account.results if temperature else account.greedy
        was = {task: account.by_task.get(task, account.max_new_tokens) for task in {r.ref.dataset for r in results}}
        return {r.ref: r for r in results if was[r.ref.dataset] == self._limit(r.ref.dataset)}

    def add(self, results: Iterable[ItemResult], greedy: Iterable[ItemResult] = ()) -> None:
        """Add answers, given at temperature 1 and at 0; what is known of other questions stays. Raises OSError."""
        sampled = self.known(1.0) | {result.ref: result for result in results}
        at_0 = self.known(0.0) | {result.ref: result for result in greedy}
        by_task = {task: self._limit(task) for task in {ref.dataset for ref in (*sampled, *at_0)}}
        longest = max(by_task.values(), default=0)
        account = _Account(longest, list(sampled.values()), by_task, self._conditions, list(at_0.values()))
        write_atomically(self._path, msgspec.json.encode(account))


BATCH = 64
"""Items answered together; progress is published between batches."""
TEMPERATURES = (1.0, 0.0)
"""Temperatures of a regular evaluation, in this order: as in training, then greedy, which is what a chat gives."""
Ask = Callable[[float], None]
Limit = Callable[[str], int]
"""Task -> the most tokens an answer may have."""


class Unanswered(Exception):
    """Held-out questions got no answers, and asking again at once would not help."""


@dataclass(slots=True)
class EvaluationProgress:
    """Mutable: the progress of an evaluation; with the same weights it continues from here.

    results: of the batches before item `start`. questions, table: of the current batch; over: see answer_turns.
    """

    results: list[ItemResult] = field(default_factory=list)
    start: int = 0
    seconds: float = 0.0
    questions: list[Question] | None = None
    table: Table = field(default_factory=list)
    over: set[Place] = field(default_factory=set)

    def add(self, results: Sequence[ItemResult]) -> None:
        """Record a finished batch."""
        self.results += results
        self.start, self.questions, self.table, self.over = self.start + BATCH, None, [], set()


async def evaluate_questions(
    host: EngineThread,
    scorer: Scorer,
    refs: Sequence[TaskRef],
    sampling: Sampling,
    samples: int = 1,
    on_progress: Ask | None = None,
    limit: Limit | None = None,
    begun: EvaluationProgress | None = None,
    portion: BatchSizer | None = None,
    untrained: bool = False,
) -> list[ItemResult]:
    """Strict verdicts on `samples` completions of every item that regenerates here, in order; and for each item, the verdicts
    on the answers to another item of its task and batch.

    An item that does not fit into the model's context counts as wrong and truncated. The seeds depend on the item only: two
    models answer it with the same random numbers, beside whatever else they are asked. begun: what an interrupted call with
    the same arguments left. untrained: the model answers as it was loaded. Raises Cancelled, BackendError.
    """
    begun, portion = begun or EvaluationProgress(), portion or BatchSizer()
    while begun.start < len(refs):
        start = begun.start
        if begun.questions is None:
            regenerated = await scorer.questions(refs[start : start + BATCH])
            begun.questions = [q for q in regenerated if isinstance(q, Question)]
        questions = begun.questions
        seeds = [round_seed("held-out", 0, 0, f"evaluate|{question.ref.label}") for question in questions]
        completions = await sample_completions(
            host, scorer, questions, sampling, samples, seeds, limit, begun, portion, untrained
        )
        scored = await score_completions(host.engine.tokenizer, scorer, questions, completions)
        refs_asked = [q.ref for q in questions]
        other = {
            place: to
            for place, to in permutation_partners(refs_asked).items()
            if not library.max_episode_turns(refs_asked[to])
            and not library.judge_rubric(refs_asked[to])  # a judge is expensive
        }
        permuted = await scorer.score_local([(questions[to].ref, scored[place][1]) for place, to in other.items()])
        on_others = dict(zip(other.values(), permuted, strict=True))
        begun.add(
            [
                item_result(question.ref, verdict, [c.finish for c in group], on_others.get(place))
                for place, (question, group, (verdict, *_)) in enumerate(
                    zip(questions, completions, scored, strict=True)
                )
            ]
        )
        if on_progress is not None:
            on_progress(min(1.0, begun.start / len(refs)))
    return begun.results


async def sample_completions(
    host: EngineThread,
    scorer: Scorer,
    questions: Sequence[Question],
    sampling: Sampling,
    samples: int,
    seed: int | Sequence[int],
    limit: Limit | None = None,
    begun: EvaluationProgress | None = None,
    portion: BatchSizer | None = None,
    untrained: bool = False,
    cancel: CancelToken | None = None,
) -> Table:
    """Completions of every question, with episodes played to their end; empty, cut-off ones if the prompt leaves no room in
    the model's context. seed: one for all of them together, or one per question, which then does not depend on the others.
    limit: for tasks that have limits of their own. begun: receives what is done when the call is interrupted. untrained,
    cancel: see extend_completions. If memory runs out, fewer rows run at once. Raises Cancelled, BackendError."""
    begun, portion, engine = begun or EvaluationProgress(), portion or BatchSizer(), host.engine
    prompts = [prompt_ids(engine.tokenizer, scorer, q) for q in questions]
    limits = [sampling.max_new_tokens if limit is None else limit(q.ref.dataset) for q in questions]
    room = engine.info.context_length
    most = [new if len(ids) + new <= room else 0 for ids, new in zip(prompts, limits, strict=True)]
    if not begun.table:
        begun.table = [[NOTHING] * samples for _ in questions]
        begun.over = {(i, j) for i, new in enumerate(most) for j in range(samples) if not new}
    table, shared = begun.table, shared_limits(most)
    stream = _streams(seed, most, samples)

    def row_seed(i: int, j: int) -> RowSeed:
        of_batch, row = stream[i]
        return RowSeed(of_batch + turns_before(table[i][j]), (row + j) * most[i] + turn_length(table[i][j]))

    while True:
        while call := next_call(table, most, portion, shared):
            begun_tokens = turn_length(table[call[0][0]][call[0][1]])
            missing = replace(sampling, max_new_tokens=max(most[i] for i, _ in call) - begun_tokens)
            seeds = [row_seed(*place) for place in call]
            try:
                await extend_completions(
                    host, portion, prompts, table, call, missing, seeds, lambda *_: host.rest(), untrained, cancel
                )
            except OutOfMemory:
                if len(call) <= samples:
                    raise
        cut_at_limits(table, most)
        if not await answer_turns(engine, scorer, questions, prompts, table, begun.over, most):
            return table


def _streams(seed: int | Sequence[int], most: Sequence[int], samples: int) -> dict[int, tuple[int, int]]:
    """Question -> the seed of its random numbers, and the row of them that its first completion has."""
    if not isinstance(seed, int):
        return {i: (seed[i], 0) for i, new in enumerate(most) if new}
    alike = [[i for i, new in enumerate(most) if new == one] for one in dict.fromkeys(filter(None, most))]
    return {
        i: (seed + number * len(most) * samples, place * samples)
        for number, chosen in enumerate(alike)
        for place, i in enumerate(chosen)
    }


@dataclass(frozen=True, slots=True)
class PairedBaseResults:
    """The base's answers to the items of an evaluation. results: None if `missing` of them are unanswered, or if the base
    itself is being evaluated."""

    results: list[ItemResult] | None = None
    missing: int = 0


def pair_with_base(results: Sequence[ItemResult], base: Mapping[TaskRef, ItemResult]) -> PairedBaseResults:
    """The base's answers to the items of results. base: everything it has answered."""
    base_results = [base[result.ref] for result in results if result.ref in base]
    missing = len(results) - len(base_results)
    return PairedBaseResults(None if missing else base_results, missing)


class _NewestResults(msgspec.Struct, frozen=True):
    """newest.json: the answers of the newest evaluation, for the comparison once the base has answered everything.

    asked: see events.Evaluated. conditions, by_task: as in base.json.
    """

    round: int
    results: list[ItemResult]
    greedy: list[ItemResult]
    asked: int
    conditions: dict[str, str]
    by_task: dict[str, int]


SLICE_S = 10.0
"""Seconds that a slice of the base's questions should take, or as long as the last round if that took longer."""
FIRST_SLICE, LEAST_SLICE = 16, 8
"""Questions of the first slice, and the fewest of any: each token of an answer reads all weights once for all that are
written at the same time, so that four answers take nearly as long as sixteen."""
BASE_SHARE = 0.5
"""Seconds spent on the base per second of learning, until it has answered everything."""


def in_turns(refs: Sequence[TaskRef]) -> list[TaskRef]:
    """The items with two of each task in turn, so that the first ones are about all tasks alike; two, for the
    answer-permutation check."""
    by_task: dict[str, list[TaskRef]] = {}
    for ref in refs:
        by_task.setdefault(ref.dataset, []).append(ref)
    longest = max(map(len, by_task.values()), default=0)
    return [ref for start in range(0, longest, 2) for some in by_task.values() for ref in some[start : start + 2]]


class Evaluator:
    """A model's small evaluations. host: its engine is loaded. folder: holds the base model's answers, for pairing with later
    ones.

    Where the engine keeps the untrained model at hand, that is asked in slices between rounds (ask_slice()) instead of before
    the first one: nobody waits for it, and its answers are the same.
    """

    def __init__(self, config: RunConfig, host: EngineThread, scorer: Scorer, folder: Path) -> None:
        self._config, self._host, self._scorer, self._folder = config, host, scorer, folder
        self._conditions = evaluation_conditions(config, host.engine.info)
        self._base = BaseAnswers(folder / "base.json", partial(new_tokens, config), self._conditions)
        self._portion = BatchSizer()
        self._begun: dict[tuple[object, float, tuple[TaskRef, ...]], EvaluationProgress] = {}
        self._left: list[TaskRef] | None = None
        self._regenerating = 0
        self._slice, self._learned_s, self._asked_s, self._last_s = FIRST_SLICE, 0.0, 0.0, 0.0
        self._given_up = False

    @property
    def regular(self) -> bool:
        """Whether evaluations are made every few rounds."""
        return self._config.eval_every > 0

    @property
    def asks_base_beside(self) -> bool:
        """Whether the base is asked beside training: its engine keeps it at hand."""
        engine = self._host.engine
        return engine.keeps_untrained and engine.info.trainable > 0

    @property
    def _questions(self) -> list[TaskRef]:
        return held_out_items(self._config.tasks, self._config.preset, eval_items(self._config))

    async def base_missing(self) -> list[TaskRef]:
        """Questions of a regular evaluation that the base has not answered at both temperatures, in order, without those that
        do not regenerate here. Raises UnknownTask, ScorerUnavailable."""
        known = await self._known()
        refs = [ref for ref in self._questions if not all(ref in answers for answers in known.values())]
        regenerated = await self._scorer.questions(refs) if refs else []
        return [question.ref for question in regenerated if isinstance(question, Question)]

    async def _known(self) -> dict[float, dict[TaskRef, ItemResult]]:
        return {t: await asyncio.to_thread(self._base.known, t) for t in TEMPERATURES}

    async def ask_base(self, refs: Sequence[TaskRef], on_progress: Ask, untrained: bool = False) -> None:
        """Call while the engine is as loaded, or with `untrained`: its answers become the base's answers. At each temperature
        only the questions not yet answered are asked.

        Raises Cancelled, Unanswered, OSError; then none of the answers are kept, except that a cancelled call with `untrained`
        is continued by the next one.
        """
        known = await self._known()
        missing = {t: [ref for ref in refs if ref not in known[t]] for t in TEMPERATURES}
        try:
            progress = await self._answer_both(missing, "base", on_progress, untrained)
            await asyncio.to_thread(self._base.add, progress[1.0].results, progress[0.0].results)
        except Cancelled:
            if not untrained:
                self.forget()
            raise
        except BaseException:
            self.forget()
            raise
        self.forget()

    # -- the base, in slices beside training -----------------------------------------------------------------------

    def learned(self, seconds: float) -> None:
        """Count seconds of a round or a reading: the base gets a share of them."""
        self._learned_s, self._last_s = self._learned_s + seconds, seconds or self._last_s

    async def slices_left(self) -> bool:
        """Whether the base is asked beside training and has not answered everything. Raises UnknownTask, ScorerUnavailable."""
        if not self.asks_base_beside or self._given_up:
            return False
        if self._left is None:
            self._left = in_turns(await self.base_missing())
            if self._left:
                regenerated = await self._scorer.questions(self._questions)
                self._regenerating = sum(isinstance(question, Question) for question in regenerated)
        return bool(self._left)

    @property
    def slice_fits(self) -> bool:
        """Whether the base's share of the time has room for the next slice."""
        return self._asked_s <= BASE_SHARE * self._learned_s and self._learned_s > 0

    def give_up_slices(self) -> None:
        """Ask the base nothing more in this session."""
        self._given_up = True

    def base_progress(self, newly: float = 0.0) -> tuple[float, str]:
        """How far the untrained model is: a fraction, and words for the status sentence. newly: answers of an unfinished
        slice."""
        total = self._regenerating
        answered = total - len(self._left or ()) + newly
        words = f"The untrained model answers held-out questions: {round(answered)} of {total}"
        return answered / max(1, total), words

    async def ask_slice(
        self, rounds_done: int, on_progress: Callable[[float, str], None]
    ) -> list[BaseAsked | Evaluated]:
        """The untrained model answers some more questions, which are stored; returns what is to be published: how far it is
        and, once it has answered everything, its result and the newest one again, compared with it.

        Call where slices_left(). Raises Cancelled, which loses nothing until the process ends, Unanswered, OSError.
        """
        assert self._left
        refs, total, began = self._left[: self._slice], self._regenerating, time.perf_counter()

        def show(part: float) -> None:
            on_progress(*self.base_progress(part * len(refs)))

        try:
            await self.ask_base(refs, show, untrained=True)
        finally:
            seconds = time.perf_counter() - began
            self._asked_s += seconds
        self._left = self._left[len(refs) :]
        allowed = max(SLICE_S, self._last_s)
        if seconds <= allowed:
            self._slice = min(BATCH, 2 * self._slice)
        elif seconds > 2 * allowed:
            self._slice = max(LEAST_SLICE, self._slice // 2)
        known = await self._known()
        at_1, at_0 = ([known[t][ref] for ref in self._questions if ref in known[t]] for t in TEMPERATURES)
        low, high = wilson_interval(sum(item.rate for item in at_1), len(at_1))
        asked = BaseAsked(
            round=rounds_done,
            answered=total - len(self._left),
            items=total,
            pass_at_1=sum(item.rate for item in at_1) / max(1, len(at_1)),
            low=low,
            high=high,
            greedy=sum(item.rate for item in at_0) / max(1, len(at_0)),
            seconds=seconds,
        )
        return [asked] if self._left else [asked, *await self._settled(at_1, at_0)]

    async def _settled(self, at_1: Sequence[ItemResult], at_0: Sequence[ItemResult]) -> list[Evaluated]:
        """The base's own result, complete at last, and the newest evaluation once more, compared with it."""
        event = evaluation_event(at_1, 0, 0.0, asked=len(self._questions))
        settled = [msgspec.structs.replace(event, greedy=greedy_score(at_0), belated=True)]
        if (newest := await asyncio.to_thread(self._read_newest)) is not None:
            event = await self._compared(newest.results, newest.greedy, newest.round, 0.0, newest.asked)
            settled.append(msgspec.structs.replace(event, belated=True))
        await self.discard_newest()  # later evaluations are compared at once, and then another one is the newest
        return settled

    def _read_newest(self) -> _NewestResults | None:
        """The newest evaluation's answers, unless they were given under other conditions or are not readable."""
        try:
            newest = msgspec.json.decode((self._folder / "newest.json").read_bytes(), type=_NewestResults)
        except (OSError, *UNREADABLE):
            return None
        limits = {task: new_tokens(self._config, task) for task in newest.by_task if task in self._config.tasks}
        return newest if newest.conditions == self._conditions and newest.by_task == limits else None

    def _write_newest(self, newest: _NewestResults) -> None:
        write_atomically(self._folder / "newest.json", msgspec.json.encode(newest))

    async def discard_newest(self) -> None:
        """The newest evaluation is not to be published again: it was, or its weights are gone. Raises OSError."""
        await asyncio.to_thread(lambda: (self._folder / "newest.json").unlink(missing_ok=True))

    # -- evaluations -----------------------------------------------------------------------------------------------

    async def examine(self, rounds_done: int, per_task: int, on_progress: Ask) -> Evaluated:
        """Held-out pass@1, one sample per item at temperature 1 and then the greedy answer to each; with the differences to
        the base if it answered them all, or so far, where it is asked beside training.

        Answers given before an interruption are kept for the next call. Raises Cancelled, Unanswered, OSError.
        """
        config = self._config
        refs = held_out_items(config.tasks, config.preset, per_task)
        progress = await self._answer_both(dict.fromkeys(TEMPERATURES, refs), rounds_done, on_progress)
        results, greedy = progress[1.0].results, progress[0.0].results
        if not results:
            self.forget()
            raise Unanswered(f"none of the {len(refs)} can be asked here (sapo-desktop tasks check NAME)")
        if not rounds_done:
            await asyncio.to_thread(self._base.add, results, greedy)
            self._left = None
        elif await self.slices_left():
            limits = {task: new_tokens(config, task) for task in config.tasks}
            newest = _NewestResults(rounds_done, results, greedy, len(refs), self._conditions, limits)
            await asyncio.to_thread(self._write_newest, newest)
        event = await self._compared(
            results, greedy, rounds_done, sum(part.seconds for part in progress.values()), len(refs)
        )
        self.forget()
        return event

    async def _compared(
        self,
        results: Sequence[ItemResult],
        greedy: Sequence[ItemResult],
        rounds_done: int,
        seconds: float,
        asked: int,
    ) -> Evaluated:
        """The event of these answers, compared with what the base has answered."""
        known = await self._known()
        base, base_greedy = PairedBaseResults(), PairedBaseResults()
        if rounds_done:
            base, base_greedy = pair_with_base(results, known[1.0]), pair_with_base(greedy, known[0.0])
        event = evaluation_event(results, rounds_done, seconds, base.results, base.missing, asked)
        at_0 = greedy_score(greedy, base_greedy.results, base_greedy.missing)
        if base.missing and self.asks_base_beside:
            both = {ref for ref in known[1.0] if ref in known[0.0]}
            first, second = ({ref: known[t][ref] for ref in both} for t in TEMPERATURES)
            event = msgspec.structs.replace(event, so_far=compare_so_far(results, first))
            at_0 = msgspec.structs.replace(at_0, so_far=compare_so_far(greedy, second))
        return msgspec.structs.replace(event, greedy=at_0)

    async def fresh(self, factor: int, asked: int, weights: object, on_progress: Ask) -> list[ItemResult]:
        """Verdicts on fresh_questions(). weights: identifies the weights that answer; their answers are kept until forget().

        Raises Cancelled, Unanswered.
        """
        return (await self._answer(self.fresh_questions(factor, asked), weights, 1.0, on_progress)).results

    def answered(self, factor: int, asked: int, weights: object) -> list[ItemResult] | None:
        """What fresh() would return without asking; None if anything is still to be asked."""
        refs = self.fresh_questions(factor, asked)
        progress = self._begun.get((weights, 1.0, tuple(refs)))
        return progress.results if progress and progress.start >= len(refs) else None

    def forget(self) -> None:
        """Discard evaluations in progress."""
        self._begun.clear()

    def fresh_questions(self, factor: int, asked: int) -> list[TaskRef]:
        """`factor` times as many held-out items of every task as a regular evaluation asks; none is one of its items or was
        among the `asked` items of earlier calls. Fewer if a custom task has no more. Raises UnknownTask, BadTask."""
        tasks, preset, each = self._config.tasks, self._config.preset, eval_items(self._config)
        fresh = [held_out_count(task, each + asked) - each for task in tasks]
        of_each = bisect_left(range(asked), asked, key=lambda n: sum(min(n, max(0, count)) for count in fresh))
        return held_out_items(tasks, preset, factor * each, each + of_each)

    async def _answer_both(
        self, refs: Mapping[float, Sequence[TaskRef]], weights: object, on_progress: Ask, untrained: bool = False
    ) -> dict[float, EvaluationProgress]:
        """All answers of these weights at both temperatures, sampled before greedy; progress covers both."""
        count = sum(map(len, refs.values())) or 1
        progress: dict[float, EvaluationProgress] = {}
        behind = 0
        for temperature in TEMPERATURES:
            asked = refs[temperature]
            start, share = behind / count, len(asked) / count

            def show(part: float, start: float = start, share: float = share) -> None:
                on_progress(start + share * part)

            progress[temperature] = await self._answer(asked, weights, temperature, show, untrained)
            behind += len(asked)
        return progress

    async def _answer(
        self, refs: Sequence[TaskRef], weights: object, temperature: float, on_progress: Ask, untrained: bool = False
    ) -> EvaluationProgress:
        """All answers of these weights; continues what an interrupted call left."""
        key = (weights, temperature, tuple(refs))
        progress, began = self._begun.setdefault(key, EvaluationProgress()), time.perf_counter()
        sampling = Sampling(temperature, 1.0, self._config.max_new_tokens)
        limit = partial(new_tokens, self._config)
        try:
            await evaluate_questions(
                self._host, self._scorer, refs, sampling, 1, on_progress, limit, progress, self._portion, untrained
            )
        except Cancelled:
            raise
        except Exception as error:
            self.forget()
            raise Unanswered(f"{error}" or type(error).__name__) from error
        finally:
            progress.seconds += time.perf_counter() - began
        return progress


def write_results(path: Path, results: Sequence[ItemResult]) -> None:
    """Atomic and synced. Raises OSError."""
    write_atomically(path, msgspec.json.encode(list(results)))


def read_results(path: Path) -> list[ItemResult]:
    """Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=list[ItemResult])
