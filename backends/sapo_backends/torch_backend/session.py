"""Decoding several rows with our own decoder: prefill, then one token a row and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache as once

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends import hardware
from sapo_backends.base import TokenIds
from sapo_backends.spec import DecoderSpec
from sapo_backends.torch_backend.attention import PromptAttention
from sapo_backends.torch_backend.cache import Cache, grid
from sapo_backends.torch_backend.captured import RECORDER, Inputs, Recorded
from sapo_backends.torch_backend.decode import Frame, Layer, Projection, Shape, fast_step, next_logits
from sapo_backends.torch_backend.decoder import Weights, hidden_states
from sapo_backends.torch_backend.packing import filled, lay_out
from sapo_backends.torch_backend.rope import RopeTable


@once
def packs() -> bool:
    """Whether oneDNN's own layout of bfloat16 weights works here; it saves a third of a small product's time."""
    try:
        if not torch.ops.mkldnn._is_mkldnn_bf16_supported():
            return False
        x, weight = (torch.randn(n, 32).bfloat16() for n in (5, 48))
        packed = torch.ops.mkldnn._reorder_linear_weight(weight, 5)
        gate = torch.ops.mkldnn._linear_pointwise(x, packed, None, "swish", [], "")
        found = torch.ops.mkldnn._linear_pointwise(x, gate, packed, None, "mul")
        y = F.linear(x.float(), weight.float())
        return bool(((F.silu(y) * y - found).abs() <= 0.05 * (1 + y.square())).all())
    except (AttributeError, RuntimeError):
        return False


@dataclass(frozen=True, slots=True)
class Drawing:
    """A model's weights in the forms that prefill and decoding want."""

    weights: Weights
    layers: list[Layer]
    head: Projection

    @classmethod
    def of(cls, spec: DecoderSpec, weights: Weights) -> Drawing:
        """Lay the weights out. A batch reads them once for each token it draws, so that pays from a dozen on; an adapter
        stays as it is and is added to what the laid-out layer gives."""
        lay = _form(weights)
        layers = [_layer(spec, weights, layer, lay) for layer in range(spec.layers)]
        return cls(weights, layers, Projection(lay(weights.head), None, [], [], 0.0))


Form = Callable[[Tensor], Tensor]


def _form(weights: Weights) -> Form:
    """How these weights are laid out for products with few rows."""
    head, parameters = weights.head, sum(tensor.numel() for tensor in weights.tensors.values())
    if head.device.type != "cpu":
        return _as_is
    if head.dtype == torch.bfloat16 and packs():
        return _packed
    with_mkl: bool = torch.backends.mkl.is_available()  # type: ignore[no-untyped-call]
    return _turned if with_mkl and head.dtype == torch.float32 and parameters < hardware.SHARDED_BELOW else _as_is


def _packed(weight: Tensor) -> Tensor:
    """oneDNN's own form."""
    result: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.contiguous())
    return result


def _turned(weight: Tensor) -> Tensor:
    """The same matrix, its columns contiguous: MKL multiplies 8 rows with it in half the time, 64 in five sixths."""
    return weight.t().contiguous().t()


def _as_is(weight: Tensor) -> Tensor:
    return weight


def _projection(weights: Weights, name: str, lay: Form) -> Projection:
    weight, bias = lay(weights.tensors[f"{name}.weight"]), weights.tensors.get(f"{name}.bias")
    adapter = weights.adapter
    if adapter is None:
        return Projection(weight, bias, [], [], 0.0)
    ups = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
    return Projection(weight, bias, [adapter.tensors[f"{name}.A"]], [torch.block_diag(*ups)], adapter.scale)  # type: ignore[no-untyped-call]


