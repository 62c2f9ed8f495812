"""Decoding several rows with our own decoder: by torch, and by the compiled kernels."""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.attention import PromptAttention
from sapo_backends.torch_backend.decode_step import (
    AdaptedProjection,
    LayerKVCache,
    LayerWeights,
    ModelConstants,
    OuterWeights,
    StepShape,
    apply_projection,
    gated_mlp,
    next_logits,
)
from sapo_backends.torch_backend.decoder import DecoderWeights, hidden_states
from sapo_backends.torch_backend.native import (
    CHUNK,
    PAD,
    PANEL,
    KernelLayer,
    KernelShape,
    NativeKernels,
    data_pointer,
    in_shares,
)
from sapo_backends.torch_backend.ops import FourBit, RopeTable, apply_softcap
from sapo_backends.torch_backend.packing import decode_rows, pack_prompts, pad_to_bucket
from sapo_backends.torch_backend.paths import WeightLayout
from sapo_backends.torch_backend.runtime import fall_back, is_left_out, on_cpu, pack_for_onednn

# The key-value cache of decoding, in which completions share their prompt's part; and a decode step captured once and
# replayed.

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


# Decoding several rows with our own decoder: its weights laid out for products with few rows, prefill, then one token
# per row and step.


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """prefill: the weights in the training layout. layers, head: laid out for products with few rows."""

    prefill: DecoderWeights
    layers: list[LayerWeights]
    head: AdaptedProjection

    @classmethod
    def of(cls, spec: DecoderSpec, weights: DecoderWeights, layout: WeightLayout) -> DecodeWeights:
        """Lay the weights out. A batch reads them once per token that it samples, so this pays off from a dozen
        tokens on. An adapter stays as it is and is added to the output of the laid-out layer."""
        lay_out = _LAYOUTS[layout]
        layers = [_layer(spec, weights, layer, lay_out) for layer in range(spec.layers)]
        return cls(weights, layers, AdaptedProjection(lay_out(weights.head), None, [], [], 0.0, []))


LayOut = Callable[[Tensor], Tensor]


def _as_stored(weight: Tensor) -> Tensor:
    return weight


_LAYOUTS: dict[WeightLayout, LayOut] = {"packed": pack_for_onednn, "as stored": _as_stored}


def _projection(weights: DecoderWeights, name: str, lay_out: LayOut) -> AdaptedProjection:
    stored, bias, adapter = weights.tensors[f"{name}.weight"], weights.tensors.get(f"{name}.bias"), weights.adapter
    weight, scales = (stored.codes, [stored.scales]) if isinstance(stored, FourBit) else (lay_out(stored), [])
    if adapter is None:
        return AdaptedProjection(weight, bias, [], [], 0.0, scales)
    lora_b = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
    joined = torch.block_diag(*lora_b)  # type: ignore[no-untyped-call]
    lora_a, scale = adapter.tensors[f"{name}.A"], adapter.scale
    if lay_out is pack_for_onednn:
        lora_a, joined, scale = lay_out(lora_a), lay_out(joined * scale), 1.0
    return AdaptedProjection(weight, bias, [lora_a], [joined], scale, scales)


def _layer(spec: DecoderSpec, weights: DecoderWeights, layer: int, lay_out: LayOut) -> LayerWeights:
    norms = [weights.norm_weight(f"{layer}.{name}_norm") for name in "qk"] if spec.qk_norm else []
    # oneDNN's fused gate does not support an adapter
    fused = lay_out is pack_for_onednn and weights.adapter is None and spec.activation == "silu"
    mlp = [_projection(weights, f"{layer}.gate_up", _as_stored if fused else lay_out)]
    if fused:
        halves = zip(mlp[0].weight.chunk(2), [None, None] if mlp[0].bias is None else mlp[0].bias.chunk(2), strict=True)
        mlp = [AdaptedProjection(pack_for_onednn(weight), bias, [], [], 0.0, []) for weight, bias in halves]
    norm1, after1, norm2, after2 = (
        weights.norm_weight(f"{layer}.{name}") if f"{layer}.{name}" in weights.tensors else None
        for name in ("norm1", "after1", "norm2", "after2")
    )
    return LayerWeights(
        norm1=norm1,
        qkv=_projection(weights, f"{layer}.qkv", lay_out),
        head_norms=norms,
        out=_projection(weights, f"{layer}.o", lay_out),
        after1=after1,
        norm2=norm2,
        mlp=mlp,
        down=_projection(weights, f"{layer}.down", lay_out),
        after2=after2,
        rope=spec.layer_rope[layer],
        windowed=spec.layer_windowed[layer],
    )


