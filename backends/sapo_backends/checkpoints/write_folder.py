"""What engines and exporters write beside the weights: a Hugging Face folder, a LoRA adapter for peft, Adam's state."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from safetensors.numpy import save_file

from sapo_backends.checkpoints.chat_template import PLAIN
from sapo_backends.checkpoints.gguf_model import spelled_vocabulary
from sapo_backends.checkpoints.gguf_view import gguf_of
from sapo_backends.checkpoints.spec import language_config
from sapo_backends.checkpoints.tokenizer import HfTokenizer, Json, read_json
from sapo_backends.errors import BackendError, CheckpointCorrupt

# What every exporter writes beside the weights of a Hugging Face folder.

COPIED = (
    "tokenizer*.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
QUANTISED = ("quantization", "quantization_config")
"""Entries of a config.json that describe quantised weights."""


def write_settings(source: Path, folder: Path, dtype: str, config: Json | None = None) -> None:
    """Copy the tokenizer and write generation_config.json and config.json for unquantised weights of `dtype`. config:
    by default the source's, or that of its language part if our own decoder computes only that."""
    config = dict(language_config(read_json(source / "config.json"))) if config is None else config
    config = config | _rope(config)
    config["dtype"] = config["torch_dtype"] = dtype
    for key in QUANTISED:
        config.pop(key, None)
    _write(folder / "config.json", config)
    write_tokenizer(source, folder)
    _write(folder / "generation_config.json", read_json(source / "generation_config.json") | _end(source))


def _write(file: Path, value: Json) -> None:
    file.write_text(json.dumps(value, indent=2), encoding="utf-8")


def _rope(config: Json) -> Json:
    """The rotary settings in every place where readers look for them.

    transformers 5 writes only rope_parameters. mlx_lm and transformers 4 read a top-level rope_theta and rope_scaling;
    if these are missing they silently assume a default, which gives wrong tokens.
    """
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta")
    if theta is None or any(isinstance(value, dict) for value in rope.values()):  # a dict for each layer type
        return {}
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    parameters = {"rope_type": kind, **rope, "rope_theta": theta}
    written: dict[str, Any] = {"rope_theta": theta}
    if "rope_parameters" in config:  # transformers 5 derives them from the others, also one per layer type
        written["rope_parameters"] = parameters
    if kind != "default":
        written["rope_scaling"] = {"rope_type": kind, **rope}
    return written


def write_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer and the chat template. A base model without a template gets the plain one that it was trained
    with, preceded by the token that came before every text."""
    for pattern in COPIED:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    if gguf_of(source) is not None:
        tokenizer, size = read_json(source / "tokenizer.json"), int(read_json(source / "config.json")["vocab_size"])
        _write(folder / "tokenizer.json", {**tokenizer, "model": spelled_vocabulary(tokenizer["model"], size)})
    settings = read_json(source / "tokenizer_config.json")
    if not settings.get("chat_template") and not (source / "chat_template.jinja").is_file():
        (folder / "chat_template.jinja").write_text(HfTokenizer(source).opening_text + PLAIN, encoding="utf-8")


def _end(source: Path) -> Json:
    """Every id at which the model was trained to stop; listed here because readers look in different files."""
    ids = HfTokenizer(source).eos_ids
    return {"eos_token_id": ids[0] if len(ids) == 1 else list(ids)}


# A LoRA adapter as the folder that peft reads.

FIRST = ".lora_A.weight"
_OWN, _WITHIN = "base_model.model.model.", "base_model.model.model.language_model."
"""peft's prefix for layers of a language model, and of a language model inside one that also sees."""


