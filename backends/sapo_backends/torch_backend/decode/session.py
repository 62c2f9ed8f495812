"""Decoding several rows with our own decoder: its weights laid out for products with few rows, prefill, then one token a row
and step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.decode.cuda_graph import CAPTURE, CapturedStep, StepInputs
from sapo_backends.torch_backend.decode.kv_cache import SLOT_STEP, KVCache, grid
from sapo_backends.torch_backend.decode.step import next_logits
from sapo_backends.torch_backend.decode.structures import Frame, Layer, Projection, Shape, Style
from sapo_backends.torch_backend.model.decoder import Weights, hidden_states
from sapo_backends.torch_backend.ops.attention import PromptAttention
from sapo_backends.torch_backend.ops.four_bit import FourBit
from sapo_backends.torch_backend.ops.fused_ops import RopeTable, softcapped
from sapo_backends.torch_backend.ops.packing import filled, pack_prompts
from sapo_backends.torch_backend.paths import WeightLayout
from sapo_backends.torch_backend.runtime import on_cpu, pack


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """prefill: the weights as training has them. layers, head: laid out for products with few rows."""

    prefill: Weights
    layers: list[Layer]
    head: Projection

    @classmethod
    def of(cls, spec: DecoderSpec, weights: Weights, layout: WeightLayout) -> DecodeWeights:
        """Lay the weights out. A batch reads them once for each token it samples, so that pays from a dozen on; an
        adapter stays as it is and is added to what the laid-out layer gives."""
        lay_out = _LAYOUTS[layout]
        layers = [_layer(spec, weights, layer, lay_out) for layer in range(spec.layers)]
        return cls(weights, layers, Projection(lay_out(weights.head), None, [], [], 0.0, []))


LayOut = Callable[[Tensor], Tensor]


def _as_stored(weight: Tensor) -> Tensor:
    return weight


_LAYOUTS: dict[WeightLayout, LayOut] = {"packed": pack, "as stored": _as_stored}


def _projection(weights: Weights, name: str, lay_out: LayOut) -> Projection:
    stored, bias, adapter = weights.tensors[f"{name}.weight"], weights.tensors.get(f"{name}.bias"), weights.adapter
    weight, scales = (stored.codes, [stored.scales]) if isinstance(stored, FourBit) else (lay_out(stored), [])
    if adapter is None:
        return Projection(weight, bias, [], [], 0.0, scales)
    lora_b = [adapter.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in adapter.tensors]
    return Projection(weight, bias, [adapter.tensors[f"{name}.A"]], [torch.block_diag(*lora_b)], adapter.scale, scales)  # type: ignore[no-untyped-call]


def _layer(spec: DecoderSpec, weights: Weights, layer: int, lay_out: LayOut) -> Layer:
    norms = [weights.norm_weight(f"{layer}.{name}_norm") for name in "qk"] if spec.qk_norm else []
    # oneDNN's own gate knows no adapter
    fused = lay_out is pack and weights.adapter is None and spec.activation == "silu"
    mlp = [_projection(weights, f"{layer}.gate_up", _as_stored if fused else lay_out)]
    if fused:
        halves = zip(mlp[0].weight.chunk(2), [None, None] if mlp[0].bias is None else mlp[0].bias.chunk(2), strict=True)
        mlp = [Projection(pack(weight), bias, [], [], 0.0, []) for weight, bias in halves]
    norm1, after1, norm2, after2 = (
        weights.norm_weight(f"{layer}.{name}") if f"{layer}.{name}" in weights.tensors else None
        for name in ("norm1", "after1", "norm2", "after2")
    )
    return Layer(
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
    """Decoding with a preallocated cache; see model.Session."""

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
        last = hidden_states(spec, weights.prefill, rope, flat, prefill, filled(places[:, -1]))
        self.logits = softcapped(F.linear(last, weights.prefill.head), spec.logit_softcap)[owner]
        self._style = Style(
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
        places, place_of = grid(owner, lengths, 0)
        self._seat(places, place_of)
        self._steps, room = steps, min(steps, SLOT_STEP)
        self._cache = KVCache(prefill.keys_values, lengths, owner[places[:, 0]], places.shape[1], room)
        self._positions = lengths[owner[places.flatten()]]  # of the next token, (places,)

    def step(self, tokens: Tensor) -> None:
        """See Session.step."""
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
        """Compute every place, then pick the rows; both in numbers that products are compiled for."""
        spec, cache, weights = self._spec, self._cache, self._weights
        embed, norm = weights.prefill.tensors["embed"], weights.prefill.norm_weight("norm")
        frame = Frame(embed, norm, weights.head, self._angles)
        shape = Shape(spec.heads, spec.kv_heads, cache.entries, cache.width, cache.used, self._style)
        step, slot, hidden = on_cpu(next_logits, tokens), None, None
        if captured is not None:  # Python's part of a step is not captured, and TorchScript's profiling must not be
            step, slot, hidden = next_logits, captured.slot, captured.hidden
        keys = weights.layers, cache.layers, cache.ends, cache.biases
        return step(tokens, positions, self._fed, self._picked, frame, *keys, shape, slot, hidden)[: len(self._owner)]

    def _seat(self, places: Tensor, place_of: Tensor) -> None:
        """places, place_of: as cache.grid gives them."""
        self._captured = None
        self._place_of, self._fed, self._picked = place_of, filled(places.flatten()), filled(place_of)

    def keep(self, rows: Tensor) -> None:
        """See Session.keep."""
        self.logits, self._owner = self.logits[rows], self._owner[rows]
        places, place_of = grid(self._owner, self._lengths, self._cache.used)
        old_places = self._place_of[rows[places]]  # (E, W)
        self._cache = self._cache.keep(old_places)
        self._positions = self._positions[old_places.flatten()]
        self._seat(places, place_of)
