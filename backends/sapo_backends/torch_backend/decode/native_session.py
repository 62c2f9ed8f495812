"""Decoding with the compiled kernels: nothing is padded but vectors, and a row that leaves leaves everything in place.

The weights are laid out once a batch as prefill and the compiled step want them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.model.decoder import Weights
from sapo_backends.torch_backend.native.library import CHUNK, PAD, PANEL, Kernels, Layer, Shape, at
from sapo_backends.torch_backend.ops.fused_ops import RopeTable


def _column_major(weight: Tensor) -> Tensor:
    """The same matrix (out, in), its columns contiguous: MKL multiplies 8 rows with it in half the time, 64 in five
    sixths."""
    return weight.t().contiguous().t()


@dataclass(frozen=True, slots=True)
class PackedLinear:
    """A projection with its adapter in it. weight (out, in), its columns contiguous; panels (out / PANEL, in, PANEL),
    the last one filled up with zeros."""

    weight: Tensor
    bias: Tensor | None
    panels: Tensor

    @classmethod
    def of(cls, weights: Weights, name: str) -> PackedLinear:
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
    """embed and head (V, hidden), the head's columns contiguous. An adapter is added to what it adapts: for a small
    model that costs less than the steps it saves."""

    kernels: Kernels
    embed: Tensor
    layers: list[NativeLayer]
    norm: Tensor
    head: Tensor

    @classmethod
    def of(cls, kernels: Kernels, spec: DecoderSpec, weights: Weights) -> NativeDecodeWeights:
        """Lay the weights of a model out, once a batch."""
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


class NativeSession:
    """See model.Session. All tensors are float32 in the processor's memory."""

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        weights: NativeDecodeWeights,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._kernels, self._spec, self._weights = weights.kernels, spec, weights
        lengths = [len(prompt) for prompt in prompts]
        longest, slots = max(lengths), _padded(steps)
        ((self._cos, self._sin),) = rope.tables(longest + steps)
        self._shape = Shape(spec.heads, spec.kv_heads, spec.head_dim, slots, spec.norm_eps)
        self._lengths = torch.tensor(lengths)
        ends = list(accumulate(spec.kv_heads * spec.head_dim * _padded(length) for length in lengths))
        self._begins = torch.tensor([0, *ends[:-1]])
        self._keys_values = torch.empty(spec.layers, 2, ends[-1])
        width = CHUNK * (spec.heads // spec.kv_heads) * (_padded(longest) + slots + 2 * spec.head_dim)
        self._scratch = torch.empty(width)
        self.logits = self._prefill(prompts)[owner]
        self._owner, self._rows, self._used = owner, torch.arange(len(owner)), 0
        # Slots behind the filled ones are multiplied and hidden afterwards: nothing there may be slow to compute with.
        self._completions = torch.zeros(spec.layers, 2, len(owner) * spec.kv_heads * spec.head_dim * slots)
        wide = spec.hidden + 2 * (spec.query_width + spec.kv_width) + 3 * spec.intermediate
        self._workspace = torch.empty(len(owner) * wide)
        self._layers = (Layer * spec.layers)(*(self._layer(number) for number in range(spec.layers)))

    def _layer(self, number: int) -> Layer:
        """Where everything of a layer lies."""
        of = self._weights.layers[number]
        mixing = of.norm1, of.qkv.panels, of.qkv.bias, of.q_norm, of.k_norm, of.out.panels, of.out.bias
        mlp = of.norm2, of.gate_up.panels, of.gate_up.bias, of.down.panels, of.down.bias
        return Layer(*map(at, (*mixing, *mlp, *self._keys_values[number], *self._completions[number])))

    def _prefill(self, prompts: Sequence[TokenIds]) -> Tensor:
        """Every prompt's keys and values; logits (prompts, V) after each."""
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
                *map(at, (starts, self._lengths, self._begins, qkv, layer.q_norm, layer.k_norm, self._cos, self._sin)),
                *map(at, self._keys_values[number]),
                ends,
                *map(at, (attended, self._scratch)),
            )
            if ends:
                x, attended = x[last], attended[last]
            x = layer.out.add_to(attended, x)
            x = layer.down.add_to(kernels.swiglu(layer.gate_up(kernels.rms_norm(x, layer.norm2, spec.norm_eps))), x)
        return self._logits(x)

    def step(self, tokens: Tensor) -> None:
        """See Session.step."""
        spec, x = self._spec, F.embedding(tokens, self._weights.embed)
        self._kernels.library.sapo_decode_step(
            ctypes.byref(self._shape),
            *(spec.layers, self._layers, spec.hidden, spec.intermediate),
            len(x),
            *map(at, (x, self._rows, self._owner)),
            self._used,
            *map(at, (self._lengths, self._begins, self._cos, self._sin, self._workspace, self._scratch)),
        )
        self._used += 1
        self.logits = self._logits(x)

    def keep(self, rows: Tensor) -> None:
        """See Session.keep."""
        self.logits, self._owner, self._rows = self.logits[rows], self._owner[rows], self._rows[rows]

    def _logits(self, x: Tensor) -> Tensor:
        normal = self._kernels.rms_norm(x, self._weights.norm, self._spec.norm_eps)
        return F.linear(normal, self._weights.head)