def write_adapter_folder(tensors: Mapping[str, object], alpha: float, base: str, source: Path, folder: Path) -> None:
    """Write adapter_model.safetensors, adapter_config.json and the tokenizer of `source` into an existing folder.

    tensors: by PEFT names, A (rank, in) and B (out, rank); the effect is alpha / rank * B A. base: the name under which
    peft finds the base model. Raises BackendError if there is no adapter.
    """
    arrays = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in tensors.items()}
    ranks = {int(array.shape[0]) for name, array in arrays.items() if name.endswith(FIRST)}
    if len(ranks) != 1:
        raise BackendError("This model has no LoRA adapter: all of its weights were trained. Write it as hf or gguf.")
    names = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in arrays})
    target: object = names
    full_config = read_json(source / "config.json")
    # peft has to find the language part inside the model; the vision part may have layers of the same names
    if language_config(full_config) is not full_config:
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


# What engines that train with Adam write beside the trained tensors: state.json, and Adam's moments by outside names.
#
# Outside names and layouts are Hugging Face's and PEFT's, so that another engine can continue from them.

NAME = "state.json"
TRAINED = "trained.safetensors"
OPTIMIZER_FILES = ("optimizer.safetensors",)
"""Adam's moments, as "first.NAME" and "second.NAME" of every trained tensor."""
MOMENTS = ("first", "second")
Tensor = TypeVar("Tensor")


def write_state(folder: Path, identity: Mapping[str, object], **more: object) -> None:
    """Write the identity of a checkpoint and the values in `more`. Raises OSError."""
    (folder / NAME).write_text(json.dumps({"format": 1, **more, **identity}, indent=1), encoding="utf-8")


def read_state(folder: Path, identity: Mapping[str, object]) -> dict[str, Any]:
    """What write_state wrote. Raises CheckpointCorrupt if it belongs to something else; OSError, ValueError or
    TypeError if it cannot be read."""
    try:
        state: dict[str, Any] = dict(json.loads((folder / NAME).read_text(encoding="utf-8")))
    except RecursionError:
        raise ValueError(f"{NAME} is nested too deep") from None
    # "base" is a digest of the model's content: if both have it, the model's name or path does not matter.
    has_content_ids = "base" in identity and "base" in state
    wrong = [
        key
        for key, value in identity.items()
        if state.get(key) != value and key != ("model" if has_content_ids else "base")
    ]
    if wrong:
        raise CheckpointCorrupt(
            f"The checkpoint in {folder} was written for another {wrong[0]}.{_changed(wrong[0], identity)}"
        )
    return state


def _changed(what: str, identity: Mapping[str, object]) -> str:
    """What happened and what to do, where it is the base that differs."""
    if what != "base":
        return ""
    return (
        f" {identity.get('model')} was changed or replaced since. Put back what was there, or make another model of what "
        "is there now: sapo-desktop new NAME"
    )


def with_moments(moments: Mapping[str, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """first and second moments, each by outside names -> the tensors of the optimizer's file."""
    return {f"{moment}.{name}": moments[moment][name] for moment in MOMENTS for name in moments[moment]}


def read_moments(
    folder: Path, load: Callable[[Path], Mapping[str, Tensor]]
) -> tuple[dict[str, dict[str, Tensor]], bool] | None:
    """(first and second moments by outside names, whether they have names); None if the folder has no moments.

    Moments without names are two tensors called "": older torch engines wrote them so, in the order of their memory.
    Two files, one per moment, come from older MLX engines. Raises what load raises.
    """
    if (folder / OPTIMIZER_FILES[0]).exists():
        tensors = load(folder / OPTIMIZER_FILES[0])
        if tensors.keys() == set(MOMENTS):
            return {moment: {"": tensors[moment]} for moment in MOMENTS}, False
        named_moments: dict[str, dict[str, Tensor]] = {moment: {} for moment in MOMENTS}
        for key, tensor in tensors.items():
            moment, _, name = key.partition(".")
            named_moments[moment][name] = tensor
        return named_moments, True
    files = {moment: folder / f"{moment}.safetensors" for moment in MOMENTS}
    if not all(file.exists() for file in files.values()):
        return None
    return {moment: dict(load(file)) for moment, file in files.items()}, True
