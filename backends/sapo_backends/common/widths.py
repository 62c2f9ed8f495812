"""The widths of a model of any architecture, by the usual names in its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of the config; of a multimodal one that is its text_config."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def usual_widths(config: Mapping[str, Any]) -> dict[str, int]:
    """Layers, hidden, intermediate, key_value, vocabulary and heads; of layers that differ, the widest."""

    def first(*names: str, otherwise: int) -> int:
        value: Any = next((config[name] for name in names if config.get(name)), otherwise)
        return int(max(value) if isinstance(value, list) else value)

    hidden = first("hidden_size", "n_embd", otherwise=1024)
    heads = first("num_attention_heads", "n_head", otherwise=1)
    return {
        "layers": first("num_hidden_layers", "n_layer", otherwise=24),
        "hidden": hidden,
        "intermediate": first("intermediate_size", "n_inner", otherwise=4 * hidden),
        "key_value": first("head_dim", otherwise=hidden // heads) * first("num_key_value_heads", otherwise=heads),
        "vocabulary": first("vocab_size", otherwise=50_000),
        "heads": heads,
    }