class DecoderSession:
    """Decoding with a preallocated cache; see causal_lm.DecodeSession."""

    COPIES: ClassVar[bool] = True

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        weights: DecodeWeights,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._spec, self._weights = spec, weights
        self._captured: CapturedStep | None = None
        flat, places = pack_prompts(prompts, owner.device)
        lengths = torch.tensor([len(prompt) for prompt in prompts], device=owner.device)
        longest = flat.longest
        self._lengths, self._angles = lengths, rope.tables(longest + steps)
        prefill = PromptAttention(spec, flat.slabs, places, lengths)
        last = hidden_states(spec, weights.prefill, rope, flat, prefill, pad_to_bucket(places[:, -1]))
        self.logits = apply_softcap(F.linear(last, weights.prefill.head), spec.logit_softcap)[owner]
        self._style = ModelConstants(
            norm_eps=spec.norm_eps,
            scale=spec.scale,
            softcap=spec.softcap,
            window=spec.window if longest + steps > spec.window else 0,
            gelu=spec.activation == "gelu",
            embed_scale=spec.embed_scale,
            residual_scale=spec.residual_scale,
            logit_scale=spec.logit_scale,
            logit_softcap=spec.logit_softcap,
        )
        self._owner = owner
        places, place_of = plan_cache_grid(owner, lengths, 0)
        self._seat(places, place_of)
        self._steps, room = steps, min(steps, SLOT_STEP)
        self._cache = KVCache(prefill.keys_values, lengths, owner[places[:, 0]], places.shape[1], room)
        self._positions = lengths[owner[places.flatten()]]  # of the next token, (places,)

    def step(self, tokens: Tensor) -> None:
        """See DecodeSession.step."""
        cache = self._cache
        if cache.used == cache.slots:
            self._captured = None
            cache.grow(self._steps)
        if self._captured is not None:
            captured = CAPTURE.replay(self._captured, tokens, lambda: self._compute(tokens, self._positions))
            if captured is None:
                self._captured = None
            self.logits = self._compute(tokens, self._positions) if captured is None else captured
        elif CAPTURE.wanted(tokens.device):
            inputs = StepInputs.of(tokens, self._positions, cache.used, cache.slots, cache.kind)
            self._captured = CAPTURE.capture(inputs, lambda now: self._compute(now.tokens, now.positions, now))
            self.logits = self._compute(tokens, self._positions) if self._captured is None else self._captured.logits
        else:
            self.logits = self._compute(tokens, self._positions)
        cache.used += 1
        self._positions = self._positions + 1

    def _compute(self, tokens: Tensor, positions: Tensor, captured: StepInputs | None = None) -> Tensor:
        """Compute every place, then pick the rows; both padded to sizes that products are compiled for."""
        spec, cache, weights = self._spec, self._cache, self._weights
        embed, norm = weights.prefill.tensors["embed"], weights.prefill.norm_weight("norm")
        frame = OuterWeights(embed, norm, weights.head, self._angles)
        shape = StepShape(spec.heads, spec.kv_heads, cache.entries, cache.width, cache.used, self._style)
        step, slot, hidden = on_cpu(next_logits, tokens), None, None
        if captured is not None:  # Python's part of a step is not captured, and TorchScript's profiling must not be
            step, slot, hidden = next_logits, captured.slot, captured.hidden
        keys = weights.layers, cache.layers, cache.ends, cache.biases
        return step(tokens, positions, self._fed, self._picked, frame, *keys, shape, slot, hidden)[: len(self._owner)]

    def _seat(self, places: Tensor, place_of: Tensor) -> None:
        """places, place_of: as cache.grid gives them."""
        self._captured = None
        self._place_of, self._fed, self._picked = place_of, pad_to_bucket(places.flatten()), pad_to_bucket(place_of)

    def keep(self, rows: Tensor) -> None:
        """See DecodeSession.keep."""
        self.logits, self._owner = self.logits[rows], self._owner[rows]
        places, place_of = plan_cache_grid(self._owner, self._lengths, self._cache.used)
        old_places = self._place_of[rows[places]]  # (E, W)
        self._cache = self._cache.keep(old_places)
        self._positions = self._positions[old_places.flatten()]
        self._seat(places, place_of)


