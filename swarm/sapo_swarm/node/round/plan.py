"""What a round works on, as a pure function of who and when."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator

from sapo_swarm.config import RunConfig
from sapo_swarm.tasks.catalogue import generator_of, preset_of
from sapo_swarm.tasks.seeds import train_seed
from sapo_swarm.types import TaskRef


def round_seed(node_key: str, seed: int, round_number: int, purpose: str) -> int:
    """A 63-bit seed for one use in one round, the same after a resume."""
    text = f"sapo-round-v1|{node_key}|{seed}|{round_number}|{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


def candidate_refs(config: RunConfig, node_key: str, swarm: str, round_number: int) -> Iterator[TaskRef]:
    """Endless fresh questions of a round: tasks drawn uniformly with replacement (SAPO, section 5).

    More than local_groups are on offer because some coordinates regenerate nothing.
    """
    draw = random.Random(round_seed(node_key, config.seed, round_number, "tasks"))
    slot = 0
    while True:
        dataset = draw.choice(config.tasks)
        seed = train_seed(node_key, swarm, round_number, slot, config.seed)
        yield TaskRef(dataset, preset_of(dataset, config.preset), seed, generator=generator_of(dataset))
        slot += 1
