"""A LoRA adapter in PEFT's names as a GGUF adapter file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import BackendError
from sapo_backends.checkpoints.gguf.forms import FORMS
from sapo_backends.checkpoints.gguf.writer import base_name, gguf_module, reordered
from sapo_backends.checkpoints.spec import DecoderSpec, linears

PREFIX = "base_model.model."
_SIDES = {".lora_A.weight": ".lora_a", ".lora_B.weight": ".lora_b"}


def adapter_targets(spec: DecoderSpec) -> list[tuple[str, int, int]]:
    """(module, input width, output width) of every linear layer that an adapter may change."""
    return [
        (module, columns, rows)
        for layer in range(spec.layers)
        for _, columns, parts, _ in linears(spec, layer)
        for module, rows in parts
    ]


def zero_adapter(spec: DecoderSpec, rank: int) -> dict[str, NDArray[np.float32]]:
    """An adapter with all targets that changes nothing, in PEFT's names."""
    tensors: dict[str, NDArray[np.float32]] = {}
    for module, columns, rows in adapter_targets(spec):
        tensors[f"{PREFIX}{module}.lora_A.weight"] = np.zeros((rank, columns), np.float32)
        tensors[f"{PREFIX}{module}.lora_B.weight"] = np.zeros((rows, rank), np.float32)
    return tensors


def _split(name: str) -> tuple[str, str]:
    """PEFT name -> (Hugging Face weight name, GGUF suffix)."""
    for ending, suffix in _SIDES.items():
        if name.startswith(PREFIX) and name.endswith(ending):
            return name[len(PREFIX) : -len(ending)] + ".weight", suffix
    raise BackendError(f"{name!r} is no LoRA tensor of a linear layer, so it cannot be written as GGUF.")


def write_adapter(spec: DecoderSpec, tensors: Mapping[str, object], alpha: float, target: Path) -> None:
    """Write lora_a (rank, in) and lora_b (out, rank) of each target. The effect is alpha / rank * B A.

    Raises BackendError for tensors other than the LoRA of linear layers (adapters on embeddings are not supported).
    """
    writer = gguf_module().GGUFWriter(target, FORMS[spec.architecture].name)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", alpha)
    for name, value in tensors.items():
        weight, suffix = _split(name)
        tensor = np.ascontiguousarray(value, dtype=np.float32)
        if suffix == ".lora_b":
            tensor = reordered(spec, weight, tensor)
        writer.add_tensor(base_name(spec, weight) + suffix, tensor)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
