"""The key-value cache of decoding, in which completions share their prompt's part; and a decode step captured once and
replayed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import pairwise

import torch
from torch import Tensor

from sapo_backends.torch_backend.decode_step import LayerKVCache
from sapo_backends.torch_backend.runtime import fall_back, is_left_out

# A decode step captured once and replayed: on a GPU, a step of a small model is hundreds of kernels of a few
# microseconds each, and launching them takes longer than running them.
#
# Values that change from step to step are in tensors at fixed addresses (tokens, positions, the slot that is written,
# the mask of the slots after it); everything else is captured with its address. When rows leave, the step is captured
# again.

Compute = Callable[["StepInputs"], Tensor]
CHECKED_STEPS = 4
"""Replayed steps that are compared with plain ones the first time a device is used."""
TOLERANCE = 1e-2
"""Tolerance of logits; the kernels are the same, so they usually agree to the last bit."""


@dataclass
class StepInputs:
    """tokens (rows,), positions (places,), slot (1,) that is written, hidden (slots,): 0 up to it, then -inf."""

    tokens: Tensor
    positions: Tensor
    slot: Tensor
    hidden: Tensor

    @classmethod
    def of(cls, tokens: Tensor, positions: Tensor, used: int, slots: int, kind: torch.dtype) -> StepInputs:
        """Inputs of the step after `used` filled slots."""
        hidden = torch.full((slots,), float("-inf"), dtype=kind, device=tokens.device)
        hidden[: used + 1] = 0.0
        return cls(tokens.clone(), positions.clone(), torch.tensor([used], device=tokens.device), hidden)

    def advance(self, tokens: Tensor) -> None:
        """Advance to the next step, in place."""
        self.tokens.copy_(tokens)
        self.positions += 1
        self.slot += 1
        self.hidden.index_fill_(0, self.slot, 0.0)


@dataclass
class GraphCapture:
    """Whether decode steps are captured; shared by every session of a process.

    Nothing is trusted: the first replay of every capture and the first steps on each device are compared with plain
    ones. failed: devices on which something went wrong; they decode without capture from then on, with a line in the
    log.
    checked: number of replayed steps that were compared, by device.
    """

    failed: set[torch.device] = field(default_factory=set)
    checked: dict[torch.device, int] = field(default_factory=dict)

    def wanted(self, device: torch.device) -> bool:
        """Whether decode steps on that device should be captured."""
        return device.type == "cuda" and device not in self.failed and not is_left_out("cuda-graph")

    def capture(self, inputs: StepInputs, compute: Compute) -> CapturedStep | None:
        """The step, computed once and captured; None if capturing does not work."""
        device = inputs.tokens.device
        try:
            captured = CapturedStep(inputs, compute)
        except RuntimeError as error:
            self._give_up(device, f"capture failed: {error}")
            return None
        return captured if self._agree(device, captured.logits, captured.expected) else None

    def replay(self, captured: CapturedStep, tokens: Tensor, plain: Callable[[], Tensor]) -> Tensor | None:
        """The logits (rows, V) after tokens (rows,); None if they differ from those of `plain`, which computes the
        same step and is called only for the first CHECKED_STEPS on each device."""
        device = tokens.device
        checks = self.checked.get(device, 0) < CHECKED_STEPS
        expected = plain().clone() if checks else None
        logits = captured.step(tokens)
        if expected is None:
            return logits
        self.checked[device] = self.checked.get(device, 0) + 1
        return logits if self._agree(device, logits, expected) else None

    def _agree(self, device: torch.device, logits: Tensor, expected: Tensor) -> bool:
        same = torch.allclose(expected, logits, rtol=TOLERANCE, atol=TOLERANCE)
        if not same:
            self._give_up(device, "a replayed step differs from a plain one")
        return same

    def _give_up(self, device: torch.device, reason: str) -> None:
        self.failed.add(device)
        fall_back("cuda-graph", f"{device}: {reason}")


CAPTURE = GraphCapture()


class CapturedStep:
    """logits: of the last step; overwritten by the next. expected: of the first step, computed without capture."""

    def __init__(self, inputs: StepInputs, compute: Compute) -> None:
        self._inputs = inputs
        with torch.cuda.device(inputs.tokens.device):  # a graph is captured on the current device
            stream, now = torch.cuda.Stream(), torch.cuda.current_stream()  # type: ignore[no-untyped-call]
            stream.wait_stream(now)
            with torch.cuda.stream(stream):  # what libraries set up on first use may not be captured
                self.expected = compute(inputs).clone()
            now.wait_stream(stream)
            self._graph = torch.cuda.CUDAGraph()
            # torch up to 2.13 leaves a failed capture without restoring the stream
            with torch.cuda.stream(now), torch.cuda.graph(self._graph):
                self.logits = compute(inputs)
            self.logits.fill_(float("nan"))  # so that a replay that does nothing cannot pass the check
            self._graph.replay()  # capture computes nothing; writing a slot twice does no harm

    def step(self, tokens: Tensor) -> Tensor:
        """The logits (rows, V) after tokens (rows,)."""
        self._inputs.advance(tokens)
        with torch.cuda.device(tokens.device):  # it is replayed on the current device's stream
            self._graph.replay()
        return self.logits


# The key-value cache of decoding, in which the completions of a group share their prompt's part.
#
# Attention for one new token per row is bound by memory traffic and by the number of operations. So the prompt's part
# is read once for all rows of a group, as one matrix product, and a token's keys and values are written in one
# operation.

STEP_COST = 256
"""Cost of a row's projections in a decode step, in units of attention to one token."""
SLOT_STEP = 256
"""Tokens by which the places' capacity grows: a completion rarely uses all that it may."""
BUCKET_COST = 1500
"""Cost of the operations that another length bucket adds to a step on a CPU, in units of one token of one place."""


