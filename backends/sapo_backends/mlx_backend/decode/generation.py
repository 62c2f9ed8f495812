"""DecodeWeights completions: one batch of all rows, each prompt prefilled once, finished rows dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import mlx.core as mx

from sapo_backends.base import Cancelled, CancelToken, Completion, RowSeed, Sampling, TokenIds
from sapo_backends.common.generated_rows import GeneratedRows
from sapo_backends.common.numpy_sampler import uniforms
from sapo_backends.mlx_backend.decode.sampler import sample
from sapo_backends.mlx_backend.model import MlxModel, Session

COMPACT_BELOW = 0.75
"""The cache is copied to fewer rows once this share of them is still alive."""


def generate(
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
    uniform = uniforms(len(owner), sampling.max_new_tokens, seed)
    alive = list(range(len(owner)))
    session = Session(model, prompts, owner, sampling.max_new_tokens)
    for step in range(sampling.max_new_tokens):
        if cancel is not None and cancel.cancelled:
            raise Cancelled("Stopped on request.", generated.groups(len(prompts), group_size))
        tokens, logprobs = sample(session.logits, sampling, mx.array(uniform[alive, step], dtype=mx.float32))
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
    return generated.groups(len(prompts), group_size)
