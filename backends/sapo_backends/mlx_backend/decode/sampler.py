"""DecodeWeights the next token on the device: inverse CDF over block sums, then within one block a row.

Metal has no float64, so that probabilities are exact to about 1e-6 here; see sapo_backends.common.numpy_sampler for the
rest.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

from sapo_backends.base import Sampling

BLOCK = 256


def sample(logits: Any, sampling: Sampling, uniform: Any) -> tuple[Any, Any]:
    """logits (rows, V), uniform (rows,) in [0, 1) -> tokens (rows,), log-probabilities (rows,) under
    softmax(logits / temperature), or at temperature 1 when greedy."""
    logits = logits.astype(mx.float32)
    if sampling.temperature == 0.0:
        tokens = mx.argmax(logits, axis=-1)
    else:
        logits = logits / sampling.temperature
        weights = mx.softmax(logits, axis=-1, precise=True)
        tokens = inverse_cdf(weights if sampling.top_p >= 1.0 else nucleus(weights, sampling.top_p), uniform)
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - mx.logsumexp(logits, axis=-1)


def inverse_cdf(weights: Any, uniform: Any) -> Any:
    """Index (rows,) sampled in proportion to non-negative weights (rows, V); never one of weight 0."""
    rows, size = weights.shape
    padded = mx.pad(weights, [(0, 0), (0, -size % BLOCK)])
    blocks = padded.reshape(rows, -1, BLOCK)
    edges = mx.cumsum(blocks.sum(axis=-1), axis=-1)  # (rows, blocks)
    block, rest = _first_beyond(edges, uniform * edges[:, -1])
    inside = mx.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]  # (rows, BLOCK)
    index, _ = _first_beyond(mx.cumsum(inside, axis=-1), rest)
    return block * BLOCK + index


def _first_beyond(edges: Any, target: Any) -> tuple[Any, Any]:
    """Per row the first index whose cumulative edge lies beyond the target, and the target's distance from its start.

    Rounding may put the target at or beyond the last edge: the last index that has any weight is meant then.
    """
    last = mx.sum(edges < edges[:, -1:], axis=-1)  # first index at which the total is reached
    index = mx.minimum(mx.sum(edges <= target[:, None], axis=-1), last)
    start = mx.take_along_axis(edges, mx.maximum(index - 1, 0)[:, None], axis=-1)[:, 0]
    return index, mx.maximum(target - mx.where(index > 0, start, 0.0), 0.0)


def nucleus(weights: Any, top_p: float) -> Any:
    """Zero all but the smallest set of most probable tokens whose mass reaches top_p. weights (rows, V) sum to 1."""
    order = mx.argsort(-weights, axis=-1)
    ordered = mx.take_along_axis(weights, order, axis=-1)
    before = mx.cumsum(ordered, axis=-1) - ordered
    nucleus_weights = mx.where(before < top_p, ordered, 0.0)
    return mx.put_along_axis(mx.zeros_like(weights), order, nucleus_weights, axis=-1)
