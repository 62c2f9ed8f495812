"""What every generator shares: how many rows run at once, per-row random numbers, and a NumPy sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import Completion, RowSeed, Sampling
from sapo_backends.common.round_memory import KV_BUDGET
from sapo_backends.errors import BackendError


def row_uniforms(seeds: Sequence[RowSeed], steps: int) -> NDArray[np.float64]:
    """Uniforms in [0, 1) (rows, steps): for each row, the numbers of its stream that follow those already used."""
    uniforms = np.empty((len(seeds), steps))
    for row, seed in zip(uniforms, seeds, strict=True):
        bits = np.random.PCG64(seed.seed)
        np.random.Generator(bits.advance(seed.used)).random(out=row)
    return uniforms


def rows_at_once(row_bytes: int, budget: int = KV_BUDGET) -> int:
    """How many rows to generate at once when each may need row_bytes of keys and values; at least one."""
    return max(1, budget // max(1, row_bytes))


class GeneratedRows:
    """Collects sampled tokens by row. A row ends with its end-of-sequence token, which is kept; later tokens are
    ignored."""

    def __init__(self, rows: int, eos_ids: Sequence[int]) -> None:
        self.tokens: list[list[int]] = [[] for _ in range(rows)]
        self.logprobs: list[list[float]] = [[] for _ in range(rows)]
        self.done = [False] * rows
        self._eos = frozenset(eos_ids)

    def append(self, rows: Sequence[int], tokens: Sequence[int], logprobs: Sequence[float]) -> None:
        """Append one token to each of the given rows. Raises BackendError if a log-probability is not finite."""
        if any(map(math.isnan, logprobs)):
            raise BackendError(
                "The model computes no numbers: its weights are damaged, or its training diverged. Copy or download the model "
                "again, or go back to an earlier checkpoint (sapo-desktop rollback)."
            )
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
        """The completions so far, row by row."""
        return [
            Completion(tuple(t), tuple(p), "stop" if done else "length")
            for t, p, done in zip(self.tokens, self.logprobs, self.done, strict=True)
        ]

    def groups(self, prompts: int, group_size: int) -> list[list[Completion]]:
        """group_size completions of each prompt, rows in order."""
        done = self.completions()
        return [done[i * group_size : (i + 1) * group_size] for i in range(prompts)]


# A sampler of the next token from NumPy logits by the inverse CDF. It reads the large (rows, V) array as few times as
# possible: block sums first, then one block per row in float64, which is as exact as a float64 cumulative sum over
# everything.

Float32 = NDArray[np.float32]
Float64 = NDArray[np.float64]
Int64 = NDArray[np.int64]
BLOCK = 256
CANDIDATES = 512
"""How many of the largest weights are tried first for top_p."""


def draw_uniforms(rows: int, steps: int, seed: int | Sequence[RowSeed]) -> Float64:
    """One uniform per row and step (rows, steps), all sampled at once: a row's numbers do not depend on which other
    rows are still running."""
    if not isinstance(seed, int):
        return row_uniforms(seed, steps)
    return np.random.default_rng(seed).random((rows, steps))


def chosen_logprobs(logits: Float32, tokens: Int64, temperature: float = 1.0) -> Float64:
    """log softmax(logits / temperature) at tokens (rows,); logits (rows, V)."""
    if temperature != 1.0:
        logits = logits / np.float32(temperature)
    top = logits.max(axis=-1)
    total = np.exp(logits - top[:, None]).sum(axis=-1, dtype=np.float64)
    chosen = logits[np.arange(len(tokens)), tokens]
    result: Float64 = (chosen - top).astype(np.float64) - np.log(total)
    return result


def sample_tokens(logits: Float32, sampling: Sampling, uniform: Float64) -> tuple[Int64, Float64]:
    """logits (rows, V), uniform (rows,) in [0, 1) -> tokens (rows,), log-probabilities (rows,) under
    softmax(logits / temperature), or at temperature 1 when greedy."""
    rows = np.arange(len(logits))
    if sampling.temperature == 0.0:
        tokens = logits.argmax(axis=-1)
        return tokens, chosen_logprobs(logits, tokens)
    weights = logits - logits.max(axis=-1, keepdims=True)  # (rows, V)
    if sampling.temperature != 1.0:
        weights /= np.float32(sampling.temperature)
    np.exp(weights, out=weights)
    blocks = _blocks(weights)
    total = blocks.sum(axis=(1, 2), dtype=np.float64)
    allowed = blocks if sampling.top_p >= 1.0 else _blocks(filter_top_p(weights, sampling.top_p))
    tokens = inverse_cdf(allowed, uniform)
    return tokens, np.log(weights[rows, tokens].astype(np.float64)) - np.log(total)


def _blocks(weights: Float32) -> Float32:
    """(rows, V) -> (rows, blocks, BLOCK), zero-padded."""
    padding = -weights.shape[1] % BLOCK
    if padding:
        weights = np.pad(weights, ((0, 0), (0, padding)))
    return weights.reshape(len(weights), -1, BLOCK)


def inverse_cdf(blocks: Float32, uniform: Float64) -> Int64:
    """Index (rows,) sampled in proportion to non-negative weights (rows, blocks, BLOCK); never one of weight 0."""
    rows = np.arange(len(blocks))
    edges = blocks.sum(axis=2, dtype=np.float64).cumsum(axis=1)  # (rows, blocks)
    target = np.minimum(uniform * edges[:, -1], np.nextafter(edges[:, -1], 0.0))
    block = (edges <= target[:, None]).sum(axis=1)
    before = np.where(block > 0, edges[rows, np.maximum(block - 1, 0)], 0.0)
    within = blocks[rows, block].cumsum(axis=1, dtype=np.float64)  # (rows, BLOCK)
    # Rounding may leave the target slightly beyond the block's own sum: then the last token with a weight is chosen.
    left = np.minimum(target - before, np.nextafter(within[:, -1], 0.0))
    index: Int64 = block * BLOCK + (within <= left[:, None]).sum(axis=1)
    return index


def filter_top_p(weights: Float32, top_p: float) -> Float32:
    """Zero all but the smallest set of largest weights (rows, V) whose share of the sum reaches top_p."""
    nucleus_weights = np.zeros_like(weights)
    for row, target in zip(weights, nucleus_weights, strict=True):
        chosen = _nucleus_of(row, top_p * float(row.sum(dtype=np.float64)))
        target[chosen] = row[chosen]
    return nucleus_weights


def _nucleus_of(row: Float32, mass: float) -> Int64:
    """Indices of the largest weights whose sum reaches mass. Only as many as needed are sorted: sorting a vocabulary
    of 150k takes a hundred times longer than finding its thousand largest."""
    size = CANDIDATES
    while True:
        few = size < len(row)
        candidates = np.sort(np.argpartition(row, -size)[-size:]) if few else np.arange(len(row))
        order = candidates[np.argsort(-row[candidates], kind="stable")]
        reached = row[order].cumsum(dtype=np.float64)
        if not few or reached[-1] >= mass:
            result: Int64 = order[reached - row[order] < mass]
            return result
        size *= 8
