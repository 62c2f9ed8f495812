"""The trained model as a Hugging Face folder, and the adapter as a PEFT folder."""

from __future__ import annotations

import json
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from sapo_backends.checkpoints.hf_folder import write_settings
from sapo_backends.torch_backend.causal_lm import Model
from sapo_backends.torch_backend.model.flat_parameters import Layout


def export(model: Model, source: Path, base: str, folder: Path) -> None:
    """Write model.safetensors, config.json and the tokenizer, and the adapter alone in `adapter/`. base: the name that
    the adapter gives its base model."""
    save_file(
        {n: t.contiguous().cpu() for n, t in model.merged().items()}, folder / "model.safetensors", {"format": "pt"}
    )
    write_settings(source, folder, str(model.base.dtype).removeprefix("torch."))
    if model.adapter_layout is not None and model.flat is not None:
        _adapter(model, model.adapter_layout, model.flat, base, folder / "adapter")


def _adapter(model: Model, layout: Layout, flat: Tensor, base: str, folder: Path) -> None:
    """The adapter alone, as peft reads it."""
    folder.mkdir()
    tensors = {name: view.contiguous().cpu() for name, view in layout.named_parts(flat)}
    save_file(tensors, folder / "adapter_model.safetensors", {"format": "pt"})
    modules = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in tensors})
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "r": model.rank,
        "lora_alpha": model.alpha,
        "target_modules": modules,
        "lora_dropout": 0.0,
        "bias": "none",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config, indent=2), encoding="utf-8")
