"""LoRA (arXiv 2106.09685) on every linear layer, in PEFT's names so that peft and our GGUF writer read it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.spec import DecoderSpec
from sapo_backends.torch_backend.layout import Entry, Layout, Part, linears

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

    def linear(self, name: str, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """W x + b + scale * B A x for the fused projection `name`: (N, in) -> (N, out). W and b are not trained."""
        ups = [self.tensors[key] for key in (f"{name}.B{i}" for i in range(3)) if key in self.tensors]
        y: Tensor = _AdaptedLinear.apply(x, weight, bias, self.scale, self.tensors[f"{name}.A"], *ups)  # type: ignore[no-untyped-call]
        return y


class _AdaptedLinear(torch.autograd.Function):
    """A frozen linear layer with its adapter; what the adapter adds goes into the layer's own output.

    As separate operations the sum and the gradients of its parts are each another tensor as wide as the layer.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scale: float, *adapter: Tensor) -> Tensor:
        down, *ups = adapter
        y = F.linear(x, weight, bias)
        low = F.linear(x, down).mul_(scale)  # (N, parts * rank)
        for low_of, up, part in zip(low.chunk(len(ups), dim=1), ups, _parts(y, ups), strict=True):
            part.add_(F.linear(low_of, up))
        ctx.save_for_backward(x, weight, low, down, *ups)
        ctx.scale = scale
        return y

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, low, down, *ups = ctx.saved_tensors
        slopes = _parts(gradients[0], ups)
        into_ups = [slope.t() @ low_of for slope, low_of in zip(slopes, low.chunk(len(ups), dim=1), strict=True)]
        into_low = torch.cat([slope @ up for slope, up in zip(slopes, ups, strict=True)], dim=1).mul_(ctx.scale)
        into_x = (gradients[0] @ weight).addmm_(into_low, down) if ctx.needs_input_grad[0] else None
        return into_x, None, None, None, into_low.t() @ x, *into_ups


def _parts(y: Tensor, ups: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """The columns of y that each part of the adapter adds to."""
    return torch.split(y, [len(up) for up in ups], dim=1)
