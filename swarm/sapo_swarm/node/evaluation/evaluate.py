"""Asking an engine the held-out questions. What the verdicts mean is in sapo_swarm.evaluation."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from sapo_backends.base import Completion, Sampling
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import ItemResult, evaluated, held_out_items, item_result, permutation_partners
from sapo_swarm.events import Evaluated
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.round.plan import round_seed
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.prompts import conversation
from sapo_swarm.types import Question, TaskRef

BATCH = 64
"""Items answered together; between batches progress is told."""
Ask = Callable[[float], None]


async def answer(
    host: EngineHost,
    scorer: Scorer,
    refs: Sequence[TaskRef],
    sampling: Sampling,
    samples: int = 1,
    on_progress: Ask | None = None,
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
        drawn = await _draw(host, questions, sampling, samples, seed)
        texts = [[host.engine.tokenizer.decode(c.tokens) for c in group] for group in drawn]
        scored = await scorer.score_own([(q.ref, t) for q, t in zip(questions, texts, strict=True)])
        other = permutation_partners([q.ref for q in questions])
        permuted = await scorer.score_own([(questions[to].ref, texts[place]) for place, to in other.items()])
        on_others = dict(zip(other.values(), permuted, strict=True))
        for place, (question, group, verdict) in enumerate(zip(questions, drawn, scored, strict=True)):
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
        verdicts += [scored.rewards[0] == 1.0 for scored in await scorer.score_own(batch)]
    return verdicts


async def _draw(
    host: EngineHost, questions: Sequence[Question], sampling: Sampling, samples: int, seed: int
) -> list[list[Completion]]:
    """Completions of every question; empty, cut-off ones where the prompt leaves no room in the model's context."""
    engine = host.engine
    prompts = [engine.tokenizer.encode_chat(conversation(q)) for q in questions]
    fits = [i for i, ids in enumerate(prompts) if len(ids) + sampling.max_new_tokens <= engine.info.context_length]
    drawn = await host.call(engine.generate, [prompts[i] for i in fits], samples, sampling, seed, host.cancel)
    result = [[Completion((), (), "length")] * samples for _ in questions]
    for i, group in zip(fits, drawn, strict=True):
        result[i] = group
    return result


class Examiner:
    """The small evaluations of a run. The base model's verdicts lie in the run's folder, to be paired with later ones."""

    def __init__(self, config: RunConfig, host: EngineHost, scorer: Scorer, folder: Path) -> None:
        self._config, self._host, self._scorer = config, host, scorer
        self._base = folder / "base.json"

    def has_base(self) -> bool:
        """The untrained model was evaluated."""
        return bool(self._before())

    def _before(self) -> dict[TaskRef, ItemResult]:
        """The untrained model's results; none where the file is missing, or was cut off by a full disk."""
        try:
            return {result.ref: result for result in read_results(self._base)}
        except (OSError, msgspec.MsgspecError):
            return {}

    async def examine(self, rounds_done: int, per_task: int, on_progress: Ask) -> Evaluated:
        """Held-out pass@1 at temperature 1, one sample an item; the difference to the base where items agree."""
        config, began = self._config, time.perf_counter()
        results = await self._answer(held_out_items(config.tasks, config.preset, per_task), on_progress)
        if rounds_done == 0 and not self.has_base():
            write_results(self._base, results)
        base = self._before() if rounds_done else {}
        paired = [base[r.ref] for r in results if r.ref in base]
        whole = len(paired) == len(results)
        return evaluated(results, rounds_done, 1.0, time.perf_counter() - began, paired if whole and paired else None)

    async def fresh(self, factor: int, asked: int, on_progress: Ask) -> list[ItemResult]:
        """Verdicts on `factor` times as many held-out items, none of which the regular evaluation asks, nor was among the `asked`
        ones of earlier calls."""
        config = self._config
        start = config.eval_items + asked // len(config.tasks)
        refs = held_out_items(config.tasks, config.preset, factor * config.eval_items, start)
        return await self._answer(refs, on_progress)

    async def _answer(self, refs: Sequence[TaskRef], on_progress: Ask) -> list[ItemResult]:
        sampling = Sampling(1.0, 1.0, self._config.max_new_tokens)
        return await answer(self._host, self._scorer, refs, sampling, 1, on_progress)


def write_results(path: Path, results: Sequence[ItemResult]) -> None:
    """Atomic, and on the disk before it has its name. Raises OSError."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    with partial.open("wb") as file:
        file.write(msgspec.json.encode(list(results)))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)


def read_results(path: Path) -> list[ItemResult]:
    """Raises OSError, msgspec.MsgspecError."""
    return msgspec.json.decode(path.read_bytes(), type=list[ItemResult])
