"""A LoRA adapter as the folder that peft reads."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from sapo_backends.base import BackendError
from sapo_backends.checkpoints.families import language_config
from sapo_backends.checkpoints.hf_folder import write_tokenizer
from sapo_backends.checkpoints.tokenizer import read_json

FIRST = ".lora_A.weight"
_OWN, _WITHIN = "base_model.model.model.", "base_model.model.model.language_model."
"""How peft calls layers of a language model, and of one that is part of a model that also sees."""


def write_adapter_folder(tensors: Mapping[str, object], alpha: float, base: str, source: Path, folder: Path) -> None:
    """Write adapter_model.safetensors, adapter_config.json and the tokenizer of `source` into an existing folder.

    tensors: by PEFT names, A (rank, in) and B (out, rank); the effect is alpha / rank * B A. base: the name under which
    peft finds the base model. Raises BackendError when there is no adapter.
    """
    arrays = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
    ranks = {int(array.shape[0]) for name, array in arrays.items() if name.endswith(FIRST)}
    if len(ranks) != 1:
        raise BackendError("This model has no LoRA adapter: all of its weights were trained. Write it as hf or gguf.")
    names = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in arrays})
    target: object = names
    whole = read_json(source / "config.json")
    # peft finds the part that writes within the model, and layers of these names beside it
    if language_config(whole) is not whole:
        arrays = {name.replace(_OWN, _WITHIN, 1): array for name, array in arrays.items()}
        target = rf".*\.language_model\..*\.({'|'.join(names)})"
    save_file(arrays, folder / "adapter_model.safetensors", {"format": "pt"})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": ranks.pop(),
        "lora_alpha": alpha,
        "target_modules": target,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
    write_tokenizer(source, folder)
