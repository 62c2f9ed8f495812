"""Which implementation computes a model: the one place where the torch engine chooses. docs/engines.md has the figures.

Each path computes the same mathematics as the next simpler one; what is not to be had here is left out, with a line in
the log where it should have worked (runtime.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sapo_backends.checkpoints.spec import DecoderSpec, why_not
from sapo_backends.torch_backend.native import PAD, Kernels, kernels, suits
from sapo_backends.torch_backend.runtime import fallbacks, is_left_out, packs_bfloat16, works

WeightLayout = Literal["packed", "as stored"]
SMALL_VOCABULARY = 2048
"""Up to so many tokens the sampler sums whole rows of probabilities rather than blocks."""


@dataclass(frozen=True, slots=True)
class Paths:
    """kernels: the compiled C kernels, if they compute this model. layout: that of the weights in decoding without
    them."""

    kernels: Kernels | None
    layout: WeightLayout
    device: str
    four_bit: bool = False

    def __str__(self) -> str:
        """In words, for EngineInfo.extra."""
        if self.kernels is not None:
            return "own decoder, compiled C kernels"
        weights = ", oneDNN-packed weights" if self.layout == "packed" else ", 4-bit weights" if self.four_bit else ""
        if self.device == "cuda":
            return f"own decoder, CUDA graphs{weights}"
        return f"own decoder, {'TorchScript' if self.device == 'cpu' and works() else 'plain torch'}{weights}"


def choose(
    spec: DecoderSpec, device: torch.device, compute: torch.dtype, parameters: int, four_bit: bool = False
) -> Paths:
    """The paths of a model that the own decoder computes, with so many parameters, in the type `compute`."""
    if four_bit:
        return Paths(None, "as stored", device.type, four_bit=True)
    if suits(spec, device, compute, parameters):
        compiled = kernels()
        if compiled is not None:
            return Paths(compiled, "as stored", device.type)
    packed = device.type == "cpu" and compute == torch.bfloat16 and packs_bfloat16()
    return Paths(None, "packed" if packed else "as stored", device.type)


def sampler_kernels(logits: torch.Tensor) -> Kernels | None:
    """The compiled kernels, if they sample from logits (rows, V): float32 on a processor, small vocabulary."""
    vocabulary = logits.shape[1]
    small = vocabulary <= SMALL_VOCABULARY and vocabulary % PAD == 0
    return kernels() if small and logits.device.type == "cpu" and logits.dtype == torch.float32 else None


def vocabulary_kernels(head: torch.Tensor, softcap: float) -> Kernels | None:
    """The compiled kernels, if they go through the logits of this unembedding."""
    known = head.dtype in (torch.float32, torch.bfloat16) and softcap == 0.0
    return kernels() if known and head.device.type == "cpu" else None


def why_transformers(config: Mapping[str, Any]) -> str:
    """Why transformers computes a model rather than the own decoder; empty when it need not."""
    return "left out by SAPO_WITHOUT" if is_left_out("own") else why_not(config)


def check() -> dict[str, str]:
    """Try everything that depends on a compiler or on private functions of torch; name -> why it cannot be used."""
    kernels()
    packs_bfloat16()
    works()
    return fallbacks()
