"""What a GGUF file says of its model as a Hugging Face config.json: the reverse of checkpoints.gguf.forms.

A family is a row of FAMILIES_READ. What llama.cpp computes and the own decoder does not is refused with a sentence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapo_backends.checkpoints.gguf_base.header import Header
from sapo_backends.checkpoints.gguf_base.tokenizer_json import end_tokens
from sapo_backends.checkpoints.spec import why_not
from sapo_backends.errors import ModelNotFound

Json = dict[str, Any]
ReadTensor = Callable[[str], NDArray[np.float32]]
"""A small tensor of the file by its name there, float32."""
OTHER_WAY = "Use another file, or the model's Hugging Face folder."
MOST = {"block_count": 1024, "embedding_length": 1 << 17, "feed_forward_length": 1 << 19, "head_count": 1 << 12}
"""Larger ones are damage."""
ORIGINALS = (8192, 4096, 2048, 16384, 32768, 65536, 131072, 1024, 512, 256, 128, 64)
WAVES = ((1.0, 4.0), (1.0, 2.0), (1.0, 8.0))
"""Contexts, and low and high frequency factors, that models with Llama 3's stretched positions have; the first of each are
Llama's own. A GGUF file holds only what follows from them (rope_freqs.weight)."""
LARGE_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose attention llama.cpp scales by hidden / heads."""


@dataclass(frozen=True, slots=True)
class FamilyRead:
    """architecture, model_type: Hugging Face's. interleaved: rows of q and k lie in the order in which llama.cpp rotates.
    offset: what a norm's weight has more there."""

    architecture: str
    model_type: str
    interleaved: bool = False
    offset: float = 0.0


FAMILIES_READ = {
    "llama": FamilyRead("LlamaForCausalLM", "llama", interleaved=True),
    "qwen2": FamilyRead("Qwen2ForCausalLM", "qwen2"),
    "qwen3": FamilyRead("Qwen3ForCausalLM", "qwen3"),
    "phi3": FamilyRead("Phi3ForCausalLM", "phi3"),
    "smollm3": FamilyRead("SmolLM3ForCausalLM", "smollm3", interleaved=True),
    "granite": FamilyRead("GraniteForCausalLM", "granite", interleaved=True),
    "olmo2": FamilyRead("Olmo2ForCausalLM", "olmo2"),
    "gemma": FamilyRead("GemmaForCausalLM", "gemma", offset=1.0),
    "gemma2": FamilyRead("Gemma2ForCausalLM", "gemma2", offset=1.0),
    "gemma3": FamilyRead("Gemma3ForCausalLM", "gemma3_text", offset=1.0),
}
"""llama.cpp's name of a family -> how it is read."""


def family_of(header: Header) -> FamilyRead:
    """Raises ModelNotFound for a family that is not read, naming those that are."""
    name = header.architecture
    if name not in FAMILIES_READ:
        raise ModelNotFound(
            f"Its architecture is {name or 'not named'}; of GGUF files {', '.join(FAMILIES_READ)} are read. {OTHER_WAY}"
        )
    if header.of_family("expert_count"):
        raise ModelNotFound(f"It is a mixture of experts, which is not read from GGUF files. {OTHER_WAY}")
    return FAMILIES_READ[name]


def config_json(header: Header, read: ReadTensor) -> Json:
    """The config. read: for the few small tensors that say how positions are rotated.

    Raises ModelNotFound where a width is missing or impossible, or the model needs what the own decoder does not compute.
    """
    family = family_of(header)
    names = {tensor.name for tensor in header.tensors}
    embedding = next((tensor for tensor in header.tensors if tensor.name == "token_embd.weight"), None)
    if embedding is None or len(embedding.shape) != 2:
        raise ModelNotFound(f"It has no embedding, so it is no whole language model. {OTHER_WAY}")
    hidden, layers = _width(header, "embedding_length"), _width(header, "block_count")
    heads = _width(header, "attention.head_count", "head_count")
    ends = end_tokens(header)
    config: Json = {
        "architectures": [family.architecture],
        "model_type": family.model_type,
        "vocab_size": embedding.shape[1],
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": _width(header, "feed_forward_length"),
        "num_attention_heads": heads,
        "num_key_value_heads": header.of_family("attention.head_count_kv") or heads,
        "head_dim": header.of_family("attention.key_length") or hidden // heads,
        "rms_norm_eps": _real(header, "attention.layer_norm_rms_epsilon", 1e-6),
        "max_position_embeddings": header.of_family("context_length") or 2048,
        "rope_theta": _real(header, "rope.freq_base", 10_000.0),
        "tie_word_embeddings": "output.weight" not in names,
        "bos_token_id": header.values.get("tokenizer.ggml.bos_token_id"),
        "eos_token_id": ends[0] if len(ends) == 1 else ends,
        "hidden_act": "silu",
        "dtype": "float32",
        "torch_dtype": "float32",
    }
    if family.architecture not in ("Qwen2ForCausalLM", "Phi3ForCausalLM"):
        config["attention_bias"] = "blk.0.attn_q.bias" in names
    config["mlp_bias"] = "blk.0.ffn_up.bias" in names
    scaling = _rope_scaling(header, config, names, read)
    if scaling:
        config["rope_scaling"] = scaling
    config |= _family_settings(header, config)
    reason = why_not(config)
    if reason:
        raise ModelNotFound(f"It needs {reason}, which is not computed here. {OTHER_WAY}")
    return config


