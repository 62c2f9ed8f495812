"""Which seeds train and which are held out.

reasoning_gym makes item i of seed s from Random(s + i), so nearby seeds share items: the two ranges are separated by
more than any index that is used.
"""

from __future__ import annotations

import hashlib

from sapo_swarm.tasks.catalogue import generator_of
from sapo_swarm.types import TaskRef

TRAIN_LIMIT = 2**31 - 2**20
"""Train seeds lie in [0, TRAIN_LIMIT); index 0 only."""
HELD_OUT_SEED = 2**31
"""Held-out items are (HELD_OUT_SEED, index)."""
HELD_OUT_SIZE = 2**20


def train_seed(node_key: str, swarm: str, round_number: int, slot: int, seed: int = 0) -> int:
    """A seed that no two nodes, rounds or slots share by design: H(...) mod TRAIN_LIMIT."""
    text = f"sapo-train-v1|{node_key}|{swarm}|{round_number}|{slot}|{seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % TRAIN_LIMIT


def contrasts(ref: TaskRef, count: int) -> list[TaskRef]:
    """Other questions of the same task, the same on every node. The chance that one is the question itself is 1 in 2^31, but in
    tasks with few questions it may read the same."""
    text = f"sapo-contrast-v1|{ref.seed}|{ref.index}"
    digests = [hashlib.sha256(f"{text}|{number}".encode()).digest() for number in range(count)]
    seeds = [int.from_bytes(digest[:8], "big") % TRAIN_LIMIT for digest in digests]
    return [TaskRef(ref.dataset, ref.preset, seed, 0, ref.generator) for seed in seeds]


def held_out(dataset: str, preset: str, index: int) -> TaskRef:
    """The index-th held-out item of a task. Raises ValueError outside [0, HELD_OUT_SIZE)."""
    if not 0 <= index < HELD_OUT_SIZE:
        raise ValueError(f"Held-out index {index} is outside 0..{HELD_OUT_SIZE - 1}.")
    return TaskRef(dataset, preset, HELD_OUT_SEED, index, generator_of(dataset))


def is_train(ref: TaskRef) -> bool:
    """True when the reference can be trained on: item 0 of a train seed. Anything else could reach held-out items, and items far
    from 0 take some generators seconds."""
    return ref.index == 0 and ref.seed < TRAIN_LIMIT
