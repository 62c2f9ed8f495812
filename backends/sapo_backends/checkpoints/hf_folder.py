"""What every exporter writes beside the weights of a Hugging Face folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from sapo_backends.checkpoints.chat_template import PLAIN
from sapo_backends.checkpoints.families import language_config
from sapo_backends.checkpoints.gguf_base.tokenizer_json import spelled_vocabulary
from sapo_backends.checkpoints.gguf_base.view import gguf_of
from sapo_backends.checkpoints.tokenizer import HfTokenizer, Json, read_json

COPIED = (
    "tokenizer*.json",
    "chat_template.jinja",
    "special_tokens_map.json",
    "vocab.json",
    "merges.txt",
)
QUANTISED = ("quantization", "quantization_config")
"""Entries of a config.json that speak of weights of fewer bits."""


def write_settings(source: Path, folder: Path, dtype: str, config: Json | None = None) -> None:
    """Copy the tokenizer, write generation_config.json, and config.json for unquantised weights of `dtype`: that of the source
    (of its language part, where the own decoder computes that), or the one that is given."""
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
    """The rotary settings in every place that readers look for them.

    transformers 5 writes only rope_parameters. mlx_lm and transformers 4 read a top-level rope_theta and rope_scaling,
    and silently assume a default, which gives wrong tokens, when they are not there.
    """
    rope = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    theta = rope.pop("rope_theta", None) or config.get("rope_theta")
    if theta is None or any(isinstance(value, dict) for value in rope.values()):  # the latter: one rope a layer type
        return {}
    kind = rope.pop("rope_type", None) or rope.pop("type", None) or "default"
    parameters = {"rope_type": kind, **rope, "rope_theta": theta}
    written: dict[str, Any] = {"rope_theta": theta}
    if "rope_parameters" in config:  # transformers 5 makes them of the others, where a family has one a layer type, too
        written["rope_parameters"] = parameters
    if kind != "default":
        written["rope_scaling"] = {"rope_type": kind, **rope}
    return written


def write_tokenizer(source: Path, folder: Path) -> None:
    """Copy the tokenizer and the chat template; a base model without one gets the plain one that it was trained with, behind the
    token that stood before every text."""
    for pattern in COPIED:
        for file in source.glob(pattern):
            shutil.copyfile(file, folder / file.name)
    if gguf_of(source) is not None:
        whole, size = read_json(source / "tokenizer.json"), int(read_json(source / "config.json")["vocab_size"])
        _write(folder / "tokenizer.json", {**whole, "model": spelled_vocabulary(whole["model"], size)})
    settings = read_json(source / "tokenizer_config.json")
    if not settings.get("chat_template") and not (source / "chat_template.jinja").is_file():
        (folder / "chat_template.jinja").write_text(HfTokenizer(source).opening_text + PLAIN, encoding="utf-8")


def _end(source: Path) -> Json:
    """Every id at which the model was trained to stop: readers look for them in different files."""
    ids = HfTokenizer(source).eos_ids
    return {"eos_token_id": ids[0] if len(ids) == 1 else list(ids)}
