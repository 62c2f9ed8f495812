"""DecodeWeights the next token: an inverse-CDF sampler that reads the large (rows, V) array only once after the
softmax.

Block sums first, then one block a row in float64: as exact as a float64 cumulative sum and several times faster than
a cumulative sum or torch.multinomial over a vocabulary of 150k. Of a small vocabulary the sum itself is faster.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from sapo_backends.base import RowSeed, Sampling
from sapo_backends.common.row_uniforms import row_uniforms
from sapo_backends.torch_backend.paths import SMALL_VOCABULARY, sampler_kernels

BLOCK = 256
"""Tokens in a block; a divisor of the vocabulary near it is taken if there is one."""
SAMPLED_ELEMENTS = 1 << 21
"""On a CPU, so many probabilities are made and sampled from at once, 8 MiB: larger tensors are given back to the system
at every step and paid for again with page faults."""


def uniforms(rows: int, steps: int, seed: int | Sequence[RowSeed]) -> Tensor:
    """One float64 uniform a row and step (rows, steps), all at once: what a row gets does not depend on which
    other rows are still alive or on how rows are shared out among threads."""
    if not isinstance(seed, int):
        return torch.from_numpy(row_uniforms(seed, steps))
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, steps, generator=generator, dtype=torch.float64)


def sample(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """logits (rows, V), uniform (rows,) in [0, 1) -> tokens (rows,), log-probabilities (rows,) under
    softmax(logits / temperature), or at temperature 1 when greedy."""
    if sampling.temperature > 0.0 and sampling.top_p >= 1.0:
        compiled = sampler_kernels(logits)
        if compiled is not None:
            return compiled.sample(logits, sampling.temperature, uniform)
    rows = max(1, SAMPLED_ELEMENTS // logits.shape[1])
    if logits.device.type != "cpu" or len(logits) <= rows:
        return _sample_rows(logits, sampling, uniform)
    parts = zip(torch.split(logits, rows), torch.split(uniform, rows), strict=True)
    tokens, logprobs = zip(*(_sample_rows(part, sampling, numbers) for part, numbers in parts), strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _sample_rows(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """The same for some of the rows."""
    logits = logits.float()
    if sampling.temperature == 0.0:
        tokens = logits.argmax(dim=-1)
        chosen = logits.gather(1, tokens[:, None])[:, 0]
        return tokens, chosen - logits.logsumexp(dim=-1)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    probabilities = logits.softmax(dim=-1)
    allowed = probabilities if sampling.top_p >= 1.0 else nucleus(probabilities, sampling.top_p)
    tokens = inverse_cdf(allowed, uniform)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index (rows,) sampled in proportion to non-negative weights (rows, V); never one of weight 0."""
    rows, size = weights.shape
    if size <= SMALL_VOCABULARY:
        edges = weights.cumsum(dim=-1, dtype=torch.float64)
        return torch.searchsorted(edges, _target(edges, uniform), right=True)[:, 0]
    width = block_width(size)
    padding = -size % width
    padded = torch.nn.functional.pad(weights, (0, padding)) if padding else weights
    blocks = padded.view(rows, -1, width)
    edges = blocks.sum(dim=-1).double().cumsum(dim=-1)  # (rows, blocks)
    target = _target(edges, uniform)
    block = torch.searchsorted(edges, target, right=True)  # (rows, 1), the first whose edge lies beyond the target
    before = torch.where(block > 0, edges.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, width))[:, 0].double()  # (rows, width)
    within = inside.cumsum(dim=-1)
    # Rounding may leave the target a hair beyond the block's own sum: the last token of any weight is meant then.
    index = (within <= torch.minimum(target - before, _just_below(within[:, -1:]))).sum(dim=-1)
    return block[:, 0] * width + index


def _target(edges: Tensor, uniform: Tensor) -> Tensor:
    """Where the uniform number lies on edges (rows, n): (rows, 1), below the last one whatever the rounding."""
    last = edges[:, -1:]
    return torch.minimum(uniform.to(edges.device)[:, None] * last, _just_below(last))


@cache
def block_width(size: int) -> int:
    """Of a vocabulary's blocks: what divides it, so that no padded copy is needed, else BLOCK."""
    return next((width for width in range(2 * BLOCK, BLOCK // 4 - 1, -1) if size % width == 0), BLOCK)


def _just_below(x: Tensor) -> Tensor:
    """The largest float64 smaller than x > 0."""
    return torch.nextafter(x, torch.zeros_like(x))


def nucleus(probabilities: Tensor, top_p: float) -> Tensor:
    """Zero all but the smallest set of most probable tokens whose mass reaches top_p."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered.cumsum(dim=-1) - ordered >= top_p, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)
