"""Random numbers that belong to a completion, not to its place in a batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import RowSeed


def row_uniforms(seeds: Sequence[RowSeed], steps: int) -> NDArray[np.float64]:
    """One uniform in [0, 1) a row and step (rows, steps): the numbers of each row's own stream that follow its used ones."""
    found = np.empty((len(seeds), steps))
    for row, seed in zip(found, seeds, strict=True):
        bits = np.random.PCG64(seed.seed)
        np.random.Generator(bits.advance(seed.used)).random(out=row)
    return found
