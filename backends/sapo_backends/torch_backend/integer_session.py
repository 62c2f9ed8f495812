"""Decoding with 8-bit products: the frozen weights of a base in integers of a byte, its adapter as it is; by the compiled
kernels alone."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec, fused_projections
from sapo_backends.torch_backend.decode_session import KernelSession
from sapo_backends.torch_backend.decoder import DecoderWeights
from sapo_backends.torch_backend.native import (
    GROUP,
    PAD,
    PANEL,
    IntegerLayer,
    KernelProjection,
    NativeKernels,
    data_pointer,
    in_shares,
    load_kernels,
)
from sapo_backends.torch_backend.ops import RopeTable, dense_weight
from sapo_backends.torch_backend.runtime import fall_back, is_left_out

INTEGER_ERROR = 0.02
"""Largest error of 8-bit products of normally distributed numbers, as a share of their length: 0.006 with 240 steps of a
weight, 0.01 with 120."""
TERMS = {"qkv": 2}
"""Integers that an input of a projection is rounded to, if not one."""


def _padded(count: int, to: int) -> int:
    return -(-count // to) * to


@dataclass(frozen=True, slots=True)
class IntegerProjection:
    """A frozen projection (out, in) in integers, with its adapter in float32; `tensors` are what `struct` points to."""

    kernels: NativeKernels
    struct: KernelProjection
    tensors: tuple[Tensor | None, ...]

    @classmethod
    def of(
        cls,
        kernels: NativeKernels,
        weight: Tensor,
        bias: Tensor | None = None,
        adapter: Sequence[Tensor] = (),
        terms: int = 1,
    ) -> IntegerProjection:
        """weight (out, in); adapter: A of all parts (parts * rank, in), and B of each part, the scale included."""
        outputs, depth = weight.shape
        strip = kernels.integer_strip
        rows, groups = _padded(outputs, strip), -(-depth // GROUP)
        codes, scales = torch.zeros(rows * depth, dtype=torch.uint8), torch.zeros(rows * groups)
        lows = torch.zeros(rows * groups)
        weight = weight.contiguous()

        def share(some: slice) -> None:  # whole strips
            mine = weight[some.start * strip : some.stop * strip]
            at = some.start * strip
            kernels.library.sapo_integer_weights(
                *(len(mine), depth, data_pointer(mine), weight.dtype == torch.float32),
                *(data_pointer(t[at * width :]) for t, width in ((codes, depth), (scales, groups), (lows, groups))),
            )

        in_shares(rows // strip, share)
        bias = None if bias is None else bias.float()
        down, ups, low, rank = None, list[Tensor](), 0, 0
        if adapter:
            a, *bs = adapter
            rank = a.shape[0] // len(bs)
            low = _padded(len(a), PAD)
            filled = F.pad(a.float(), (0, 0, 0, _padded(low, PANEL) - len(a)))
            down = filled.view(-1, PANEL, depth).transpose(1, 2).contiguous()
            ups = [b.float().t().contiguous() for b in bs]
        parts, up = (ctypes.c_int64 * 3)(), (ctypes.c_void_p * 3)()
        for i, b in enumerate(ups):
            parts[i], up[i] = b.shape[1], b.data_ptr()
        tables = map(data_pointer, (codes, scales, lows, bias))
        struct = KernelProjection(outputs, depth, terms, *tables, low, rank, data_pointer(down), parts, up)
        return cls(kernels, struct, (codes, scales, lows, bias, down, *ups))

    def workspace(self, rows: int) -> int:
        """Floats that the kernel needs for this many rows."""
        of = self.struct
        return int(rows * (of.terms * of.depth // 4 + (of.terms + 1) * -(-of.depth // GROUP) + of.low))

    def __call__(self, x: Tensor, out: Tensor | None = None) -> Tensor:
        """x (N, in) -> (N, out), float32, on as many threads as torch has."""
        x = x.float().contiguous()
        y = torch.empty(len(x), self.struct.outputs) if out is None else out

        def share(some: slice) -> None:
            mine, to = x[some], y[some]
            workspace = torch.empty(self.workspace(len(mine)))
            pointers = data_pointer(mine), data_pointer(to), 0, data_pointer(workspace)
            self.kernels.library.sapo_integer_projection(ctypes.byref(self.struct), len(mine), *pointers)

        in_shares(len(x), share)
        return y


@cache
def _checked_integers(kernels: NativeKernels) -> bool:
    """Whether products of bytes are as exact as they should be, on rows and outputs that fill no vector."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(count, 112, generator=generator) for count in (75, 21))
    for terms in (1, 2):
        y = IntegerProjection.of(kernels, weight, terms=terms)(x)
        expected = x.double() @ weight.double().t()
        if not float((y - expected).norm() / expected.norm()) < INTEGER_ERROR:
            return False
    return True


def integer_kernels() -> NativeKernels | None:
    """The compiled kernels, if they can multiply bytes faster than floats here."""
    kernels = None if is_left_out("int8") else load_kernels()
    if kernels is None or not kernels.library.sapo_integer_steps():
        return None
    if _checked_integers(kernels):
        return kernels
    fall_back("int8", "it computes wrong products")
    return None