def _layer(spec: DecoderSpec, weights: Weights, layer: int, lay: Form) -> Layer:
    tensors = weights.tensors
    norms = [tensors[f"{layer}.{name}_norm"] for name in "qk"] if spec.qk_norm else []
    fused = lay is _packed and weights.adapter is None  # oneDNN's own gate knows no adapter
    mlp = [_projection(weights, f"{layer}.gate_up", _as_is if fused else lay)]
    if fused:
        halves = zip(mlp[0].weight.chunk(2), [None, None] if mlp[0].bias is None else mlp[0].bias.chunk(2), strict=True)
        mlp = [Projection(_packed(weight), bias, [], [], 0.0) for weight, bias in halves]
    return Layer(
        norm1=tensors[f"{layer}.norm1"],
        qkv=_projection(weights, f"{layer}.qkv", lay),
        head_norms=norms,
        out=_projection(weights, f"{layer}.o", lay),
        norm2=tensors[f"{layer}.norm2"],
        mlp=mlp,
        down=_projection(weights, f"{layer}.down", lay),
    )


class LeanSession:
    """Decoding with a preallocated cache; see model.Session."""

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        drawing: Drawing,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._spec, self._drawing = spec, drawing
        self._recorded: Recorded | None = None
        flat, starts = lay_out(prompts, owner.device)
        begins, lengths = torch.tensor([starts, [len(prompt) for prompt in prompts]], device=owner.device)
        longest = flat.longest
        self._lengths, self._angles = lengths, rope.tables(longest + steps)
        slot = torch.arange(longest, device=owner.device)
        places = begins[:, None] + torch.minimum(slot, lengths[:, None] - 1)
        prefill = PromptAttention(flat.slabs, places, lengths, spec.layers)
        last = hidden_states(spec, drawing.weights, rope, flat, prefill, filled(begins + lengths - 1))
        self.logits = F.linear(last, drawing.weights.head)[owner]
        self._owner = owner
        places, place_of = grid(owner, lengths, 0)
        self._seat(places, place_of)
        self._cache = Cache(prefill.keys_values, lengths, owner[places[:, 0]], places.shape[1], steps)
        self._positions = lengths[owner[places.flatten()]]  # of the next token, (places,)

    def step(self, tokens: Tensor) -> None:
        cache = self._cache
        if self._recorded is not None:
            self.logits = self._recorded.step(tokens)
        elif RECORDER.wanted(tokens.device):
            inputs = Inputs.of(tokens, self._positions, cache.used, cache.slots, cache.kind)
            self._recorded = RECORDER.record(inputs, lambda now: self._compute(now.tokens, now.positions, now))
            self.logits = self._compute(tokens, self._positions) if self._recorded is None else self._recorded.logits
        else:
            self.logits = self._compute(tokens, self._positions)
        cache.used += 1
        self._positions = self._positions + 1

    def _compute(self, tokens: Tensor, positions: Tensor, recorded: Inputs | None = None) -> Tensor:
        """Compute every place, then pick the rows; both in numbers that products are compiled for."""
        spec, cache, drawing = self._spec, self._cache, self._drawing
        frame = Frame(drawing.weights.tensors["embed"], drawing.weights.tensors["norm"], drawing.head, *self._angles)
        shape = Shape(spec.heads, spec.kv_heads, cache.entries, cache.width, cache.used, spec.norm_eps)
        step, slot, hidden = fast_step(), None, None
        if recorded is not None:  # Python's part of a step is not recorded, and TorchScript's profiling must not be
            step, slot, hidden = next_logits, recorded.slot, recorded.hidden
        keys = drawing.layers, cache.layers, cache.ends, cache.biases
        return step(tokens, positions, self._fed, self._picked, frame, *keys, shape, slot, hidden)[: len(self._owner)]

    def _seat(self, places: Tensor, place_of: Tensor) -> None:
        """places, place_of: as cache.grid gives them."""
        self._recorded = None
        self._place_of, self._fed, self._picked = place_of, filled(places.flatten()), filled(place_of)

    def keep(self, rows: Tensor) -> None:
        self.logits, self._owner = self.logits[rows], self._owner[rows]
        places, place_of = grid(self._owner, self._lengths, self._cache.used)
        old_places = self._place_of[rows[places]]  # (E, W)
        self._cache = self._cache.keep(old_places)
        self._positions = self._positions[old_places.flatten()]
        self._seat(places, place_of)
