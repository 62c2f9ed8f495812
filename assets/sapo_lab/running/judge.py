"""The judge of the paper's open demo: one held-out question per round, the same for every node, and the round from which on a
swarm answers better than nodes alone."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import Sampling
from sapo_swarm.node.round_phases import RoundContext, round_seed
from sapo_swarm.scoring.prompts import build_conversation
from sapo_swarm.scoring.scorer import ScoredTexts
from sapo_swarm.tasks.catalogue import held_out, preset_of
from sapo_swarm.types import Question, TaskRef

FIRST_ITEM = 2**19
"""The judge's items begin here: far from those of the other evaluations."""
BLOCK = 25
"""Rounds that are tested together."""
FLIPS = 10_000
Key = tuple[int, int]
"""(seed, round) of a question."""


def pick_judge_question(tasks: Sequence[str], preset: str, round_number: int) -> TaskRef:
    """The judge's question of a round: the same in every arm, for every node and seed."""
    task = random.Random(f"judge|{round_number}").choice(tasks)
    return held_out(task, preset_of(task, preset), FIRST_ITEM + round_number)


async def score_judge_question(context: RoundContext, ref: TaskRef) -> float | None:
    """1 for a right answer, 0 for a wrong one, None if the coordinates give no question."""
    question = (await context.scorer.questions([ref]))[0]
    if not isinstance(question, Question):
        return None
    engine, config = context.host.engine, context.config
    prompt = engine.tokenizer.encode_chat(build_conversation(question))
    seed = round_seed(context.node_key, config.seed, ref.index, "judge")
    sampling = Sampling(1.0, 1.0, config.max_new_tokens)
    completions = await context.host.call(engine.generate, [prompt], 1, sampling, seed, context.host.cancel)
    verdict = (await context.scorer.score_many([(ref, [engine.tokenizer.decode(completions[0][0].tokens)])]))[0]
    return float(verdict.rewards[0] >= 1.0) if isinstance(verdict, ScoredTexts) else 0.0


def better_from(swarm: Mapping[Key, float], silo: Mapping[Key, float]) -> int | None:
    """The round from which on the swarm is better in every block of rounds at an adjusted p < .05; None for never.

    Values are mean verdicts over nodes. Paired by question, one-sided sign flips in each block, Holm's adjustment over the
    blocks (doi 10.2307/4615733).
    """
    differences: dict[int, list[float]] = {}
    for key in sorted(swarm.keys() & silo.keys()):
        differences.setdefault(key[1] // BLOCK, []).append(swarm[key] - silo[key])
    blocks = sorted(differences)
    p_values = holm_correction([sign_flip(np.array(differences[b])) for b in blocks])
    first: int | None = None
    for number, p_value in zip(reversed(blocks), reversed(p_values), strict=True):
        if p_value >= 0.05:
            break
        first = number * BLOCK
    return first


def sign_flip(differences: NDArray[np.float64]) -> float:
    """One-sided p-value that paired differences have a mean above 0, by random signs (the observed ones count)."""
    signs = np.random.default_rng(0).choice((-1.0, 1.0), size=(FLIPS, differences.size))
    reached = (signs @ differences >= differences.sum() - 1e-12).sum()
    return float((reached + 1) / (FLIPS + 1))


def holm_correction(p_values: Sequence[float]) -> list[float]:
    """Adjusted p-values in the order given."""
    order = np.argsort(p_values)
    adjusted = [0.0] * len(p_values)
    largest = 0.0
    for rank, index in enumerate(order):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[int(index)]))
        adjusted[int(index)] = largest
    return adjusted
