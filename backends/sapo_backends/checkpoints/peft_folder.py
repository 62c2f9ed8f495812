"""A LoRA adapter as the folder that peft reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sapo_backends.base import BackendError
from sapo_backends.checkpoints.hf_folder import write_tokenizer

FIRST = ".lora_A.weight"


def write_adapter_folder(tensors: Mapping[str, object], alpha: float, base: str, source: Path, folder: Path) -> None:
    """Write adapter_model.safetensors, adapter_config.json and the tokenizer of `source` into an existing folder.

    tensors: by PEFT names, A (rank, in) and B (out, rank); the effect is alpha / rank * B A. base: the name under which
    peft finds the base model. Raises BackendError when there is no adapter.
    """
    arrays = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
    ranks = {int(array.shape[0]) for name, array in arrays.items() if name.endswith(FIRST)}
    if len(ranks) != 1:
        raise BackendError("This model has no LoRA adapter: all of its weights were trained. Write it as hf or gguf.")
    save_file(arrays, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": ranks.pop(),
        "lora_alpha": alpha,
        "target_modules": sorted({name.split(".lora_")[0].rpartition(".")[2] for name in arrays}),
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    write_tokenizer(source, folder)
