"""The trained model as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import save_file

from sapo_backends.checkpoints.hf_folder import write_settings
from sapo_backends.common import round_memory
from sapo_backends.torch_backend.causal_lm import Model


def export(model: Model, source: Path, folder: Path) -> None:
    """Write model.safetensors (an adapter merged into the weights), config.json and the tokenizer. Raises OutOfMemory."""
    round_memory.require(
        model.layout.size * model.base.element_size(),
        "Close other programs, or export the adapter alone (--format adapter).",
    )
    save_file(
        {n: t.contiguous().cpu() for n, t in model.merged().items()}, folder / "model.safetensors", {"format": "pt"}
    )
    write_settings(source, folder, str(model.base.dtype).removeprefix("torch."), model.config)
