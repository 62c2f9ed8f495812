"""Held-out pass@1 of a lab swarm: the base once, a curve on the way, everything at the end.

The base and the end are measured at temperature 0, as a chat answers, and at 1, as training samples; the curve at 1.
"""

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
from sapo_lab.schema import Arm, BadExperiment, Experiment
from sapo_swarm.evaluation import ItemResult, eval_items, evaluation_event, greedy_score, held_out_items
from sapo_swarm.events import Evaluated
from sapo_swarm.node.checkpoints import package_versions
from sapo_swarm.node.evaluation import beyond_exclusion, evaluate_questions, read_results, write_results
from sapo_swarm.node.swarm_exchange import token_logprobs
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.types import Question, TaskRef

VERDICTS = "final.json"
"""Beside a node's journal: the verdict on every question that it answered at the end, for intervals over questions."""
GREEDY_VERDICTS = "final-greedy.json"
"""The same at temperature 0."""


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
        for temperature in (1.0, 0.0):
            path = base_path(folder, node.context.config.model, temperature)
            if not path.exists():
                samples = experiment.final_samples if temperature else 1
                measured = shared / f"{await _fingerprint(node, refs, temperature, samples)}.json"
                if not measured.exists():
                    write_results(measured, await _answers(node, refs, temperature, samples))
                write_results(path, read_results(measured))
        results, greedy = (read_results(base_path(folder, node.context.config.model, each)) for each in (1.0, 0.0))
        _store_all(node, arm, results, greedy, 0, time.perf_counter() - began)


async def _fingerprint(node: LabNode, refs: Sequence[TaskRef], temperature: float, samples: int) -> str:
    """Equal for models that would answer alike: their identity, the likelihood of one text, the questions, how they are
    asked."""
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
        temperature,
        samples,
    )
    return hashlib.sha256(msgspec.json.encode(identity)).hexdigest()[:16]


def base_path(folder: Path, model: str, temperature: float = 1.0) -> Path:
    """Model names may be paths."""
    return folder / f"{hashlib.sha256(model.encode()).hexdigest()[:16]}{'' if temperature else '-greedy'}.json"


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
    """All items, each answered by final_answers nodes (with final_samples at temperature 1 by one); paired with the base on
    the same items."""
    refs, samples = registered_items(experiment, arm), experiment.final_samples
    for place, node in enumerate(nodes):
        began = time.perf_counter()
        model, at_end = node.context.config.model, folder.parent / node.key
        greedy = await _answers(node, assign_items(refs, place, len(nodes), experiment.final_answers), 0.0)
        write_results(at_end / GREEDY_VERDICTS, greedy)
        mine = assign_items(refs, place, len(nodes), 1 if samples > 1 else experiment.final_answers)
        results = await _answers(node, mine, 1.0, samples)
        write_results(at_end / VERDICTS, results)
        before, greedy_before = (read_results(base_path(folder, model, each)) for each in (1.0, 0.0))
        _store_all(
            node,
            arm,
            results,
            greedy,
            rounds_done,
            time.perf_counter() - began,
            _same_items(before, results),
            _same_items(greedy_before, greedy),
        )


def _same_items(before: Sequence[ItemResult], answered: Sequence[ItemResult]) -> list[ItemResult]:
    refs = {result.ref for result in answered}
    return [result for result in before if result.ref in refs]


def registered_items(experiment: Experiment, arm: Arm) -> list[TaskRef]:
    """The questions for the base and the end."""
    return held_out_items(arm.run.tasks, arm.run.preset, experiment.final_items, experiment.first_item)


def check_protected(experiment: Experiment, arm: Arm) -> None:
    """Raises BadExperiment if training may have asked a question that the end asks: an arm's own (held_out_exclusion), an
    examples phase's, or the recipe's of a bundled model (its text leaves out the same questions)."""
    asked = beyond_exclusion(registered_items(experiment, arm), arm.run.tasks, arm.run.preset)
    if asked:
        raise BadExperiment(
            f"{experiment.name}: {asked} of the final questions of {arm.name} are not kept out of training. Ask fewer "
            "(final_items), or earlier ones (first_item = 0)."
        )


async def _answers(
    node: LabNode, refs: Sequence[TaskRef], temperature: float = 1.0, samples: int = 1
) -> list[ItemResult]:
    config = node.context.config
    sampling = Sampling(temperature, 1.0, config.max_new_tokens)
    limit = partial(new_tokens, config)
    return await evaluate_questions(node.host, node.context.scorer, refs, sampling, samples, limit=limit)


def _store_all(
    node: LabNode,
    arm: Arm,
    results: Sequence[ItemResult],
    greedy: Sequence[ItemResult],
    rounds_done: int,
    seconds: float,
    before: Sequence[ItemResult] | None = None,
    greedy_before: Sequence[ItemResult] | None = None,
) -> None:
    """Results on all items; before them those on the curve's items alone, so that points on the way have a counterpart."""
    part = [result for result in results if result.ref.index < eval_items(arm.run)]
    if 0 < len(part) < len(results):
        _store(node, evaluation_event(part, rounds_done, 0.0))
    event = evaluation_event(results, rounds_done, seconds, before)
    _store(node, msgspec.structs.replace(event, greedy=greedy_score(greedy, greedy_before)))


def _store(node: LabNode, event: Evaluated) -> None:
    node.held_out = event.pass_at_1
    node.journal.append([msgspec.structs.replace(event, time=time.time())])