def plan_cache_grid(owner: Tensor, lengths: Tensor, own_tokens: int) -> tuple[Tensor, Tensor]:
    """Places for rows of prompts owner (rows,), ascending: all entries have equally many places, and each entry has one
    prompt.

    lengths (prompts,): tokens of each prompt; entries with shorter ones come first. Returns (entries, width) the row of
    each place, and (rows,) the place of each row. A spare place repeats a row. A prompt with many rows may get several
    entries: the width is chosen so that little computation is wasted.
    """
    used, counts = torch.unique_consecutive(owner.cpu(), return_counts=True)
    tokens = lengths.cpu()[used]

    def cost(width: int) -> int:
        entries = (counts + width - 1) // width
        return int(entries.sum()) * width * (STEP_COST + own_tokens) + int((entries * tokens).sum())

    width = min(range(1, int(counts.max()) + 1), key=cost)
    starts = (counts.cumsum(0) - counts).tolist()
    rows_of, place_of = list[list[int]](), [0] * len(owner)
    for prompt in tokens.argsort(stable=True).tolist():
        first, count = starts[prompt], int(counts[prompt])
        for start in range(0, count, width):
            for column in range(min(width, count - start)):
                place_of[first + start + column] = len(rows_of) * width + column
            rows_of.append([first + min(start + i, count - 1) for i in range(width)])
    return torch.tensor(rows_of, device=owner.device), torch.tensor(place_of, device=owner.device)


def length_buckets(lengths: Sequence[int], width: int) -> list[int]:
    """Where to cut entries of ascending prompt length into buckets, each padded only to its own longest prompt.

    Returns the end of each bucket. A cut is made where it saves more than it costs.
    """

    def cut(begin: int, end: int) -> list[int]:
        saved, middle = max(
            (((m - begin) * width * (lengths[end - 1] - lengths[m - 1]), m) for m in range(begin + 1, end)),
            default=(0, end),
        )
        return [end] if saved <= BUCKET_COST else cut(begin, middle) + cut(middle, end)

    return cut(0, len(lengths))


