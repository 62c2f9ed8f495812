"""DecodeWeights completions: one batch of all rows, each prompt prefilled once, finished rows dropped."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sapo_backends.base import Cancelled, CancelToken, Completion, RowSeed, Sampling, TokenIds
from sapo_backends.common.generated_rows import GeneratedRows
from sapo_backends.torch_backend.causal_lm import Model
from sapo_backends.torch_backend.generate.sampler import sample, uniforms
from sapo_backends.torch_backend.runtime.workers import Workers, shares

COMPACT_BELOW = 0.75
"""The cache is copied to fewer rows once this share of them is still alive; copying more often costs more than it
saves."""


@dataclass(frozen=True, slots=True)
class Request:
    """What to generate. eos_ids: tokens that end a completion."""

    prompts: Sequence[TokenIds]
    group_size: int
    sampling: Sampling
    eos_ids: tuple[int, ...]


class Monitor:
    """Passes on cancellation and the sum of all shards' progress."""

    def __init__(self, shards: int, cancel: CancelToken | None, on_tokens: Callable[[int, int], None] | None) -> None:
        self._cancel, self._on_tokens = cancel, on_tokens
        self._progress = [(0, 0)] * shards

    def step(self, shard: int, rows: GeneratedRows) -> None:
        """Called by each shard before each decode step. Raises Cancelled."""
        if self._cancel is not None:
            self._cancel.raise_if_cancelled()
        if self._on_tokens is not None:
            self._progress[shard] = rows.finished, rows.count
            self._on_tokens(sum(p[0] for p in self._progress), sum(p[1] for p in self._progress))


def generate(
    model: Model, weights: Any, request: Request, seed: int | Sequence[RowSeed], workers: Workers, monitor: Monitor
) -> list[list[Completion]]:
    """group_size completions of each prompt; see Engine.generate. Prompts are shared out among the workers.

    Raises Cancelled with what every worker had until then.
    """
    size, steps = request.group_size, request.sampling.max_new_tokens
    uniform = uniforms(len(request.prompts) * size, steps, seed)
    parts = shares(len(request.prompts), workers.count)

    rows = [GeneratedRows(len(part) * size, request.eos_ids) for part in parts]

    def shard(number: int) -> None:
        part = parts[number]
        chosen = replace(request, prompts=request.prompts[part.start : part.stop])
        _shard(model, weights, chosen, uniform[part.start * size : part.stop * size], rows[number], number, monitor)

    def groups() -> list[list[Completion]]:
        done = [completion for part in rows for completion in part.completions()]
        return [done[i * size : (i + 1) * size] for i in range(len(request.prompts))]

    try:
        workers.map(shard, range(len(parts)))
    except Cancelled as error:
        raise Cancelled(str(error), groups()) from None
    return groups()


@torch.inference_mode()
def _shard(
    model: Model, weights: Any, request: Request, uniform: Tensor, rows: GeneratedRows, number: int, monitor: Monitor
) -> None:
    """Decode the rows of some prompts into `rows`; uniform (rows, steps)."""
    steps = uniform.shape[1]
    if not len(uniform) or not steps:
        return
    monitor.step(number, rows)
    owner = torch.arange(len(request.prompts), device=model.device).repeat_interleave(request.group_size)
    session = model.session(request.prompts, owner, steps, weights)
    alive = torch.arange(len(uniform))
    for step in range(steps):
        tokens, logprobs = sample(session.logits, request.sampling, uniform[alive, step])
        active = alive.tolist()
        rows.append(active, tokens.tolist(), logprobs.tolist())
        monitor.step(number, rows)
        living = [i for i, row in enumerate(active) if not rows.done[row]]
        if not living or step + 1 == steps:
            break
        if len(living) < COMPACT_BELOW * len(active):
            keep = torch.tensor(living)
            alive, tokens = alive[keep], tokens[keep.to(tokens.device)]
            session.keep(keep.to(model.device))
        session.step(tokens)