def _width(header: Header, key: str, limit: str = "") -> int:
    value = header.of_family(key)
    if not 0 < value <= MOST[limit or key]:
        raise ModelNotFound(
            f"Its {header.architecture}.{key} is {value or 'missing'}: the file is damaged. Download it again."
        )
    return value


def _real(header: Header, key: str, default: float) -> float:
    value = header.values.get(f"{header.architecture}.{key}")
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
    if not math.isfinite(number):
        raise ModelNotFound(f"Its {header.architecture}.{key} is no number: the file is damaged. Download it again.")
    return number


def _rope_scaling(header: Header, config: Json, names: set[str], read: ReadTensor) -> Json:
    """How rotary embeddings are stretched; {} where they are not."""
    kind = header.text(f"{header.architecture}.rope.scaling.type")
    original = header.of_family("rope.scaling.original_context_length")
    if "rope_factors_short.weight" in names:
        config["original_max_position_embeddings"] = original or config["max_position_embeddings"]
        return {
            "rope_type": "longrope",
            "type": "longrope",
            "short_factor": read("rope_factors_short.weight").tolist(),
            "long_factor": read("rope_factors_long.weight").tolist(),
            "attention_factor": _real(header, "rope.scaling.attn_factor", 0.0) or None,
        }
    if "rope_freqs.weight" in names:
        return _llama3_scaling(config, read("rope_freqs.weight"))
    if kind and kind != "none":
        factor = _real(header, "rope.scaling.factor", 0.0) or _real(header, "rope.scale_linear", 1.0)
        return {"rope_type": kind, "factor": factor} if factor != 1.0 else {}
    return {}


def _llama3_scaling(config: Json, divisors: NDArray[np.float32]) -> Json:
    """From the divisors of each frequency (head_dim / 2,) the settings that they follow from."""
    factor = float(divisors.max())
    if factor <= 1.0:
        return {}
    head_dim, theta = int(config["head_dim"]), float(config["rope_theta"])
    frequencies = 1.0 / theta ** (np.arange(0, head_dim, 2) / head_dim)
    for original, (low, high) in itertools.product(ORIGINALS, WAVES):
        rotations = original * frequencies / (2 * np.pi)
        blend = np.clip((rotations - low) / (high - low), 0.0, 1.0)
        expected = 1.0 / (blend + (1.0 - blend) / factor)
        if divisors.shape == expected.shape and np.allclose(divisors, expected, rtol=1e-4):
            return {
                "rope_type": "llama3",
                "factor": float(str(divisors.max())),
                "low_freq_factor": low,
                "high_freq_factor": high,
                "original_max_position_embeddings": original,
            }
    raise ModelNotFound(f"It stretches positions in a way that is not known here (rope_freqs.weight). {OTHER_WAY}")


def _family_settings(header: Header, config: Json) -> Json:
    """What one family alone has."""
    name, window = header.architecture, header.of_family("attention.sliding_window")
    if name == "granite":
        return {
            "attention_multiplier": _real(header, "attention.scale", 0.0) or config["head_dim"] ** -0.5,
            "embedding_multiplier": _real(header, "embedding_scale", 1.0),
            "residual_multiplier": _real(header, "residual_scale", 1.0),
            "logits_scaling": _real(header, "logit_scale", 1.0),
        }
    if name == "olmo2" and window:
        return {"architectures": ["Olmo3ForCausalLM"], "model_type": "olmo3", "sliding_window": window}
    if name == "phi3":
        rotary = header.of_family("rope.dimension_count") or config["head_dim"]
        limit = min(config["max_position_embeddings"], window or config["max_position_embeddings"])
        return {
            "sliding_window": None,
            "max_position_embeddings": config["max_position_embeddings"] if "rope_scaling" in config else limit,
            "partial_rotary_factor": rotary / config["head_dim"],
            "pad_token_id": None,
        }
    return _gemma_settings(header, config, window) if name.startswith("gemma") else {}


def _gemma_settings(header: Header, config: Json, window: int) -> Json:
    settings: Json = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    if header.architecture == "gemma":
        return settings
    scalar = config["head_dim"]
    if LARGE_GEMMAS[header.architecture] == config["num_hidden_layers"]:
        scalar = config["hidden_size"] // config["num_attention_heads"]
    settings |= {"query_pre_attn_scalar": scalar, "sliding_window": window or 4096}
    if header.architecture == "gemma2":
        caps = ("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)
        return settings | {key: _real(header, key, usual) for key, usual in caps}
    local = _real(header, "rope.freq_base_swa", 10_000.0)
    settings |= {"sliding_window_pattern": 6, "rope_local_base_freq": local, "attn_logit_softcapping": None}
    return settings | {"final_logit_softcapping": _real(header, "final_logit_softcapping", 0.0) or None}
