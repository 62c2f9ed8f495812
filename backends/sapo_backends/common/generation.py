"""What every generator shares: how many rows go at once, random numbers that belong to a completion, and
what has been sampled so far, by row."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import Completion, RowSeed
from sapo_backends.common.round_memory import KV_BUDGET


def row_uniforms(seeds: Sequence[RowSeed], steps: int) -> NDArray[np.float64]:
    """One uniform in [0, 1) a row and step (rows, steps): the numbers of each row's own stream that follow its used ones."""
    found = np.empty((len(seeds), steps))
    for row, seed in zip(found, seeds, strict=True):
        bits = np.random.PCG64(seed.seed)
        np.random.Generator(bits.advance(seed.used)).random(out=row)
    return found


def rows_at_once(row_bytes: int, budget: int = KV_BUDGET) -> int:
    """Rows to generate at once when each may need so many bytes of keys and values; at least one."""
    return max(1, budget // max(1, row_bytes))


class GeneratedRows:
    """Rows end at an end-of-sequence token, which they keep; what comes after it is ignored."""

    def __init__(self, rows: int, eos_ids: Sequence[int]) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.logprobs: list[list[float]] = [[] for _ in range(rows)]
        self.done = [False] * rows
        self._eos = frozenset(eos_ids)

    def append(self, rows: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """One token for each of the given rows."""
        for row, token, logprob in zip(rows, tokens, logprobs, strict=True):
            if not self.done[row]:
                self.tokens[row].append(token)
                self.logprobs[row].append(logprob)
                self.done[row] = token in self._eos

    @property
    def finished(self) -> int:
        """Rows that have ended."""
        return sum(self.done)

    @property
    def count(self) -> int:
        """Tokens sampled so far."""
        return sum(map(len, self.tokens))

    def completions(self) -> list[Completion]:
        """What was sampled, row by row."""
        return [
            Completion(tuple(t), tuple(p), "stop" if done else "length")
            for t, p, done in zip(self.tokens, self.logprobs, self.done, strict=True)
        ]

    def groups(self, prompts: int, group_size: int) -> list[list[Completion]]:
        """group_size completions of each prompt, rows in order."""
        done = self.completions()
        return [done[i * group_size : (i + 1) * group_size] for i in range(prompts)]
