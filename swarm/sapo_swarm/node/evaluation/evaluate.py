"""Asking an engine the held-out questions. What the verdicts mean is in sapo_swarm.evaluation."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import msgspec

from sapo_backends.base import Completion, Sampling
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import ItemResult, evaluated, held_out_items, item_result, permutation_partners
from sapo_swarm.events import Evaluated
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.evaluation.base_answers import BaseAnswers
from sapo_swarm.node.round.phases import round_seed
from sapo_swarm.node.round.turns import continue_episodes, finished, prompt_ids
from sapo_swarm.node.storage.files import write_whole
from sapo_swarm.scoring.scorer import Scored, Scorer
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.tasks.own import library
from sapo_swarm.types import Question, TaskRef

BATCH = 64
"""Items answered together; between batches progress is told."""
Ask = Callable[[float], None]
Limit = Callable[[str], int]
"""Of a task: the most tokens of an answer."""


async def answer(
    host: EngineHost,
    scorer: Scorer,
    refs: Sequence[TaskRef],
    sampling: Sampling,
    samples: int = 1,
    on_progress: Ask | None = None,
    limit: Limit | None = None,
) -> list[ItemResult]:
    """Strict verdicts of `samples` completions of every item that regenerates here, in order; and on each the verdicts of what
    was answered to another item of its task and batch.

    An item that does not fit into the model's context counts as wrong and truncated. The seed depends on the batch
    only: two models answer with the same random numbers. Raises Cancelled, BackendError.
    """
    results: list[ItemResult] = []
    for start in range(0, len(refs), BATCH):
        found = await scorer.questions(refs[start : start + BATCH])
        questions = [q for q in found if isinstance(q, Question)]
        seed = round_seed("held-out", 0, start, "evaluate")
        completions = await sampled(host, scorer, questions, sampling, samples, seed, limit)
        texts = decoded(host, completions)
        scored = await verdicts(host, scorer, questions, completions, texts)
        refs_asked = [q.ref for q in questions]
        other = {
            place: to
            for place, to in permutation_partners(refs_asked).items()
            if not library.turns(refs_asked[to]) and not library.rubric(refs_asked[to])  # a judge costs
        }
        permuted = await scorer.score_local([(questions[to].ref, texts[place]) for place, to in other.items()])
        on_others = dict(zip(other.values(), permuted, strict=True))
        for place, (question, group, verdict) in enumerate(zip(questions, completions, scored, strict=True)):
            results.append(item_result(question.ref, verdict, [c.finish for c in group], on_others.get(place)))
        if on_progress is not None:
            on_progress(min(1.0, (start + BATCH) / len(refs)))
    return results


async def give_to_all(scorer: Scorer, refs: Sequence[TaskRef], answer_text: str) -> list[bool]:
    """Strict verdicts of one answer on every item that regenerates here, in order. Raises ScorerUnavailable."""
    verdicts: list[bool] = []
    for start in range(0, len(refs), BATCH):
        found = await scorer.questions(refs[start : start + BATCH])
        batch = [(q.ref, (f"<answer>{answer_text}</answer>",)) for q in found if isinstance(q, Question)]
        verdicts += [scored.rewards[0] == 1.0 for scored in await scorer.score_local(batch)]
    return verdicts


async def sampled(
    host: EngineHost,
    scorer: Scorer,
    questions: Sequence[Question],
    sampling: Sampling,
    samples: int,
    seed: int,
    limit: Limit | None = None,
) -> list[list[Completion]]:
    """Completions of every question, episodes played to their end; empty, cut-off ones where the prompt leaves no room in the
    model's context. limit: where tasks have limits of their own. Raises Cancelled, BackendError."""
    engine = host.engine
    prompts = [prompt_ids(engine.tokenizer, scorer, q) for q in questions]
    each = [sampling if limit is None else replace(sampling, max_new_tokens=limit(q.ref.dataset)) for q in questions]
    room = engine.info.context_length
    fits = [i for i, ids in enumerate(prompts) if len(ids) + each[i].max_new_tokens <= room]

    def rest(_finished: int, _tokens: int) -> None:
        host.rest()

    result = [[Completion((), (), "length")] * samples for _ in questions]
    for number, alike in enumerate(dict.fromkeys(each[i] for i in fits)):
        chosen = [i for i in fits if each[i] == alike]
        of_batch = seed + number * len(questions) * samples
        found = await host.call(
            engine.generate, [prompts[i] for i in chosen], samples, alike, of_batch, host.cancel, rest
        )
        for i, group in zip(chosen, found, strict=True):
            result[i] = group
    return await continue_episodes(host, scorer, questions, prompts, result, each, seed)


