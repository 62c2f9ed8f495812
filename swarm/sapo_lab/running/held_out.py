"""Held-out pass@1 of a lab swarm: the base once, a curve on the way, everything at the end."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from sapo_backends.base import Sampling
from sapo_lab.running.adaptive import observe_held_out
from sapo_lab.running.nodes import LabNode
from sapo_lab.schema import Arm, Experiment
from sapo_swarm.evaluation import ItemResult, eval_items, evaluation_event, held_out_items
from sapo_swarm.events import Evaluated
from sapo_swarm.node.checkpoints import package_versions
from sapo_swarm.node.evaluation import evaluate_questions, read_results, write_results
from sapo_swarm.node.exchange import token_logprobs
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.types import Question, TaskRef

VERDICTS = "final.json"
"""Beside a node's journal: the verdict on every question that it answered at the end, for intervals over questions."""


def assign_items(refs: Sequence[TaskRef], place: int, nodes: int, answers: int = 1) -> list[TaskRef]:
    """The items of one node if every item is answered by `answers` nodes: with many items the mean over nodes is almost as
    exact as if each node answered all, at a fraction of the cost."""
    return [ref for number, ref in enumerate(refs) if (place - number) % nodes < answers]


async def evaluate_base(nodes: Sequence[LabNode], experiment: Experiment, arm: Arm, folder: Path, shared: Path) -> None:
    """Write the untrained models' results into every journal. Nodes with the same model are equal before they train: one of
    them answers. shared: a folder for all runs of the experiment; what one run has measured, the others copy."""
    for node in nodes:
        refs = registered_items(experiment, arm)
        began = time.perf_counter()
        path = base_path(folder, node.context.config.model)
        if not path.exists():
            measured = shared / f"{await _fingerprint(node, refs)}.json"
            if not measured.exists():
                write_results(measured, await _answers(node, refs))
            write_results(path, read_results(measured))
        _store_all(node, arm, read_results(path), 0, time.perf_counter() - began)


async def _fingerprint(node: LabNode, refs: Sequence[TaskRef]) -> str:
    """Equal for models that would answer alike: their identity, the likelihood of one text, the questions."""
    question = next(q for q in await node.context.scorer.questions(refs[:8]) if isinstance(q, Question))
    likely = await node.host.call(token_logprobs, node.host, question, ["<answer>12</answer>"])
    config, info = node.context.config, node.host.engine.info
    identity = (
        config.model,
        config.max_new_tokens,
        *config.task_tokens,
        package_versions(info.backend),
        info.device,
        info.precision,
        likely,
        list(refs),
    )
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def base_path(folder: Path, model: str) -> Path:
    """Model names may be paths."""
    return folder / f"{hashlib.sha256(model.encode()).hexdigest()[:16]}.json"


async def evaluate_curve_point(nodes: Sequence[LabNode], arm: Arm, rounds_done: int) -> None:
    """A point of the curve: the first eval_items items per task, divided among the nodes."""
    refs = held_out_items(arm.run.tasks, arm.run.preset, eval_items(arm.run))
    for place, node in enumerate(nodes):
        began = time.perf_counter()
        mine = assign_items(refs, place, len(nodes))
        results = await _answers(node, mine)
        event = evaluation_event(results, rounds_done, time.perf_counter() - began)
        if arm.conditions.adaptive and node.held_out is not None:
            node.split = observe_held_out(node.split, node.held_out, event.pass_at_1, event.items)
        _store(node, event)


async def evaluate_final(
    nodes: Sequence[LabNode], experiment: Experiment, arm: Arm, rounds_done: int, folder: Path
) -> None:
    """All items, each answered by final_answers nodes; paired with the base on the same items."""
    refs = registered_items(experiment, arm)
    for place, node in enumerate(nodes):
        began = time.perf_counter()
        results = await _answers(node, assign_items(refs, place, len(nodes), experiment.final_answers))
        answered = {result.ref for result in results}
        before = read_results(base_path(folder, node.context.config.model))
        paired = [result for result in before if result.ref in answered]
        write_results(folder.parent / node.key / VERDICTS, results)
        _store_all(node, arm, results, rounds_done, time.perf_counter() - began, paired)


def registered_items(experiment: Experiment, arm: Arm) -> list[TaskRef]:
    """The questions for the base and the end."""
    return held_out_items(arm.run.tasks, arm.run.preset, experiment.final_items, experiment.first_item)


async def _answers(node: LabNode, refs: Sequence[TaskRef]) -> list[ItemResult]:
    config = node.context.config
    limit = partial(new_tokens, config)
    return await evaluate_questions(
        node.host, node.context.scorer, refs, Sampling(1.0, 1.0, config.max_new_tokens), limit=limit
    )


def _store_all(
    node: LabNode,
    arm: Arm,
    results: Sequence[ItemResult],
    rounds_done: int,
    seconds: float,
    before: Sequence[ItemResult] | None = None,
) -> None:
    """Results on all items; before them those on the curve's items alone, so that points on the way have a counterpart."""
    part = [result for result in results if result.ref.index < eval_items(arm.run)]
    if 0 < len(part) < len(results):
        _store(node, evaluation_event(part, rounds_done, 0.0))
    _store(node, evaluation_event(results, rounds_done, seconds, before))


def _store(node: LabNode, event: Evaluated) -> None:
    node.held_out = event.pass_at_1
    node.journal.append([msgspec.structs.replace(event, time=time.time())])
