"""Generation: one batch of all rows, each prompt prefilled once, finished rows dropped; and the sampler of the next
token.

The sampler inverts the cumulative distribution and reads the large (rows, V) array only once after the softmax: block
sums first, then one block per row in float64. This is as exact as a float64 cumulative sum, and several times faster
than that or torch.multinomial over a vocabulary of 150k. For a small vocabulary the plain cumulative sum is faster.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sapo_backends.base import CancelToken, Completion, RowSeed, Sampling, TokenIds
from sapo_backends.common.round_memory import KV_BUDGET, kv_budget_of
from sapo_backends.common.sampling import GeneratedRows, row_uniforms, rows_at_once
from sapo_backends.errors import Cancelled
from sapo_backends.torch_backend.causal_lm import CausalModel
from sapo_backends.torch_backend.native import sampler_kernels
from sapo_backends.torch_backend.runtime import ShardWorkers, split_range

BLOCK = 256
"""Target number of tokens per block; a divisor of the vocabulary size near it is used if there is one."""
SAMPLED_ELEMENTS = 1 << 21
"""Number of probabilities computed and sampled from at once on a CPU, 8 MiB: larger tensors would be returned to the
system at every step and cost page faults again."""


def draw_uniforms(rows: int, steps: int, seed: int | Sequence[RowSeed]) -> Tensor:
    """One float64 uniform per row and step (rows, steps), all sampled at once: a row's numbers do not depend on which
    other rows are still running or on how rows are distributed over threads."""
    if not isinstance(seed, int):
        return torch.from_numpy(row_uniforms(seed, steps))
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(rows, steps, generator=generator, dtype=torch.float64)


SMALL_VOCABULARY = 2048
"""Up to this many tokens the sampler sums whole rows of probabilities rather than blocks."""


def sample_tokens(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """logits (rows, V), uniform (rows,) in [0, 1) -> tokens (rows,), log-probabilities (rows,) under
    softmax(logits / temperature), or at temperature 1 when greedy."""
    if sampling.temperature == 0.0 or sampling.top_p >= 1.0:
        compiled = sampler_kernels(logits)
        if compiled is not None:
            return compiled.sample(logits, sampling.temperature, uniform)
    if logits.device.type == "mps":  # which has no float64; it shares the processor's memory
        sampled, scores = sample_tokens(logits.cpu(), sampling, uniform)
        return sampled.to(logits.device), scores
    rows = max(1, SAMPLED_ELEMENTS // logits.shape[1])
    if logits.device.type != "cpu" or len(logits) <= rows:
        return _sample_rows(logits, sampling, uniform)
    parts = zip(torch.split(logits, rows), torch.split(uniform, rows), strict=True)
    tokens, logprobs = zip(*(_sample_rows(part, sampling, numbers) for part, numbers in parts), strict=True)
    return torch.cat(tokens), torch.cat(logprobs)


def _sample_rows(logits: Tensor, sampling: Sampling, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """sample_tokens for some of the rows."""
    logits = logits.float()
    if sampling.temperature == 0.0:
        tokens = logits.argmax(dim=-1)
        chosen = logits.gather(1, tokens[:, None])[:, 0]
        return tokens, chosen - logits.logsumexp(dim=-1)
    if sampling.temperature != 1.0:
        logits = logits / sampling.temperature
    probabilities = logits.softmax(dim=-1)
    allowed = probabilities if sampling.top_p >= 1.0 else filter_top_p(probabilities, sampling.top_p)
    tokens = inverse_cdf(allowed, uniform)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def inverse_cdf(weights: Tensor, uniform: Tensor) -> Tensor:
    """Index (rows,) sampled in proportion to non-negative weights (rows, V); never one of weight 0. If the weights are
    NaN, an arbitrary index; its log-probability shows the problem (see GeneratedRows)."""
    rows, size = weights.shape
    if size <= SMALL_VOCABULARY:
        edges = weights.cumsum(dim=-1, dtype=torch.float64)
        return torch.searchsorted(edges, _target(edges, uniform), right=True)[:, 0].clamp_(max=size - 1)
    width = block_width(size)
    padding = -size % width
    padded = torch.nn.functional.pad(weights, (0, padding)) if padding else weights
    blocks = padded.view(rows, -1, width)
    edges = blocks.sum(dim=-1).double().cumsum(dim=-1)  # (rows, blocks)
    target = _target(edges, uniform)
    block = torch.searchsorted(edges, target, right=True)  # (rows, 1), the first whose edge lies beyond the target
    block.clamp_(max=blocks.shape[1] - 1)
    before = torch.where(block > 0, edges.gather(1, (block - 1).clamp_(min=0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, width))[:, 0].double()  # (rows, width)
    within = inside.cumsum(dim=-1)
    # Rounding may leave the target slightly beyond the block's own sum: then the last token with a weight is chosen.
    index = (within <= torch.minimum(target - before, _just_below(within[:, -1:]))).sum(dim=-1)
    return block[:, 0] * width + index


def _target(edges: Tensor, uniform: Tensor) -> Tensor:
    """The uniform number scaled to edges (rows, n): (rows, 1), always below the last edge, whatever the rounding."""
    last = edges[:, -1:]
    return torch.minimum(uniform.to(edges.device)[:, None] * last, _just_below(last))


@cache
def block_width(size: int) -> int:
    """Width of a vocabulary's blocks: a divisor of its size, so that no padded copy is needed, else BLOCK."""
    return next((width for width in range(2 * BLOCK, BLOCK // 4 - 1, -1) if size % width == 0), BLOCK)


def _just_below(x: Tensor) -> Tensor:
    """The largest float64 smaller than x > 0."""
    return torch.nextafter(x, torch.zeros_like(x))


def filter_top_p(probabilities: Tensor, top_p: float) -> Tensor:
    """Zero all but the smallest set of most probable tokens whose mass reaches top_p."""
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(ordered.cumsum(dim=-1) - ordered >= top_p, 0.0)
    return torch.zeros_like(probabilities).scatter_(1, order, ordered)


COMPACT_BELOW, COMPACT_CAPTURED_BELOW = 0.75, 0.5
"""The cache is copied to fewer rows once this share of them is still running; copying more often costs more than it
saves. On an NVIDIA GPU each copy also means capturing the step again."""


def drops_rows(living: int, rows: int, device: torch.device) -> bool:
    """Whether to copy the cache to the rows that are still running."""
    return living < rows * (COMPACT_CAPTURED_BELOW if device.type == "cuda" else COMPACT_BELOW)


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """What to generate. eos_ids: tokens that end a completion."""

    prompts: Sequence[TokenIds]
    group_size: int
    sampling: Sampling
    eos_ids: tuple[int, ...]


class GenerationMonitor:
    """Passes on cancellation, and reports the sum of all shards' progress."""

    def __init__(self, shards: int, cancel: CancelToken | None, on_tokens: Callable[[int, int], None] | None) -> None:
        self._cancel, self._on_tokens, self.shards = cancel, on_tokens, shards
        self._progress = [(0, 0)] * shards

    def step(self, shard: int, rows: GeneratedRows) -> None:
        """Called by each shard before each decode step. Raises Cancelled."""
        if self._cancel is not None:
            self._cancel.raise_if_cancelled()
        if self._on_tokens is not None:
            self._progress[shard] = rows.finished, rows.count
            self._on_tokens(sum(p[0] for p in self._progress), sum(p[1] for p in self._progress))


def generate_completions(
    model: CausalModel,
    weights: Any,
    request: GenerationRequest,
    seed: int | Sequence[RowSeed],
    workers: ShardWorkers,
    monitor: GenerationMonitor,
) -> list[list[Completion]]:
    """group_size completions of each prompt; see Engine.generate. Prompts are distributed over the workers.

    Raises Cancelled with what all workers had sampled so far.
    """
    size, steps = request.group_size, request.sampling.max_new_tokens
    uniform = draw_uniforms(len(request.prompts) * size, steps, seed)
    parts = split_range(len(request.prompts), workers.count)

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


def _shard(
    model: CausalModel,
    weights: Any,
    request: GenerationRequest,
    uniform: Tensor,
    rows: GeneratedRows,
    number: int,
    monitor: GenerationMonitor,
) -> None:
    """Decode the rows of some prompts into `rows`, as many at once as fit; uniform (rows, steps)."""
    steps = uniform.shape[1]
    if not len(uniform) or not steps:
        return
    longest, tokens = max(map(len, request.prompts)), model.token_bytes
    wave = rows_at_once(
        tokens * steps + tokens * longest // request.group_size, _budget(model.device) // monitor.shards
    )
    for begin in range(0, len(uniform), wave):
        members = range(begin, min(begin + wave, len(uniform)))
        _wave(model, weights, request, uniform, members, rows, lambda: monitor.step(number, rows))


def _budget(device: torch.device) -> int:
    """Bytes of keys and values that may be held at once."""
    return kv_budget_of(torch.cuda.get_device_properties(device).total_memory) if device.type == "cuda" else KV_BUDGET


@torch.inference_mode()
def _wave(
    model: CausalModel,
    weights: Any,
    request: GenerationRequest,
    uniform: Tensor,
    members: range,
    rows: GeneratedRows,
    monitored: Callable[[], None],
) -> None:
    """Decode some rows until they end."""
    monitored()
    steps = uniform.shape[1]
    first = members.start // request.group_size
    prompts = request.prompts[first : (members.stop - 1) // request.group_size + 1]
    alive = torch.arange(members.start, members.stop)
    owner = (alive // request.group_size - first).to(model.device)
    session = model.session(prompts, owner, steps, weights)
    for step in range(steps):
        tokens, logprobs = sample_tokens(session.logits, request.sampling, uniform[alive, step])
        active = alive.tolist()
        rows.append(active, tokens.tolist(), logprobs.tolist())
        monitored()
        living = [i for i, row in enumerate(active) if not rows.done[row]]
        if not living or step + 1 == steps:
            break
        ended = len(living) < len(active)
        if ended and (not session.COPIES or drops_rows(len(living), len(active), model.device)):
            keep = torch.tensor(living)
            alive, tokens = alive[keep], tokens[keep.to(tokens.device)]
            session.keep(keep.to(model.device))
        session.step(tokens)
