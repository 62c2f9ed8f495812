"""Which implementation computes a model: the one place where the torch engine chooses. docs/engines.md has the figures.

Each path computes the same mathematics as the next simpler one; a path that is unavailable here is left out, with a line in
the log if it should have worked (runtime.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch

from sapo_backends.checkpoints.spec import DecoderSpec, why_not
from sapo_backends.common import round_memory
from sapo_backends.torch_backend.native import NativeKernels, load_kernels, suits_kernels
from sapo_backends.torch_backend.runtime import is_left_out, list_fallbacks, packs_bfloat16, torchscript_works

WeightLayout = Literal["packed", "as stored"]


@dataclass(frozen=True, slots=True)
class ComputePaths:
    """kernels: the compiled C kernels, if they compute this model. layout: that of the weights for decoding without the
    kernels. attention: the kernels, if they compute the attention of decode steps beside that layout."""

    kernels: NativeKernels | None
    layout: WeightLayout
    device: str
    four_bit: bool = False
    attention: NativeKernels | None = None

    def __str__(self) -> str:
        """A description for EngineInfo.extra."""
        if self.kernels is not None:
            return "own decoder, compiled C kernels"
        weights = ", oneDNN-packed weights" if self.layout == "packed" else ", 4-bit weights" if self.four_bit else ""
        if self.attention is not None:
            return f"own decoder, compiled C kernels beside{weights.removeprefix(',')}"
        if self.device == "cuda":
            return f"own decoder, CUDA graphs{weights}"
        return (
            f"own decoder, {'TorchScript' if self.device == 'cpu' and torchscript_works() else 'plain torch'}{weights}"
        )


def choose_paths(
    spec: DecoderSpec, device: torch.device, compute: torch.dtype, parameters: int, four_bit: bool = False
) -> ComputePaths:
    """The paths for a model that our own decoder computes, by its number of parameters and the type `compute`."""
    if four_bit:
        return ComputePaths(None, "as stored", device.type, four_bit=True)
    whole = device.type == "cpu" and suits_kernels(spec)
    if whole and compute == torch.float32 and parameters < round_memory.SHARDED_BELOW:
        compiled = load_kernels()
        if compiled is not None:
            return ComputePaths(compiled, "as stored", device.type)
    packed = device.type == "cpu" and compute == torch.bfloat16 and packs_bfloat16()
    attention = load_kernels() if packed and whole else None
    return ComputePaths(None, "packed" if packed else "as stored", device.type, attention=attention)


def why_transformers(config: Mapping[str, Any]) -> str:
    """Why transformers, not our own decoder, has to compute a model; empty if it does not."""
    return "left out by SAPO_WITHOUT" if is_left_out("own") else why_not(config)


def check_fast_paths() -> dict[str, str]:
    """Try everything that depends on a compiler or on private functions of torch; name -> why it cannot be used."""
    load_kernels()
    packs_bfloat16()
    torchscript_works()
    return list_fallbacks()
