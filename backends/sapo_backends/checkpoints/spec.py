"""The shape of a decoder as its config.json tells it, for the architectures this engine computes itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]
ARCHITECTURES = ("Qwen2ForCausalLM", "Qwen3ForCausalLM", "LlamaForCausalLM")
ROPE_KINDS = ("default", "linear", "llama3")


@dataclass(frozen=True, slots=True)
class RopeSpec:
    """theta: base of the wavelengths. The rest belongs to the kinds "linear" and "llama3" (scaled wavelengths)."""

    kind: str
    theta: float
    factor: float = 1.0
    low_frequency: float = 1.0
    high_frequency: float = 4.0
    original_context: int = 8192


@dataclass(frozen=True, slots=True)
class DecoderSpec:
    """hidden, intermediate: widths. heads, kv_heads of head_dim each. context: longest sequence in tokens."""

    architecture: str
    vocabulary: int
    hidden: int
    intermediate: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    context: int
    norm_eps: float
    rope: RopeSpec
    tied: bool
    qkv_bias: bool
    output_bias: bool
    mlp_bias: bool
    qk_norm: bool

    @property
    def query_width(self) -> int:
        """Columns of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Columns of all key heads, which is also that of the value heads."""
        return self.kv_heads * self.head_dim


def _rope(config: Json) -> RopeSpec:
    """transformers 5 writes rope_parameters with rope_theta inside; 4 a top-level rope_theta and rope_scaling."""
    scaling = dict(config.get("rope_scaling") or {}) | dict(config.get("rope_parameters") or {})
    return RopeSpec(
        kind=str(scaling.get("rope_type") or scaling.get("type") or "default"),
        theta=float(scaling.get("rope_theta") or config.get("rope_theta") or 10_000.0),
        factor=float(scaling.get("factor") or 1.0),
        low_frequency=float(scaling.get("low_freq_factor") or 1.0),
        high_frequency=float(scaling.get("high_freq_factor") or 4.0),
        original_context=int(scaling.get("original_max_position_embeddings") or 8192),
    )


def why_not(config: Json) -> str:
    """Why this engine's own decoder cannot compute the model; empty when it can."""
    name = next(iter(config.get("architectures") or []), "unknown")
    if name not in ARCHITECTURES:
        return f"architecture {name}"
    if config.get("hidden_act", "silu") != "silu":
        return f"activation {config['hidden_act']}"
    if config.get("use_sliding_window"):
        return "sliding-window attention"
    if config.get("quantization_config"):
        return "quantised weights"
    kind = _rope(config).kind
    return "" if kind in ROPE_KINDS else f"rope type {kind}"


def decoder_spec(config: Json) -> DecoderSpec:
    """Read a config for which why_not() is empty. Raises KeyError when a width is missing."""
    name = config["architectures"][0]
    heads = int(config["num_attention_heads"])
    bias = bool(config.get("attention_bias", False))
    return DecoderSpec(
        architecture=name,
        vocabulary=int(config["vocab_size"]),
        hidden=int(config["hidden_size"]),
        intermediate=int(config["intermediate_size"]),
        layers=int(config["num_hidden_layers"]),
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head_dim=int(config.get("head_dim") or int(config["hidden_size"]) // heads),
        context=int(config.get("max_position_embeddings") or 2048),
        norm_eps=float(config.get("rms_norm_eps", 1e-6)),
        rope=_rope(config),
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=name == "Qwen2ForCausalLM" or bias,
        output_bias=name != "Qwen2ForCausalLM" and bias,
        mlp_bias=bool(config.get("mlp_bias", False)),
        qk_norm=name == "Qwen3ForCausalLM",
    )