def decoded(host: EngineHost, completions: Sequence[Sequence[Completion]]) -> list[list[str]]:
    """The text of every completion."""
    return [[host.engine.tokenizer.decode(c.tokens) for c in group] for group in completions]


async def verdicts(
    host: EngineHost,
    scorer: Scorer,
    questions: Sequence[Question],
    completions: Sequence[Sequence[Completion]],
    texts: Sequence[Sequence[str]],
) -> list[Scored]:
    """Strict verdicts on the completions of every question, in order. texts: of the completions. Raises ScorerUnavailable."""
    single = [(q.ref, group) for q, group in zip(questions, texts, strict=True) if not library.turns(q.ref)]
    episodes = [(q.ref, group) for q, group in zip(questions, completions, strict=True) if library.turns(q.ref)]
    judged = iter(await scorer.score_local(single))
    played = iter(await finished(host.engine.tokenizer, scorer, episodes))
    return [next(played)[0] if library.turns(q.ref) else next(judged) for q in questions]


class Examiner:
    """The small evaluations of a model. folder: where the base model's answers lie, to be paired with later ones."""

    def __init__(self, config: RunConfig, host: EngineHost, scorer: Scorer, folder: Path) -> None:
        self._config, self._host, self._scorer = config, host, scorer
        self._base = BaseAnswers(folder / "base.json", partial(new_tokens, config))

    @property
    def regular(self) -> bool:
        """Evaluations are made every so many rounds."""
        return self._config.eval_every > 0

    @property
    def _questions(self) -> list[TaskRef]:
        return held_out_items(self._config.tasks, self._config.preset, self._config.eval_items)

    async def base_missing(self) -> list[TaskRef]:
        """Questions of a regular evaluation that the base has not answered, in order, without those that do not regenerate
        here. Raises UnknownTask, ScorerUnavailable."""
        known = await asyncio.to_thread(self._base.known)
        refs = [ref for ref in self._questions if ref not in known]
        found = await self._scorer.questions(refs) if refs else []
        return [question.ref for question in found if isinstance(question, Question)]

    async def ask_base(self, refs: Sequence[TaskRef], on_progress: Ask) -> None:
        """Call while the engine is as it was loaded: what it answers is the base's answer from now on.

        Raises Cancelled, BackendError, ScorerUnavailable, OSError; then nothing of it is kept.
        """
        await asyncio.to_thread(self._base.add, await self._answer(refs, on_progress))

    async def examine(self, rounds_done: int, per_task: int, on_progress: Ask) -> Evaluated:
        """Held-out pass@1 at temperature 1, one sample an item; the difference to the base where it answered them all."""
        config, began = self._config, time.perf_counter()
        results = await self._answer(held_out_items(config.tasks, config.preset, per_task), on_progress)
        if not rounds_done:
            await asyncio.to_thread(self._base.add, results)
            return evaluated(results, 0, 1.0, time.perf_counter() - began)
        base = await asyncio.to_thread(self._base.known)
        paired = [base[r.ref] for r in results if r.ref in base]
        missing = len(results) - len(paired)
        seconds = time.perf_counter() - began
        return evaluated(results, rounds_done, 1.0, seconds, None if missing else paired, missing)

    async def fresh(self, factor: int, asked: int, on_progress: Ask) -> list[ItemResult]:
        """Verdicts on `factor` times as many held-out items, none of which the regular evaluation asks, nor was among the `asked`
        ones of earlier calls."""
        config = self._config
        start = config.eval_items + asked // len(config.tasks)
        refs = held_out_items(config.tasks, config.preset, factor * config.eval_items, start)
        return await self._answer(refs, on_progress)

    async def _answer(self, refs: Sequence[TaskRef], on_progress: Ask) -> list[ItemResult]:
        sampling = Sampling(1.0, 1.0, self._config.max_new_tokens)
        return await answer(self._host, self._scorer, refs, sampling, 1, on_progress, partial(new_tokens, self._config))


def write_results(path: Path, results: Sequence[ItemResult]) -> None:
    """Atomic, and on the disk before it has its name. Raises OSError."""
    write_whole(path, msgspec.json.encode(list(results)))


def read_results(path: Path) -> list[ItemResult]:
    """Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=list[ItemResult])
