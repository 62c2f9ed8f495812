"""The families of models that the own decoder computes: what the config of each does not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

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


@dataclass(frozen=True, slots=True)
class LanguagePart:
    """Of a model that also sees: the architecture of the part that writes, and what a config of it may leave out."""

    architecture: str
    defaults: Mapping[str, Any]


LANGUAGE_PARTS = {
    "Gemma3ForConditionalGeneration": LanguagePart(
        "Gemma3ForCausalLM",
        {
            "model_type": "gemma3_text",
            "vocab_size": 262_208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "max_position_embeddings": 131_072,
            "rope_theta": 1_000_000.0,
        },
    ),
}
"""Architecture of the whole -> its language part. The defaults are those of transformers' Gemma3TextConfig."""
_PART, _OF_MODEL = "language_model.", "model."
_SEES = ("vision_tower.", "multi_modal_projector.")


def language_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The config as one of the language part alone, where the own decoder computes that; else the same."""
    part = LANGUAGE_PARTS.get(next(iter(config.get("architectures") or []), ""))
    text = config.get("text_config")
    if part is None or not isinstance(text, Mapping):
        return config
    of_both = ("bos_token_id", "eos_token_id", "pad_token_id", "dtype", "torch_dtype", "quantization_config")
    given = {key: config[key] for key in of_both if config.get(key) is not None}
    return {**part.defaults, **text, **given, "architectures": [part.architecture]}


def own_name(tensor: str) -> str:
    """A tensor's name in a file of the language part alone; the same where the file is of nothing else."""
    whole = tensor.removeprefix(_OF_MODEL)
    if not whole.startswith(_PART):
        return tensor
    return whole.removeprefix(_PART) if whole == tensor else _OF_MODEL + whole.removeprefix(_PART)


def sees(tensor: str) -> bool:
    """Whether a tensor belongs to what a language model sees with."""
    return tensor.removeprefix(_OF_MODEL).startswith(_SEES)