class KVCache:
    """Keys and values of E entries, each with one prompt, times W places with their own tokens.

    used: filled slots of the places' own tokens. Entries are in buckets of similar prompt length: ends, the end of
    each; biases (E' * kv_heads, 1, p): -inf on the padding of a bucket's shorter prompts, None if all are equally
    long. On a CPU the cache is float32: products with one query are bound by overhead, of which the bfloat16 kernels
    have several times more.
    """

    def __init__(
        self, prompts: list[Tensor], lengths: Tensor, entry_prompt: Tensor, width: int, slots: int, used: int = 0
    ) -> None:
        """prompts: keys and values (2, prompts, kv_heads, p, d) of each layer. lengths (prompts,): their real tokens.
        entry_prompt (E,): each entry's prompt, by ascending length. slots: capacity for sampled tokens; see grow."""
        device, tokens = lengths.device, lengths[entry_prompt]
        kind = torch.float32 if device.type == "cpu" else prompts[0].dtype
        self._prompts, self._lengths, self._entry_prompt = prompts, lengths, entry_prompt
        self.used, self._slots = used, slots
        # Elsewhere a bucket costs kernel launches, which make up the time of a step.
        self.ends = length_buckets(tokens.tolist(), width) if device.type == "cpu" else [len(entry_prompt)]
        longest = [int(tokens[end - 1]) for end in self.ends]
        shared = []
        for keys_values in prompts:
            of_bucket = [
                keys_values[:, :, :, :p].index_select(1, entry_prompt[part]).to(kind).flatten(1, 2)
                for part, p in zip(_parts(self.ends), longest, strict=True)
            ]
            keys = [kv[0].transpose(1, 2) for kv in of_bucket]
            if device.type == "cpu":  # a few rows times transposed keys (head_dim, tokens): several times faster
                keys = [k.contiguous() for k in keys]
            shared.append((keys, [kv[1] for kv in of_bucket]))
        self._allocate(shared, prompts[0].shape[2], width)

    def _allocate(self, shared: Sequence[tuple[list[Tensor], list[Tensor]]], heads: int, width: int) -> None:
        """Allocate the places' own tokens; shared: prompt_k and prompt_v of each layer."""
        first = shared[0][1][0]
        tokens = self._lengths[self._entry_prompt]
        self.biases = [
            _bias(tokens[part], v.shape[1], heads, first.dtype)
            for part, v in zip(_parts(self.ends), shared[0][1], strict=True)
        ]
        shape, size = (len(tokens), heads, width), first.shape[2]
        # A captured step reads every slot and masks those that are not filled yet, so nothing there may be infinite.
        new = torch.zeros if CAPTURE.wanted(first.device) else torch.empty
        self.layers: list[LayerKVCache] = []
        for keys, values in shared:
            completion_k = new((*shape, size, self._slots), dtype=first.dtype, device=first.device)
            completion_v = new((*shape, self._slots, size), dtype=first.dtype, device=first.device)
            self.layers.append(LayerKVCache(keys, values, completion_k, completion_v))

    @property
    def slots(self) -> int:
        """Capacity of each place in tokens."""
        return self._slots

    @property
    def entries(self) -> int:
        """E, the number of entries."""
        return self.layers[0].completion_k.shape[0]

    @property
    def width(self) -> int:
        """W, the number of places per entry."""
        return self.layers[0].completion_k.shape[2]

    @property
    def kind(self) -> torch.dtype:
        """The type that keys and values are stored in."""
        return self.layers[0].completion_k.dtype

    def grow(self, most: int) -> None:
        """Add capacity for SLOT_STEP tokens, up to `most` in all; only one layer at a time is held twice."""
        self._slots = min(most, self._slots + SLOT_STEP)
        for number, old in enumerate(self.layers):
            keys, values = old.completion_k, old.completion_v
            new = torch.zeros if CAPTURE.wanted(keys.device) else torch.empty
            completion_k = new((*keys.shape[:4], self._slots), dtype=keys.dtype, device=keys.device)
            completion_v = new((*values.shape[:3], self._slots, values.shape[4]), dtype=keys.dtype, device=keys.device)
            completion_k[..., : self.used], completion_v[..., : self.used, :] = keys, values
            self.layers[number] = old._replace(completion_k=completion_k, completion_v=completion_v)

    def keep(self, places: Tensor) -> KVCache:
        """A cache of only these places, (E', W'); those of one entry belong to one prompt. This cache is empty
        afterwards."""
        entry, column, width = places // self.width, places % self.width, places.shape[1]
        fresh, olds = self._of(entry[:, 0], width), self.layers
        self.layers = []
        olds.reverse()
        for new in fresh.layers:
            old = olds.pop()
            # (E', W', heads, ...) of what the places wrote
            new.completion_k[..., : self.used] = (
                old.completion_k[..., : self.used].transpose(1, 2)[entry, column].transpose(1, 2)
            )
            written = old.completion_v[..., : self.used, :].transpose(1, 2)[entry, column]
            new.completion_v[..., : self.used, :] = written.transpose(1, 2)
        return fresh

    def _of(self, entries: Tensor, width: int) -> KVCache:
        """An empty cache of these entries (E',), ascending, with `width` places each. On a CPU the buckets stay as they
        are, which copies least, unless half as many would do."""
        prompt = self._entry_prompt[entries]
        ends = torch.searchsorted(entries.contiguous(), torch.tensor(self.ends, device=entries.device)).tolist()
        left = [i for i, part in enumerate(_parts(ends)) if part.stop > part.start]
        if entries.device.type != "cpu" or 2 * len(length_buckets(self._lengths[prompt].tolist(), width)) <= len(left):
            return KVCache(self._prompts, self._lengths, prompt, width, self._slots, self.used)
        begins = [0, *self.ends]
        chosen = [(i, entries[part] - begins[i]) for i, part in enumerate(_parts(ends)) if i in left]
        heads = self._prompts[0].shape[2]

        def selected(x: list[Tensor]) -> list[Tensor]:
            return [
                x[i].view(-1, heads, *x[i].shape[1:]).index_select(0, in_bucket).flatten(0, 1)
                for i, in_bucket in chosen
            ]

        fresh = copy(self)
        fresh._entry_prompt, fresh.ends = prompt, [ends[i] for i in left]
        fresh._allocate([(selected(layer.prompt_k), selected(layer.prompt_v)) for layer in self.layers], heads, width)
        return fresh


def _parts(ends: Sequence[int]) -> list[slice]:
    return [slice(begin, end) for begin, end in pairwise([0, *ends])]


def _bias(lengths: Tensor, longest: int, heads: int, kind: torch.dtype) -> Tensor | None:
    """-inf where a prompt of these lengths (E',) is padded to the longest: (E' * heads, 1, longest)."""
    padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    if not bool(padding.any()):
        return None
    bias = torch.zeros(padding.shape, dtype=kind, device=lengths.device).masked_fill_(padding, float("-inf"))
    return bias.repeat_interleave(heads, dim=0)[:, None]
