"""The widths of a model of any architecture, by the usual names in its config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

DELTA_RULE, STATE_SPACE = 80, 208
"""Float32 numbers that one layer keeps of a token for each value of linear attention, and for each number of Mamba 2's heads
times state: what transformers computes without kernels; fitted (docs/benchmarks/memory.md)."""
BY_KERNELS = 64
"""The same for each value of either where compiled kernels compute it."""


def language_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The language model's part of the config; of a multimodal one that is its text_config."""
    part = config.get("text_config")
    return part if isinstance(part, Mapping) else config


def usual_widths(config: Mapping[str, Any]) -> dict[str, int]:
    """Layers, hidden, intermediate (of one expert), key_value, vocabulary, heads, experts that a token goes through (0: no
    mixture), idle, the weights of the experts that it does not; recurrent, float32 numbers of a token that a layer with a state
    keeps while transformers computes it, by_kernels, while compiled kernels do, and state, numbers of a row in all of these. Of
    layers that differ, the widest."""

    def first(*names: str, otherwise: int) -> int:
        value: Any = next((config[name] for name in names if config.get(name)), otherwise)
        return int(max(value) if isinstance(value, list) else value)

    hidden = first("hidden_size", "n_embd", otherwise=1024)
    heads = first("num_attention_heads", "n_head", otherwise=1)
    experts = first("num_experts_per_tok", otherwise=0)
    one_expert = ("moe_intermediate_size",) if experts else ()
    others = first("num_local_experts", "num_experts", "n_routed_experts", otherwise=experts) - experts
    layers = first("num_hidden_layers", "n_layer", otherwise=24)
    intermediate = first(*one_expert, "intermediate_size", "n_inner", otherwise=4 * hidden)
    kinds = list(config.get("layer_types") or config.get("layers_block_type") or ())
    values = first("linear_num_value_heads", otherwise=0) * first("linear_value_head_dim", otherwise=0)
    heads_of_mamba = first("mamba_n_heads", "mamba_num_heads", "n_mamba_heads", otherwise=0)
    inner = heads_of_mamba * first("mamba_d_state", "ssm_state_size", otherwise=0)
    head = first("mamba_d_head", "mamba_head_dim", "mamba_headdim", otherwise=0)
    state = values * first("linear_key_head_dim", otherwise=0) + inner * head
    with_state = sum(kind in ("linear_attention", "mamba") for kind in kinds) if kinds else layers
    return {
        "layers": layers,
        "hidden": hidden,
        "intermediate": intermediate,
        "key_value": first("head_dim", otherwise=hidden // heads) * first("num_key_value_heads", otherwise=heads),
        "vocabulary": first("vocab_size", otherwise=50_000),
        "heads": heads,
        "experts": experts,
        "idle": layers * max(others, 0) * 3 * hidden * intermediate if experts else 0,
        "recurrent": DELTA_RULE * values + STATE_SPACE * inner if with_state else 0,
        "by_kernels": BY_KERNELS * (values + heads_of_mamba * head) if with_state else 0,
        "state": state * with_state,
    }
