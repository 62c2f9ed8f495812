"""What a round works on, as a pure function of who and when."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator, Mapping

from sapo_swarm.config import RunConfig
from sapo_swarm.sapo import difficulty
from sapo_swarm.sapo.difficulty import Posterior
from sapo_swarm.tasks.catalogue import CATALOGUE, generator_of, is_own, preset_of
from sapo_swarm.tasks.seeds import train_seed
from sapo_swarm.types import TaskRef


def round_seed(node_key: str, seed: int, round_number: int, purpose: str) -> int:
    """A 63-bit seed for one use in one round, the same after a resume."""
    text = f"sapo-round-v1|{node_key}|{seed}|{round_number}|{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


NO_EVIDENCE: Mapping[str, Posterior] = {}


def candidate_refs(
    config: RunConfig,
    node_key: str,
    swarm: str,
    round_number: int,
    posteriors: Mapping[str, Posterior] = NO_EVIDENCE,
) -> Iterator[TaskRef]:
    """Endless fresh questions of a round: tasks sampled uniformly with replacement (SAPO, section 5), or by the posteriors
    of their success rates where config.curriculum says so.

    More than local_groups are available because some coordinates regenerate nothing.
    """
    rng = random.Random(round_seed(node_key, config.seed, round_number, "tasks"))
    choices = difficulties(config)
    weights = None
    if config.curriculum != "uniform":
        weights = difficulty.weights(posteriors, [difficulty.key(*choice) for choice in choices]).tolist()
    slot = 0
    while True:
        dataset, preset = rng.choice(choices) if weights is None else rng.choices(choices, weights)[0]
        seed = train_seed(node_key, swarm, round_number, slot, config.seed)
        yield TaskRef(dataset, preset, seed, generator=generator_of(dataset))
        slot += 1


def difficulties(config: RunConfig) -> list[tuple[str, str]]:
    """(task, preset) pairs that questions are sampled from. A swarm agrees on one preset. Raises UnknownTask."""
    if config.curriculum == "presets" and not config.external_groups:
        return [
            (task, preset)
            for task in config.tasks
            for preset in ([preset_of(task, config.preset)] if is_own(task) else CATALOGUE[task])
        ]
    return [(task, preset_of(task, config.preset)) for task in config.tasks]
