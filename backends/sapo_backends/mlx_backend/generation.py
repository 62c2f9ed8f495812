"""Generation: one batch of all rows, each prompt prefilled once, finished rows dropped; and the sampler of the next
token.

The sampler inverts the cumulative distribution on the device: block sums, then within one block per row. Metal has no
float64, so probabilities are exact only to about 1e-6 here; for the rest see sapo_backends.common.sampling.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import CancelToken, Completion, RowSeed, Sampling, TokenIds
from sapo_backends.common.sampling import GeneratedRows, draw_uniforms, rows_at_once
from sapo_backends.errors import Cancelled
from sapo_backends.mlx_backend.model import DecodeSession, MlxModel, blocked_logsumexp

BLOCK = 256


def sample_tokens(logits: Any, sampling: Sampling, uniform: Any) -> tuple[Any, Any]:
    """logits (rows, V), uniform (rows,) in [0, 1) -> tokens (rows,), log-probabilities (rows,) under
    softmax(logits / temperature), or at temperature 1 when greedy."""
    logits = logits.astype(mx.float32)
    if sampling.temperature == 0.0:
        tokens = mx.argmax(logits, axis=-1)
    else:
        logits = logits / sampling.temperature
        weights = mx.softmax(logits, axis=-1, precise=True)
        tokens = inverse_cdf(weights if sampling.top_p >= 1.0 else filter_top_p(weights, sampling.top_p), uniform)
    chosen = mx.take_along_axis(logits, tokens[:, None], axis=-1)[:, 0]
    return tokens, chosen - blocked_logsumexp(logits)


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
    """Per row the first index whose cumulative edge is greater than the target, and the target's distance from its
    start.

    Rounding may put the target at or beyond the last edge: then the last index with a weight is chosen.
    """
    last = mx.sum(edges < edges[:, -1:], axis=-1)  # first index at which the total is reached
    index = mx.minimum(mx.sum(edges <= target[:, None], axis=-1), last)
    start = mx.take_along_axis(edges, mx.maximum(index - 1, 0)[:, None], axis=-1)[:, 0]
    return index, mx.maximum(target - mx.where(index > 0, start, 0.0), 0.0)


def filter_top_p(weights: Any, top_p: float) -> Any:
    """Zero all but the smallest set of most probable tokens whose mass reaches top_p. weights (rows, V) sum to 1."""
    order = mx.argsort(-weights, axis=-1)
    ordered = mx.take_along_axis(weights, order, axis=-1)
    before = mx.cumsum(ordered, axis=-1) - ordered
    nucleus_weights = mx.where(before < top_p, ordered, 0.0)
    return mx.put_along_axis(mx.zeros_like(weights), order, nucleus_weights, axis=-1)


COMPACT_BELOW = 0.75
"""The cache is copied to fewer rows once this share of them is still running."""


def generate_completions(
    model: MlxModel,
    prompts: Sequence[TokenIds],
    group_size: int,
    sampling: Sampling,
    seed: int | Sequence[RowSeed],
    eos_ids: Sequence[int],
    cancel: CancelToken | None = None,
    on_tokens: Callable[[int, int], None] | None = None,
) -> list[list[Completion]]:
    """group_size completions of each prompt; see Engine.generate."""
    owner = [i for i in range(len(prompts)) for _ in range(group_size)]
    generated = GeneratedRows(len(owner), eos_ids)
    if not owner or not sampling.max_new_tokens:
        return generated.groups(len(prompts), group_size)
    uniform = draw_uniforms(len(owner), sampling.max_new_tokens, seed)
    wave = rows_at_once(model.token_bytes * (max(map(len, prompts)) + sampling.max_new_tokens))
    try:
        for begin in range(0, len(owner), wave):
            members = list(range(begin, min(begin + wave, len(owner))))
            _wave(model, prompts, owner, members, sampling, uniform, generated, cancel, on_tokens)
    except Cancelled as error:
        raise Cancelled(str(error), generated.groups(len(prompts), group_size)) from None
    return generated.groups(len(prompts), group_size)


def _wave(
    model: MlxModel,
    prompts: Sequence[TokenIds],
    owner: Sequence[int],
    alive: list[int],
    sampling: Sampling,
    uniform: NDArray[np.float64],
    generated: GeneratedRows,
    cancel: CancelToken | None,
    on_tokens: Callable[[int, int], None] | None,
) -> None:
    """Decode some rows until they end. owner: the prompt of every row."""
    used = list(dict.fromkeys(owner[row] for row in alive))
    session = DecodeSession(
        model, [prompts[i] for i in used], [used.index(owner[row]) for row in alive], sampling.max_new_tokens
    )
    for step in range(sampling.max_new_tokens):
        if cancel is not None and cancel.cancelled:
            raise Cancelled("Stopped on request.")
        tokens, logprobs = sample_tokens(session.logits, sampling, mx.array(uniform[alive, step], dtype=mx.float32))
        generated.append(alive, tokens.tolist(), logprobs.tolist())
        if on_tokens is not None:
            on_tokens(generated.finished, generated.count)
        living = [i for i, row in enumerate(alive) if not generated.done[row]]
        if not living or step + 1 == sampling.max_new_tokens:
            break
        if len(living) < COMPACT_BELOW * len(alive):
            keep = mx.array(living)
            alive, tokens = [alive[i] for i in living], tokens[keep]
            session.keep(keep)
        session.step(tokens)
