"""A GGUF file as a model: its vocabulary as tokenizer.json, its metadata as config.json, and its weights by their
Hugging Face names."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path
from typing import IO, Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from sapo_backends.checkpoints.gguf_header import TENSOR_TYPES, GgufHeader, TensorEntry, read_header
from sapo_backends.checkpoints.local_models import open_file
from sapo_backends.checkpoints.spec import why_not
from sapo_backends.errors import ModelNotFound

# The vocabulary of a GGUF file as tokenizer.json and tokenizer_config.json: the reverse of gguf_write.gguf_tokenizer.
#
# Text becomes the same tokens as in llama.cpp. A file names how text is split before it is merged; the patterns behind
# the names are llama.cpp's (src/llama-vocab.cpp).

Json = dict[str, Any]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""llama_token_type."""
PRE_TOKENIZER = "gguf_pre_tokenizer"
"""Entry of tokenizer_config.json: llama.cpp's name for how text is split, needed for writing GGUF again."""
SPACE = "▁"
"""SentencePiece's space."""
_CASELESS = "(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
_REST = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CASELESS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}|{_REST}"
_QWEN2 = rf"{_CASELESS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}|{_REST}"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_WORDS = rf"[^\r\n\p{{L}}\p{{N}}]?{_UPPER}*{_LOWER}+{{0}}|[^\r\n\p{{L}}\p{{N}}]?{_UPPER}+{_LOWER}*{{0}}"
_SLASHED = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = _WORDS.replace("{0}", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?") + rf"|\p{{N}}{{1,3}}|{_SLASHED}"
_TEKKEN = _WORDS.replace("{0}", "") + rf"|\p{{N}}|{_SLASHED}"
_DEFAULT = (
    r"[\p{P}\$\+<=>\^~\|]+",
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)",
    r"\p{N}+",
)
_DIGITS = (r"\p{N}", _GPT2)
SPLITS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "dbrx", "smaug-bpe"), (_LLAMA3,)),
    **dict.fromkeys(("qwen2", "deepseek-r1-qwen", "megrez"), (_QWEN2,)),
    **dict.fromkeys(("gpt-2", "phi-2", "olmo", "mpt", "jais", "trillion"), (_GPT2,)),
    **dict.fromkeys(("smollm", "refact", "starcoder", "command-r", "codeshell", "exaone", "minerva-7b"), _DIGITS),
    **dict.fromkeys(("gpt-4o", "llama4"), (_GPT4O,)),
    "tekken": (_TEKKEN,),
    "default": (*_DEFAULT, "[0-9][0-9][0-9]"),
}
"""llama.cpp's name of a pre-tokenizer -> the patterns that split text, one after another."""
WHOLE_WORDS = frozenset({"llama3", "llama-v3", "llama-bpe", "falcon3", "pixtral", "tekken"})
"""Pre-tokenizers with which a word that is a token stays whole, merged or not (ignore_merges)."""


PHI3_TOKENS = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})
"""Tokens by which llama.cpp recognises a Phi-3, whose other control tokens absorb the white space after them."""
ENDS_TEXT = frozenset(
    {
        "</s>",
        "<|eot_id|>",
        "<|im_end|>",
        "<|end|>",
        "<end_of_turn>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<EOT>",
        "<|eom_id|>",
    }
)
"""Spellings that llama.cpp treats as control tokens in any vocabulary, whatever kind the file gives them."""