@dataclass(frozen=True, slots=True)
class IntegerWeights(DecoderWeights):
    """A model's weights, of which `projections` compute the layers' products."""

    projections: Mapping[str, IntegerProjection] | None = None

    def linear(self, name: str, x: Tensor) -> Tensor:
        """See DecoderWeights.linear."""
        assert self.projections is not None
        return self.projections[name](x).to(x.dtype)

    def add_linear(self, name: str, x: Tensor, residual: Tensor, after: str) -> Tensor:
        """See DecoderWeights.add_linear; only for families without a norm `after`."""
        del after
        return residual + self.linear(name, x)

    def add_mlp(self, layer: int, x: Tensor, residual: Tensor) -> Tensor:
        """See DecoderWeights.add_mlp."""
        assert self.projections is not None
        gate_up = self.projections[f"{layer}.gate_up"](x)
        activated = self.projections[f"{layer}.down"].kernels.swiglu(gate_up)
        return residual + self.linear(f"{layer}.down", activated.to(x.dtype))


@dataclass(frozen=True, slots=True)
class IntegerDecodeWeights:
    """weights: those of prefill, whose projections decoding uses too. head: (V, hidden)."""

    kernels: NativeKernels
    weights: IntegerWeights
    head: IntegerProjection

    @classmethod
    def of(cls, kernels: NativeKernels, spec: DecoderSpec, weights: DecoderWeights) -> IntegerDecodeWeights:
        """Round a model's weights, once per batch."""
        projections = {}
        for layer in range(spec.layers):
            for name, *_ in fused_projections(spec, layer):
                weight = weights.tensors[f"{name}.weight"]
                adapter = list[Tensor]()
                if weights.adapter is not None:
                    of, scale = weights.adapter.tensors, weights.adapter.scale
                    ups = [of[key].float() * scale for key in (f"{name}.B{i}" for i in range(3)) if key in of]
                    adapter = [of[f"{name}.A"], *ups]
                bias = weights.tensors.get(f"{name}.bias")
                projections[name] = IntegerProjection.of(
                    kernels, dense_weight(weight), bias, adapter, TERMS.get(name.partition(".")[2], 1)
                )
        mine = IntegerWeights(spec, weights.tensors, None, None, projections)
        return cls(kernels, mine, IntegerProjection.of(kernels, weights.head))


class IntegerSession(KernelSession):
    """The kernels compute a step altogether, from integers; the residual stream and attention are float32. Prompts are
    computed as in an update, a common prefix once, with the same products."""

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        weights: IntegerDecodeWeights,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        assert weights.weights.projections is not None
        self._weights, self._projections = weights, weights.weights.projections
        super().__init__(weights.kernels, spec, rope, prompts, owner, steps)
        norms = {name: tensor for name, tensor in weights.weights.tensors.items() if "norm" in name}
        self._norms = {name: tensor.float() for name, tensor in norms.items()}
        self._layers = (IntegerLayer * spec.layers)(*(self._layer(number) for number in range(spec.layers)))
        self._room = torch.empty(len(owner), spec.vocabulary)

    def _layer(self, number: int) -> IntegerLayer:
        norms = [data_pointer(self._norms.get(f"{number}.{name}")) for name in ("norm1", "q_norm", "k_norm", "norm2")]
        structs = [self._projections[f"{number}.{name}"].struct for name in ("qkv", "o", "gate_up", "down")]
        return IntegerLayer(
            *norms, *structs, *map(data_pointer, (*self._keys_values[number], *self._completions[number]))
        )

    def _prefill(self, prompts: Sequence[TokenIds]) -> Tensor:
        """Computes every prompt's keys and values; returns the logits (prompts, V) after each."""
        return self._weights.head(self._prompt_states(prompts, self._weights.weights))

    def step(self, tokens: Tensor) -> None:
        """See DecodeSession.step."""
        spec, eps = self._spec, self._spec.norm_eps
        x = F.embedding(tokens, self._weights.weights.tensors["embed"]).float()
        wide = spec.hidden + 2 * (spec.query_width + spec.kv_width) + 3 * spec.intermediate
        rest = max(projection.workspace(1) for projection in self._projections.values())

        def share(some: slice) -> None:
            mine, rows, owner = x[some], self._rows[some], self._owner[some]
            workspace, scratch = torch.empty(len(mine) * (wide + rest)), torch.empty_like(self._scratch)
            self._kernels.library.sapo_integer_step(
                ctypes.byref(self._shape),
                *(spec.layers, self._layers, spec.hidden, spec.intermediate),
                len(mine),
                *map(data_pointer, (mine, rows, owner)),
                self._used,
                *map(data_pointer, (self._lengths, self._begins, self._cos, self._sin, workspace, scratch)),
            )

        in_shares(len(x), share)
        self._used += 1
        self.logits = self._weights.head(self._kernels.rms_norm(x, self._norms["norm"], eps), self._room[: len(x)])
