"""Algorithms by name; a module is imported when its name is chosen."""

from __future__ import annotations

import importlib

from sapo_swarm.algorithms.base import Algorithm
from sapo_swarm.errors import UnknownName

ALGORITHMS: dict[str, str] = {
    "grpo": "sapo_swarm.algorithms.grpo",
    "dr_grpo": "sapo_swarm.algorithms.dr_grpo",
    "rloo": "sapo_swarm.algorithms.rloo",
    "gspo": "sapo_swarm.algorithms.gspo",
    "maxrl": "sapo_swarm.algorithms.maxrl",
}
"""Name -> module with an ALGORITHM."""


def load_algorithm(name: str) -> Algorithm:
    """Raises UnknownName, which names the nearest."""
    module = ALGORITHMS.get(name)
    if module is None:
        raise UnknownName("algorithm", name, ALGORITHMS)
    algorithm: Algorithm = importlib.import_module(module).ALGORITHM
    return algorithm
