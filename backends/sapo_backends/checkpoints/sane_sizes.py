"""Bounds of what a model's small files may hold, checked before anything is made of them.

A config.json is a few numbers, and every list of layers, every table of a plan and every allocation follows from them: 1e9
layers took 8 GB before a plan could say that they do not fit. The bounds are meant to be far beyond any model that
a laptop holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from sapo_backends.errors import ModelNotFound, size_text

LARGEST_NUMBERS = {
    "num_hidden_layers": 1024,
    "n_layer": 1024,
    "num_layers": 1024,
    "hidden_size": 1 << 17,
    "n_embd": 1 << 17,
    "intermediate_size": 1 << 20,
    "moe_intermediate_size": 1 << 20,
    "vocab_size": 1 << 22,
    "num_attention_heads": 4096,
    "n_head": 4096,
    "num_key_value_heads": 4096,
    "head_dim": 1 << 14,
    "num_experts": 1 << 14,
    "num_local_experts": 1 << 14,
    "n_routed_experts": 1 << 14,
    "max_position_embeddings": 1 << 28,
    "sliding_window": 1 << 28,
}
"""Entry of a config -> the largest number it may hold; none is below 0."""
MANY = 1 << 16
"""Entries of a list or an object in a config: of layers, of factors, of labels."""
LARGEST_FILES = {"tokenizer.json": 100_000_000, "tokenizer_config.json": 40_000_000}
LARGEST_FILE = 16_000_000
"""Bytes of any other JSON file of a model."""


def largest_file(name: str) -> int:
    """Bytes of a JSON file of a model, at most."""
    return LARGEST_FILES.get(name, LARGEST_FILE)


def require_file_size(path: Path) -> None:
    """Raise ModelNotFound where a JSON file of a model is larger than any that is one."""
    most, size = largest_file(path.name), path.stat().st_size
    if size > most:
        raise ModelNotFound(
            f"{path} has {size_text(size)}, and at most {size_text(most)} are read. Copy or download the model again."
        )


def require_sane_numbers(config: object) -> None:
    """Raise ModelNotFound where a config, or one for a part of the model within it, names a number beyond LARGEST_NUMBERS."""
    waiting = [config]
    while waiting:
        part = waiting.pop()
        if isinstance(part, (Mapping, list)) and len(part) > MANY:
            raise ModelNotFound(
                f"The model's config.json holds a list of {len(part):,} entries. Copy or download the model again."
            )
        if isinstance(part, list):
            waiting += [value for value in part if isinstance(value, (Mapping, list))]
        elif isinstance(part, Mapping):
            for name, value in part.items():
                _require_sane(str(name), value)
            waiting += [value for value in part.values() if isinstance(value, (Mapping, list))]


def _require_sane(name: str, value: object) -> None:
    most = LARGEST_NUMBERS.get(name)
    if most is None or not isinstance(value, (int, float)) or 0 <= value <= most:
        return
    raise ModelNotFound(
        f"The model's config.json says {name} {_brief(value)}, and a model has from 0 to {most:,}. Copy or "
        "download the model again."
    )


def _brief(value: float) -> str:
    return f"{value:,}" if isinstance(value, float) or value.bit_length() < 64 else f"of {value.bit_length():,} bits"