def tokenizer_files(header: GgufHeader) -> tuple[Json, Json]:
    """(tokenizer.json, tokenizer_config.json). header: read with its vocabulary. Raises ModelNotFound, which names what
    is missing or unknown here."""
    tokens = _texts(header, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelNotFound("It holds no vocabulary (tokenizer.ggml.tokens). Choose a complete model file.")
    if (spelled := sum(map(len, tokens))) > MOST_SPELLED:
        raise ModelNotFound(
            f"Its tokens have {spelled:,} characters together, and at most {MOST_SPELLED:,} are read. {OTHER_WAY}"
        )
    kinds = _numbers(header, "tokenizer.ggml.token_type") or (NORMAL,) * len(tokens)
    if len(kinds) != len(tokens):
        raise ModelNotFound("Its vocabulary has another number of tokens than of their kinds. Download it again.")
    name = header.text("tokenizer.ggml.model")
    if name == "gpt2":
        model, steps = _byte_level(header, tokens)
    elif name == "llama":
        model, steps = _sentence_piece(header, tokens, kinds)
    else:
        raise ModelNotFound(
            f"Its tokenizer is of the kind {name or 'that is not named'!r}; byte-level BPE (gpt2) and SentencePiece (llama) "
            "are read. Choose another file, or the model's Hugging Face folder."
        )
    eats = "phi-3" in header.text("general.name").lower().replace("phi3", "phi-3") and PHI3_TOKENS.issubset(tokens)
    control = {*end_tokens(header), *(i for i, kind in enumerate(kinds) if kind == CONTROL or tokens[i] in ENDS_TEXT)}
    added = [
        {
            "id": number,
            "content": tokens[number],
            "single_word": False,
            "lstrip": False,
            "rstrip": eats and kind == CONTROL and tokens[number] not in PHI3_TOKENS - {"</s>"},
            "normalized": False,
            "special": number in control,
        }
        for number, kind in enumerate(kinds)
        if (kind == USER_DEFINED or number in control) and tokens[number]
    ]
    tokenizer = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    return {**tokenizer, **steps, "model": model}, _settings(header, tokens)


def spelled_vocabulary(model: Json, size: int) -> Json:
    """The model of a tokenizer.json without the byte tokens beyond the embeddings (see _byte_level)."""
    return {**model, "vocab": {text: number for text, number in model["vocab"].items() if number < size}}


def _texts(header: GgufHeader, key: str) -> tuple[str, ...]:
    value = header.values.get(key)
    return value if isinstance(value, tuple) and all(isinstance(each, str) for each in value) else ()


def _numbers(header: GgufHeader, key: str) -> tuple[Any, ...]:
    value = header.values.get(key)
    return value if isinstance(value, tuple) and not any(isinstance(each, str) for each in value) else ()


def _places(tokens: Sequence[str]) -> dict[str, int]:
    """Text -> id. Of two tokens with the same spelling the first, as in llama.cpp."""
    places: dict[str, int] = {}
    for number, text in enumerate(tokens):
        places.setdefault(text, number)
    return places


def _byte_level(header: GgufHeader, tokens: tuple[str, ...]) -> tuple[Json, Json]:
    pre = header.text("tokenizer.ggml.pre") or "default"
    if pre not in SPLITS:
        raise ModelNotFound(
            f"It splits text in the way called {pre!r}, which is not known here. Use the model's Hugging Face folder."
        )
    places = _places(tokens)
    # A byte that the vocabulary lacks separates its neighbours and is left out afterwards, as in llama.cpp.
    for character in sorted(set(tokenizers.pre_tokenizers.ByteLevel.alphabet()) - places.keys()):
        places[character] = len(places) + len(tokens)
    merges = []
    for merge in _texts(header, "tokenizer.ggml.merges"):
        left, _, right = merge.partition(" ")
        if left in places and right in places and left + right in places:
            merges.append([left, right])
    splits = [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
        for pattern in SPLITS[pre]
    ]
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": False,
        "byte_fallback": False,
        "ignore_merges": pre in WHOLE_WORDS,
        "vocab": places,
        "merges": merges,
    }
    pre_tokenizer = {"type": "Sequence", "pretokenizers": [*splits, bytes_]}
    return model, {"normalizer": None, "pre_tokenizer": pre_tokenizer, "decoder": bytes_}


