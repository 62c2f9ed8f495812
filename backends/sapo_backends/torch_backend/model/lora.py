"""LoRA (arXiv 2106.09685) on every linear layer, in PEFT's names so that peft and our GGUF writer read it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.checkpoints.spec import DecoderSpec, linears
from sapo_backends.torch_backend.model.flat_parameters import Entry, Layout, Part
from sapo_backends.torch_backend.ops.four_bit import Weight
from sapo_backends.torch_backend.ops.lora_linear import adapted_linear, adapted_mlp

PREFIX = "base_model.model."


def lora_layout(spec: DecoderSpec, rank: int) -> Layout:
    """A of projections with the same input lie together: (parts * rank, in); each B is its own (out, rank)."""
    entries = []
    for layer in range(spec.layers):
        for name, columns, parts, _ in linears(spec, layer):
            down = tuple(Part(f"{PREFIX}{module}.lora_A.weight", rank) for module, _ in parts)
            entries.append(Entry(f"{name}.A", (rank * len(parts), columns), down))
            for i, (module, rows) in enumerate(parts):
                up = (Part(f"{PREFIX}{module}.lora_B.weight", rows),)
                entries.append(Entry(f"{name}.B{i}", (rows, rank), up))
    return Layout(entries)


def initialise(layout: Layout, flat: Tensor, seed: int) -> None:
    """A uniform as PEFT's Kaiming initialisation gives, B zero: the adapter changes nothing at first."""
    generator = torch.Generator().manual_seed(seed)
    flat.zero_()
    for name, view in layout.named_parts(flat):
        if ".lora_A." in name:
            bound = 1.0 / math.sqrt(view.shape[1])
            view.copy_(torch.empty(view.shape).uniform_(-bound, bound, generator=generator))


@dataclass(frozen=True, slots=True)
class LoraWeights:
    """An adapter in the compute type. scale = alpha / rank."""

    tensors: Mapping[str, Tensor]
    rank: int
    scale: float

    def delta(self, name: str, x: Tensor) -> Tensor:
        """scale * B A x, where the layer itself is computed elsewhere: (N, in) -> (N, out)."""
        low = F.linear(x, self.tensors[f"{name}.A"]) * self.scale  # (N, parts * rank)
        parts = torch.split(low, self.rank, dim=-1)
        return torch.cat([F.linear(part, self.tensors[f"{name}.B{i}"]) for i, part in enumerate(parts)], dim=-1)

    def linear(self, name: str, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """W x + b + scale * B A x for the fused projection `name`: (N, in) -> (N, out). W and b are not trained."""
        ups = [self.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in self.tensors]
        return adapted_linear(x, weight, bias, self.scale, self.tensors[f"{name}.A"], *ups)

    def add_mlp(self, layer: int, x: Tensor, residual: Tensor, frozen: Mapping[str, Any]) -> Tensor:
        """residual + the layer's gated MLP of x, all (N, hidden). frozen: the model's own tensors."""
        names = ("gate_up.A", "gate_up.B0", "gate_up.B1", "down.A", "down.B0")
        adapter = [self.tensors[f"{layer}.{name}"] for name in names]
        both = (f"{layer}.gate_up", f"{layer}.down")
        gate_up, down = ((frozen[f"{name}.weight"], frozen.get(f"{name}.bias")) for name in both)
        return adapted_mlp(x, residual, gate_up, down, self.scale, *adapter)