# Decoding with the compiled kernels: only vectors are padded, and when a row leaves, the others stay in place.
#
# The weights are laid out once per batch in the form that prefill and the compiled step need.


def _column_major(weight: Tensor) -> Tensor:
    """The same matrix (out, in) with contiguous columns: MKL multiplies 8 rows with it in half the time, 64 in five
    sixths."""
    return weight.t().contiguous().t()


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A projection with its adapter merged in. weight (out, in), its columns contiguous; panels (out / PANEL, in,
    PANEL), the last one padded with zeros."""

    weight: Tensor
    bias: Tensor | None
    panels: Tensor

    @classmethod
    def of(cls, weights: DecoderWeights, name: str) -> PackedLinear:
        """The fused projection `name`, an adapter merged into it."""
        weight, adapter = weights.tensors[f"{name}.weight"], weights.adapter
        if adapter is not None:
            ups = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
            up = torch.block_diag(*ups)  # type: ignore[no-untyped-call]
            weight = torch.addmm(weight, up, adapter.tensors[f"{name}.A"], alpha=adapter.scale)
        rows, columns = weight.shape
        filled = F.pad(weight, (0, 0, 0, -rows % PANEL)).view(-1, PANEL, columns)
        return cls(_column_major(weight), weights.tensors.get(f"{name}.bias"), filled.transpose(1, 2).contiguous())

    def __call__(self, x: Tensor) -> Tensor:
        """x (N, in) -> (N, out)."""
        return F.linear(x, self.weight, self.bias)

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """residual (N, out) + this projection of x (N, in)."""
        y = torch.addmm(residual, x, self.weight.t())
        return y if self.bias is None else y.add_(self.bias)


@dataclass(frozen=True, slots=True)
class NativeLayer:
    """q_norm, k_norm: None where the model has none."""

    norm1: Tensor
    qkv: PackedLinear
    q_norm: Tensor | None
    k_norm: Tensor | None
    out: PackedLinear
    norm2: Tensor
    gate_up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class NativeDecodeWeights:
    """embed and head (V, hidden), the head's columns contiguous. An adapter is merged into the weights: for a small
    model that costs less than the steps it saves."""

    kernels: NativeKernels
    embed: Tensor
    layers: list[NativeLayer]
    norm: Tensor
    head: Tensor

    @classmethod
    def of(cls, kernels: NativeKernels, spec: DecoderSpec, weights: DecoderWeights) -> NativeDecodeWeights:
        """Lay out a model's weights, once per batch."""
        tensors = weights.tensors
        layers = [
            NativeLayer(
                tensors[f"{layer}.norm1"],
                PackedLinear.of(weights, f"{layer}.qkv"),
                tensors.get(f"{layer}.q_norm"),
                tensors.get(f"{layer}.k_norm"),
                PackedLinear.of(weights, f"{layer}.o"),
                tensors[f"{layer}.norm2"],
                PackedLinear.of(weights, f"{layer}.gate_up"),
                PackedLinear.of(weights, f"{layer}.down"),
            )
            for layer in range(spec.layers)
        ]
        return cls(kernels, tensors["embed"], layers, tensors["norm"], _column_major(weights.head))


