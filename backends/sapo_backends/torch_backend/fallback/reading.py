"""Reading a model by transformers."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from sapo_backends.base import BackendError, BackendUnavailable, ModelNotFound
from sapo_backends.packages import install


def read_module(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The model by transformers: safetensors only, no code from the folder. Raises BackendUnavailable, ModelNotFound."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise BackendUnavailable("This architecture needs transformers.", install("transformers", "peft")) from error
    try:
        module: nn.Module
        module, told = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, ImportError, RuntimeError) as error:
        said = next(iter(str(error).splitlines()), "")  # further lines list every class that it knows
        if said.startswith("Unrecognized configuration class"):
            said = "it has no causal language model for that architecture. Choose a model that only writes text."
        raise ModelNotFound(f"transformers cannot load {folder}: {said[:400]}") from error
    if missing := told["missing_keys"]:  # transformers gave them random values
        raise ModelNotFound(f"{folder} lacks {len(missing)} tensors, for one {min(missing)}.")
    if any(not tensor.is_floating_point() or tensor.element_size() < 2 for tensor in module.parameters()):
        raise BackendError(f"{folder.name} has quantised weights. Choose the same model before it was quantised.")
    return module