def _sentence_piece(header: GgufHeader, tokens: tuple[str, ...], kinds: Sequence[int]) -> tuple[Json, Json]:
    scores = _numbers(header, "tokenizer.ggml.scores")
    if len(scores) != len(tokens):
        raise ModelNotFound("Its vocabulary has no score for each token (tokenizer.ggml.scores). Download it again.")
    places = _places(tokens)
    unknown = header.number(
        "tokenizer.ggml.unknown_token_id", next((i for i, k in enumerate(kinds) if k == UNKNOWN), 0)
    )
    opens_with_space = header.values.get("tokenizer.ggml.add_space_prefix", True) is not False
    replaced = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
    prepended = [{"type": "Prepend", "prepend": SPACE}] if opens_with_space else []
    decoders: list[Json] = [
        {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
        {"type": "ByteFallback"},
        {"type": "Fuse"},
    ]
    if opens_with_space:
        decoders.append({"type": "Strip", "content": " ", "start": 1, "stop": 0})
    model = {
        "type": "BPE",
        "dropout": None,
        "unk_token": tokens[unknown] if 0 <= unknown < len(tokens) else None,
        "continuing_subword_prefix": None,
        "end_of_word_suffix": None,
        "fuse_unk": True,
        "byte_fallback": True,
        "ignore_merges": False,
        "vocab": places,
        "merges": _merges(places, kinds, scores),
    }
    normalizer = {"type": "Sequence", "normalizers": [*prepended, replaced]}
    return model, {
        "normalizer": normalizer,
        "pre_tokenizer": None,
        "decoder": {"type": "Sequence", "decoders": decoders},
    }


MOST_SPELLED = 1 << 23
"""Maximum characters of all tokens together: every place in every token may be a merge. Gemma's 262,144 tokens have 2
million."""
LONGEST_TOKEN = 256
"""Characters; longer tokens are never built from merges here, which would take quadratic time."""


def _merges(places: dict[str, int], kinds: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Every way to make a token from two others, highest score first, as SentencePiece joins them."""
    ways = []
    for text, number in places.items():
        if kinds[number] in (NORMAL, USER_DEFINED) and 1 < len(text) <= LONGEST_TOKEN:
            ways += [
                (-scores[number], left, right, text[:cut], text[cut:])
                for cut in range(1, len(text))
                if (left := places.get(text[:cut])) is not None and (right := places.get(text[cut:])) is not None
            ]
    ways.sort(key=lambda way: way[:3])
    return [[first, second] for *_, first, second in ways]


def end_tokens(header: GgufHeader) -> list[int]:
    """Ids that end a completion, the file's own EOS first, including those with which its chat template ends turns."""
    tokens, template = _texts(header, "tokenizer.ggml.tokens"), header.text("tokenizer.chat_template")
    named = [header.number(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot", "eom")]
    turns = [i for i, text in enumerate(tokens) if text in ENDS_TEXT and text in template]
    return [number for number in dict.fromkeys([*named, *turns]) if 0 <= number < len(tokens)]


def _settings(header: GgufHeader, tokens: tuple[str, ...]) -> Json:
    """tokenizer_config.json: which tokens open, end and pad a text, and the chat template."""
    settings: Json = {}
    for name, key in (("bos_token", "bos"), ("eos_token", "eos"), ("unk_token", "unknown"), ("pad_token", "padding")):
        number = header.number(f"tokenizer.ggml.{key}_token_id", -1)
        if 0 <= number < len(tokens):
            settings[name] = tokens[number]
    opens = header.values.get("tokenizer.ggml.add_bos_token")
    usual = header.text("tokenizer.ggml.model") == "llama" or header.text("tokenizer.ggml.pre") in WHOLE_WORDS
    settings["add_bos_token"] = opens if isinstance(opens, bool) else usual
    if header.text("tokenizer.ggml.model") == "gpt2":
        settings[PRE_TOKENIZER] = header.text("tokenizer.ggml.pre") or "default"
    if template := header.text("tokenizer.chat_template"):
        settings["chat_template"] = template
    return settings


# A GGUF file's metadata as a Hugging Face config.json: the reverse of gguf_write.write_form.
#
# A family is a row of FAMILIES_READ. A model that llama.cpp computes but our own decoder does not is refused with a
# message.

ReadTensor = Callable[[str], NDArray[np.float32]]
"""Reads a small tensor of the file by its name there, as float32."""
OTHER_WAY = "Use another file, or the model's Hugging Face folder."
MOST = {"block_count": 1024, "embedding_length": 1 << 17, "feed_forward_length": 1 << 19, "head_count": 1 << 12}
"""Larger values are damage."""
ORIGINALS = (8192, 4096, 2048, 16384, 32768, 65536, 131072, 1024, 512, 256, 128, 64)
WAVES = ((1.0, 4.0), (1.0, 2.0), (1.0, 8.0))
"""Contexts, and low and high frequency factors, of models with Llama 3's stretched positions; the first of each are
Llama's own. A GGUF file holds only the result of computing with them (rope_freqs.weight)."""
LARGE_GEMMAS = {"gemma2": 46, "gemma3": 62}
"""Layers of the 27B models, whose attention llama.cpp scales by hidden / heads."""


@dataclass(frozen=True, slots=True)
class FamilyRead:
    """architecture, model_type: Hugging Face's. interleaved: rows of q and k are in llama.cpp's rotation order.
    offset: what the file adds to a norm's weight."""

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


def family_of(header: GgufHeader) -> FamilyRead:
    """Raises ModelNotFound for an unsupported family, naming the supported ones."""
    name = header.architecture
    if name not in FAMILIES_READ:
        raise ModelNotFound(
            f"Its architecture is {name or 'not named'}; of GGUF files {', '.join(FAMILIES_READ)} are read. {OTHER_WAY}"
        )
    if header.of_family("expert_count"):
        raise ModelNotFound(f"It is a mixture of experts, which is not read from GGUF files. {OTHER_WAY}")
    return FAMILIES_READ[name]


def config_json(header: GgufHeader, read: ReadTensor) -> Json:
    """The config. read: reads the few small tensors that say how positions are rotated.

    Raises ModelNotFound if a width is missing or impossible, or the model needs something that our own decoder does not
    compute.
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


def _width(header: GgufHeader, key: str, limit: str = "") -> int:
    value = header.of_family(key)
    if not 0 < value <= MOST[limit or key]:
        raise ModelNotFound(
            f"Its {header.architecture}.{key} is {value or 'missing'}: the file is damaged. Download it again."
        )
    return value


def _real(header: GgufHeader, key: str, default: float) -> float:
    value = header.values.get(f"{header.architecture}.{key}")
    number = float(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
    if not math.isfinite(number):
        raise ModelNotFound(f"Its {header.architecture}.{key} is no number: the file is damaged. Download it again.")
    return number


def _rope_scaling(header: GgufHeader, config: Json, names: set[str], read: ReadTensor) -> Json:
    """How rotary embeddings are stretched; {} if they are not."""
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
    """The settings that explain the divisors of each frequency (head_dim / 2,)."""
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


def _family_settings(header: GgufHeader, config: Json) -> Json:
    """The settings that only one family has."""
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


def _gemma_settings(header: GgufHeader, config: Json, window: int) -> Json:
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


# The weights of a GGUF file by their Hugging Face names, float32, a piece at a time: nothing is copied to the disk.
#
# The reverse of gguf_write.write_gguf: rows of q and k return to Hugging Face's order, and norms lose what llama.cpp
# added.

Float32 = NDArray[np.float32]
PIECE = 1 << 22
"""Weights that are dequantised at once: 16 MB of float32."""
_PLAIN = {"F32": "<f4", "F16": "<f2", "F64": "<f8"}
_SKIPPED = ("rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight")
"""Tensors whose content is already in the config."""
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
"""Name of a layer's tensor in a GGUF file -> in a Hugging Face folder; _BOTH for layers with norms before and after."""
_BOTH = {"ffn_norm": "pre_feedforward_layernorm"}
_OUTSIDE = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}


def hf_name(header: GgufHeader, name: str) -> str | None:
    """The Hugging Face name of a tensor; None for one that the config replaces. Raises ModelNotFound for an unknown
    one."""
    if name in _SKIPPED:
        return None
    stem, _, suffix = name.rpartition(".")
    if suffix in ("weight", "bias"):
        if stem in _OUTSIDE:
            return f"{_OUTSIDE[stem]}.{suffix}"
        block, _, inner = stem.removeprefix("blk.").partition(".")
        known = {**_LAYER, **(_BOTH if header.architecture in ("gemma2", "gemma3") else {})}
        if header.architecture == "phi3" and inner == "ffn_up":
            return f"model.layers.{block}.mlp.gate_up_proj.{suffix}"
        if stem.startswith("blk.") and block.isdigit() and inner in known:
            return f"model.layers.{block}.{known[inner]}.{suffix}"
    raise ModelNotFound(
        f"It holds a tensor that is not known here ({name[:80]!r}), so it cannot be read as it is meant."
    )


def require_readable(path: Path, header: GgufHeader) -> None:
    """Raise ModelNotFound unless every tensor lies within the file, overlaps no other, and has a type that can be
    dequantised here."""
    if not header.is_whole:
        raise ModelNotFound(
            f"{path} is cut off: it has {header.size:,} bytes and its tensors need more. Download it again."
        )
    import gguf  # here and below: a machine that reads no such file does not need the package

    for tensor in header.tensors:
        name, block, _ = TENSOR_TYPES.get(tensor.type, ("", 1, 0))
        if not name or (name not in _PLAIN and tensor.type not in gguf.quants._type_traits):
            shown = name or f"number {tensor.type}"
            raise ModelNotFound(
                f"{path} has weights of the type {shown}, which cannot be dequantised here. Use a file of another quantisation."
            )
        if tensor.shape[0] % block:
            raise ModelNotFound(
                f"{path} is damaged: {tensor.name[:80]!r} has rows of {tensor.shape[0]} weights. Download it again."
            )
    by_place = sorted(header.tensors, key=lambda tensor: tensor.offset)
    for before, behind in itertools.pairwise(by_place):
        if before.offset + before.bytes > behind.offset:
            raise ModelNotFound(
                f"{path} is damaged: {before.name[:80]!r} and {behind.name[:80]!r} lie in the same place. Download it again."
            )


def tensor_shape(tensor: TensorEntry) -> tuple[int, ...]:
    """The shape in Hugging Face's order: rows first."""
    return tuple(reversed(tensor.shape))


def read_rows(data: Any, header: GgufHeader, tensor: TensorEntry, begin: int, end: int) -> Float32:
    """Rows begin to end of a tensor, (end - begin, row), as they lie in the file. data: its bytes (uint8)."""
    name, block, size = TENSOR_TYPES[tensor.type]
    width = tensor.shape[0] // block * size
    start = header.data + tensor.offset
    raw = np.asarray(data[start + begin * width : start + end * width]).reshape(end - begin, width)
    if name in _PLAIN:
        return np.frombuffer(raw.tobytes(), np.dtype(_PLAIN[name])).astype(np.float32).reshape(end - begin, -1)
    import gguf

    with np.errstate(all="ignore"):  # of a damaged file; that its weights are no numbers is said where they are used
        dequantised: Float32 = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType(tensor.type))
    return dequantised


@dataclass(frozen=True, slots=True)
class FileBytes:
    """The bytes of an open file, read where they are used. Not mapped: a mapped file that is cut off or overwritten meanwhile
    ends the whole process with a bus error."""

    path: Path
    file: IO[bytes]

    def __getitem__(self, span: slice) -> NDArray[np.uint8]:
        """Raises ModelNotFound where the file ends before."""
        self.file.seek(span.start)
        raw = self.file.read(span.stop - span.start)
        if len(raw) < span.stop - span.start:
            raise ModelNotFound(
                f"{self.path} was cut off while it was read: another program changed it. Copy or download it again."
            )
        return np.frombuffer(raw, np.uint8)


def iter_gguf_pieces(path: Path) -> Iterator[tuple[str, tuple[int, ...], int, Float32]]:
    """(Hugging Face name, shape, number of the first weight, float32 weights (n,)) of every tensor, a piece at a time.

    Raises ModelNotFound.
    """
    header = read_header(path)
    require_readable(path, header)
    family = family_of(header)
    with open_file(path) as file:
        data = FileBytes(path, file)
        for tensor in header.tensors:
            name = hf_name(header, tensor.name)
            if name is None:
                continue
            shape = tensor_shape(tensor)
            rows = prod(tensor.shape[1:])
            if _is_permuted(family, name):
                whole = _usual_order(read_rows(data, header, tensor, 0, rows), _heads(header, name), len(shape) == 1)
                yield name, shape, 0, whole.reshape(-1)
                continue
            step = max(1, PIECE // tensor.shape[0])
            for begin in range(0, rows, step):
                values = read_rows(data, header, tensor, begin, min(rows, begin + step)).reshape(-1)
                if family.offset and len(shape) == 1 and "norm" in name:
                    values = values - np.float32(family.offset)
                yield name, shape, begin * tensor.shape[0], values


def iter_gguf_shapes(path: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(Hugging Face name, shape) of every tensor, from the header alone. Raises ModelNotFound."""
    header = read_header(path)
    for tensor in header.tensors:
        name = hf_name(header, tensor.name)
        if name is not None:
            yield name, tensor_shape(tensor)


def iter_gguf_tensors(path: Path) -> Iterator[tuple[str, Float32]]:
    """(Hugging Face name, float32 array) of every tensor, one at a time. Raises ModelNotFound."""
    name, parts, whole = "", list[Float32](), tuple[int, ...]()
    for label, shape, _, values in iter_gguf_pieces(path):
        if label != name and parts:
            yield name, np.concatenate(parts).reshape(whole)
            parts = []
        name, whole = label, shape
        parts.append(values)
    if parts:
        yield name, np.concatenate(parts).reshape(whole)


def small_tensor(path: Path, header: GgufHeader, name: str) -> Float32:
    """One vector of the file by its name there. Raises ModelNotFound."""
    tensor = next((each for each in header.tensors if each.name == name), None)
    if tensor is None or len(tensor.shape) != 1 or tensor.elements > PIECE:
        raise ModelNotFound(f"{path} is damaged: {name!r} is no vector. Download it again.")
    # read, not mapped: a map would count in full against the memory limit of the child that calls this (see inspection)
    with open_file(path) as file:
        file.seek(header.data + tensor.offset)
        raw = np.frombuffer(file.read(tensor.bytes), np.uint8)
    return read_rows(raw, replace(header, data=-tensor.offset), tensor, 0, 1).reshape(-1)


def _is_permuted(family: FamilyRead, name: str) -> bool:
    return family.interleaved and (".q_proj." in name or ".k_proj." in name)


def _heads(header: GgufHeader, name: str) -> int:
    heads = header.of_family("attention.head_count")
    return heads if ".q_proj." in name else header.of_family("attention.head_count_kv") or heads


def _usual_order(rows: Float32, heads: int, vector: bool) -> Float32:
    """Rows (heads * d, ...) in which llama.cpp's neighbouring pairs return to Hugging Face's order: (i, i + d / 2) of a
    head."""
    flat = rows.reshape(-1) if vector else rows
    if not heads or flat.shape[0] % (2 * heads):
        raise ModelNotFound("Its projections do not fit its number of heads: the file is damaged. Download it again.")
    pairs = flat.reshape(heads, flat.shape[0] // heads // 2, 2, *flat.shape[1:])
    return pairs.swapaxes(1, 2).reshape(flat.shape)
