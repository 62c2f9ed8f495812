"""The families of models that the own decoder computes: what the config of each does not say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

ACTIVATIONS = {"silu": "silu", "gelu_pytorch_tanh": "gelu"}
Norms = Literal["before", "after", "both"]


@dataclass(frozen=True, slots=True)
class Family:
    """norms: where a layer's RMSNorms are, before or after attention and MLP. qk_norm: none, of each head, or of all
    heads together. norm_offset: added to a norm's stored weight. fused: q, k, v and gate, up are one tensor in the file.
    scaled_embedding: embeddings are multiplied by sqrt(hidden). windowed: which layers see sliding_window tokens only,
    where the config has no layer_types: none, all, or all but every n-th. tied: what a config that says nothing means.
    """

    norms: Norms = "before"
    qk_norm: Literal["", "head", "all"] = ""
    norm_offset: float = 0.0
    fused: bool = False
    qkv_bias: bool = False
    scaled_embedding: bool = False
    windowed: int = 0
    tied: bool = False


ALL_LAYERS = -1
FAMILIES = {
    "LlamaForCausalLM": Family(),
    "Qwen2ForCausalLM": Family(qkv_bias=True),
    "Qwen3ForCausalLM": Family(qk_norm="head"),
    "MistralForCausalLM": Family(windowed=ALL_LAYERS),
    "Phi3ForCausalLM": Family(fused=True, windowed=ALL_LAYERS),
    "SmolLM3ForCausalLM": Family(tied=True),
    "GraniteForCausalLM": Family(),
    "Olmo2ForCausalLM": Family(norms="after", qk_norm="all"),
    "Olmo3ForCausalLM": Family(norms="after", qk_norm="all", windowed=4),
    "GemmaForCausalLM": Family(norm_offset=1.0, scaled_embedding=True, tied=True),
    "Gemma2ForCausalLM": Family("both", norm_offset=1.0, scaled_embedding=True, windowed=2, tied=True),
    "Gemma3ForCausalLM": Family("both", "head", norm_offset=1.0, scaled_embedding=True, windowed=6, tied=True),
}
"""Architecture -> what its config does not say."""
NORMS: dict[Norms, dict[str, str]] = {
    "before": {"norm1": "input_layernorm", "norm2": "post_attention_layernorm"},
    "after": {"after1": "post_attention_layernorm", "after2": "post_feedforward_layernorm"},
    "both": {
        "norm1": "input_layernorm",
        "after1": "post_attention_layernorm",
        "norm2": "pre_feedforward_layernorm",
        "after2": "post_feedforward_layernorm",
    },
}