def _padded(count: int) -> int:
    return -(-count // PAD) * PAD


class KernelSession(ABC):
    """Decoding with attention by the compiled kernels; see causal_lm.DecodeSession. Keys and values are float32 in the
    processor's memory; a row that leaves costs nothing."""

    COPIES: ClassVar[bool] = False

    def __init__(
        self,
        kernels: NativeKernels,
        spec: DecoderSpec,
        rope: RopeTable,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._kernels, self._spec, self._table = kernels, spec, rope
        lengths = [len(prompt) for prompt in prompts]
        longest, slots = max(lengths), _padded(steps)
        ((self._cos, self._sin),) = ((cos.float(), sin.float()) for cos, sin in rope.tables(longest + steps))
        self._shape = KernelShape(spec.heads, spec.kv_heads, spec.head_dim, slots, spec.norm_eps)
        self._lengths = torch.tensor(lengths)
        ends = list(accumulate(spec.kv_heads * spec.head_dim * _padded(length) for length in lengths))
        self._begins = torch.tensor([0, *ends[:-1]])
        self._keys_values = torch.empty(spec.layers, 2, ends[-1])
        width = CHUNK * (spec.heads // spec.kv_heads) * (_padded(longest) + slots + 2 * spec.head_dim)
        self._scratch = torch.empty(width)
        self.logits = self._prefill(prompts)[owner]
        self._owner, self._rows, self._used = owner, torch.arange(len(owner)), 0
        # Slots after the filled ones are multiplied too and masked afterwards, so they must not hold values that are
        # slow to compute with.
        self._completions = torch.zeros(spec.layers, 2, len(owner) * spec.kv_heads * spec.head_dim * slots)

    @abstractmethod
    def _prefill(self, prompts: Sequence[TokenIds]) -> Tensor:
        """Computes every prompt's keys and values; returns the logits (prompts, V) after each."""

    def _prompt_states(self, prompts: Sequence[TokenIds], weights: DecoderWeights) -> Tensor:
        """Computes every prompt's keys and values as an update does; returns the last hidden states (prompts, hidden)."""
        spec, (flat, places) = self._spec, pack_prompts(prompts, self._lengths.device)
        prefill = PromptAttention(spec, flat.slabs, places, self._lengths)
        last = hidden_states(spec, weights, self._table, flat, prefill, pad_to_bucket(places[:, -1]))
        self._keys_values.zero_()
        for layer, (keys, values) in zip(self._keys_values, prefill.keys_values, strict=True):
            for prompt, begin in enumerate(self._begins.tolist()):
                length = int(self._lengths[prompt])
                room = layer[:, begin : begin + spec.kv_heads * spec.head_dim * _padded(length)]
                room[0].view(spec.kv_heads, spec.head_dim, -1)[:, :, :length] = keys[prompt, :, :length].transpose(1, 2)
                room[1].view(spec.kv_heads, -1, spec.head_dim)[:, :length] = values[prompt, :, :length]
        return last

    def keep(self, rows: Tensor) -> None:
        """See DecodeSession.keep."""
        self.logits, self._owner, self._rows = self.logits[rows], self._owner[rows], self._rows[rows]


class NativeSession(KernelSession):
    """The kernels compute everything but large products; all tensors are float32."""

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        weights: NativeDecodeWeights,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._weights = weights
        super().__init__(weights.kernels, spec, rope, prompts, owner, steps)
        wide = spec.hidden + 2 * (spec.query_width + spec.kv_width) + 3 * spec.intermediate
        self._workspace = torch.empty(len(owner) * wide)
        self._layers = (KernelLayer * spec.layers)(*(self._layer(number) for number in range(spec.layers)))

    def _layer(self, number: int) -> KernelLayer:
        """The addresses of a layer's tensors."""
        of = self._weights.layers[number]
        mixing = of.norm1, of.qkv.panels, of.qkv.bias, of.q_norm, of.k_norm, of.out.panels, of.out.bias
        mlp = of.norm2, of.gate_up.panels, of.gate_up.bias, of.down.panels, of.down.bias
        return KernelLayer(*map(data_pointer, (*mixing, *mlp, *self._keys_values[number], *self._completions[number])))

    def _prefill(self, prompts: Sequence[TokenIds]) -> Tensor:
        """Computes every prompt's keys and values; returns the logits (prompts, V) after each."""
        spec, kernels, starts = self._spec, self._kernels, torch.tensor([0, *accumulate(map(len, prompts))])[:-1]
        last = starts + self._lengths - 1
        x = F.embedding(torch.tensor([token for prompt in prompts for token in prompt]), self._weights.embed)
        for number, layer in enumerate(self._weights.layers):
            qkv = layer.qkv(kernels.rms_norm(x, layer.norm1, spec.norm_eps))
            attended = x.new_empty(len(x), spec.query_width)
            ends = number == spec.layers - 1
            kernels.library.sapo_prefill_attention(
                ctypes.byref(self._shape),
                len(prompts),
                *map(
                    data_pointer,
                    (starts, self._lengths, self._begins, qkv, layer.q_norm, layer.k_norm, self._cos, self._sin),
                ),
                *map(data_pointer, self._keys_values[number]),
                ends,
                *map(data_pointer, (attended, self._scratch)),
            )
            if ends:
                x, attended = x[last], attended[last]
            x = layer.out.add_to(attended, x)
            x = layer.down.add_to(kernels.swiglu(layer.gate_up(kernels.rms_norm(x, layer.norm2, spec.norm_eps))), x)
        return self._logits(x)

    def step(self, tokens: Tensor) -> None:
        """See DecodeSession.step."""
        spec, x = self._spec, F.embedding(tokens, self._weights.embed)
        self._kernels.library.sapo_decode_step(
            ctypes.byref(self._shape),
            *(spec.layers, self._layers, spec.hidden, spec.intermediate),
            len(x),
            *map(data_pointer, (x, self._rows, self._owner)),
            self._used,
            *map(data_pointer, (self._lengths, self._begins, self._cos, self._sin, self._workspace, self._scratch)),
        )
        self._used += 1
        self.logits = self._logits(x)

    def _logits(self, x: Tensor) -> Tensor:
        normal = self._kernels.rms_norm(x, self._weights.norm, self._spec.norm_eps)
        return F.linear(normal, self._weights.head)


class PackedSession(KernelSession):
    """A model in bfloat16 whose products go through oneDNN: the kernels compute attention and norms, in float32. Prompts
    are computed as in an update, a common prefix once."""

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        weights: DecodeWeights,
        kernels: NativeKernels,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._weights, prefill = weights, weights.prefill
        super().__init__(kernels, spec, rope, prompts, owner, steps)
        self._norms = [
            (prefill.norm_weight(f"{i}.norm1").float(), prefill.norm_weight(f"{i}.norm2").float())
            for i in range(spec.layers)
        ]
        self._head_norms = [[norm.float() for norm in layer.head_norms] for layer in weights.layers]
        self._last_norm = prefill.norm_weight("norm").float()

    def _prefill(self, prompts: Sequence[TokenIds]) -> Tensor:
        """Computes every prompt's keys and values; returns the logits (prompts, V) after each."""
        return F.linear(self._prompt_states(prompts, self._weights.prefill), self._weights.prefill.head)

    def step(self, tokens: Tensor) -> None:
        """See DecodeSession.step."""
        rows, eps = len(tokens), self._spec.norm_eps
        filled = F.pad(tokens, (0, decode_rows(rows) - rows))
        x = F.embedding(filled, self._weights.prefill.tensors["embed"]).float()
        attended = x.new_zeros(len(x), self._spec.query_width)
        for number, (layer, (norm1, norm2)) in enumerate(zip(self._weights.layers, self._norms, strict=True)):
            qkv = apply_projection(self._kernels.rms_norm(x, norm1, eps).bfloat16(), layer.qkv)
            self._attend(number, qkv.float(), attended[:rows])
            x = x + apply_projection(attended.bfloat16(), layer.out)
            activated = gated_mlp(self._kernels.rms_norm(x, norm2, eps).bfloat16(), layer.mlp, gelu=False)
            x = x + apply_projection(activated, layer.down)
        self._used += 1
        last = self._kernels.rms_norm(x, self._last_norm, eps).bfloat16()
        self.logits = apply_projection(last, self._weights.head)[:rows]

    def _attend(self, number: int, qkv: Tensor, attended: Tensor) -> None:
        """Store the new tokens' keys and values, and write their attention (rows, heads * d), on as many threads as
        torch has."""

        def share(some: slice) -> None:
            mine, scratch = (self._rows[some], self._owner[some]), torch.empty_like(self._scratch)
            head_norms = self._head_norms[number] or (None, None)
            tables = self._lengths, self._begins, qkv[some], *head_norms, self._cos, self._sin
            caches = *self._keys_values[number], *self._completions[number]
            self._kernels.library.sapo_decode_attention(
                ctypes.byref(self._shape),
                len(mine[0]),
                *map(data_pointer, mine),
                self._used,
                *map(data_pointer, (*tables, *caches, attended[some], scratch)),
            )

        in_shares(len(attended), share)
