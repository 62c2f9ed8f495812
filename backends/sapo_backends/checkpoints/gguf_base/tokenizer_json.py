"""The vocabulary of a GGUF file as tokenizer.json and tokenizer_config.json: the reverse of checkpoints.gguf.vocabulary.

Text becomes the tokens that llama.cpp makes of it. A file names how text is split before it is merged; the patterns behind
the names are llama.cpp's (src/llama-vocab.cpp).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tokenizers

from sapo_backends.checkpoints.gguf_base.header import Header
from sapo_backends.errors import ModelNotFound

Json = dict[str, Any]
NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""llama_token_type."""
PRE_TOKENIZER = "gguf_pre_tokenizer"
"""Entry of tokenizer_config.json: the name by which llama.cpp knows how text is split, for the way back."""
SPACE = "▁"
"""SentencePiece's."""
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
"""Where a word that is a token stays whole, merged or not (ignore_merges)."""


PHI3_TOKENS = frozenset({"<unk>", "<s>", "</s>", "<|endoftext|>"})
"""What llama.cpp knows a Phi-3 by, whose other control tokens take the white space behind them along."""
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
"""What llama.cpp takes for a control token wherever a vocabulary has it, whatever the file says its kind is."""


def tokenizer_files(header: Header) -> tuple[Json, Json]:
    """(tokenizer.json, tokenizer_config.json). header: read with its vocabulary. Raises ModelNotFound that names what is
    missing, or what is not known here."""
    tokens = _texts(header, "tokenizer.ggml.tokens")
    if not tokens:
        raise ModelNotFound("It holds no vocabulary (tokenizer.ggml.tokens). Choose a complete model file.")
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
    whole = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "post_processor": None}
    return {**whole, **steps, "model": model}, _settings(header, tokens)


def spelled_vocabulary(model: Json, size: int) -> Json:
    """The model of a tokenizer.json without the bytes that stand beyond the embeddings (see _byte_level)."""
    return {**model, "vocab": {text: number for text, number in model["vocab"].items() if number < size}}


def _texts(header: Header, key: str) -> tuple[str, ...]:
    value = header.values.get(key)
    return value if isinstance(value, tuple) and all(isinstance(each, str) for each in value) else ()


def _numbers(header: Header, key: str) -> tuple[Any, ...]:
    value = header.values.get(key)
    return value if isinstance(value, tuple) and not any(isinstance(each, str) for each in value) else ()


def _places(tokens: Sequence[str]) -> dict[str, int]:
    """Text -> number. Of two tokens that are spelled alike the first, as llama.cpp finds it."""
    places: dict[str, int] = {}
    for number, text in enumerate(tokens):
        places.setdefault(text, number)
    return places


def _byte_level(header: Header, tokens: tuple[str, ...]) -> tuple[Json, Json]:
    pre = header.text("tokenizer.ggml.pre") or "default"
    if pre not in SPLITS:
        raise ModelNotFound(
            f"It splits text in the way called {pre!r}, which is not known here. Use the model's Hugging Face folder."
        )
    places = _places(tokens)
    # A byte that the vocabulary lacks keeps its neighbours apart, and is left out afterwards, as in llama.cpp.
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


def _sentence_piece(header: Header, tokens: tuple[str, ...], kinds: Sequence[int]) -> tuple[Json, Json]:
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


LONGEST_TOKEN = 256
"""Characters; what is longer is never merged out of pieces here, which would take time that grows with the square."""


def _merges(places: dict[str, int], kinds: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Every way to make a token of two others, what has the highest score first, as SentencePiece joins them."""
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


def end_tokens(header: Header) -> list[int]:
    """Ids that end a completion, the one that the file names first; with those by which its chat template ends turns."""
    tokens, template = _texts(header, "tokenizer.ggml.tokens"), header.text("tokenizer.chat_template")
    named = [header.number(f"tokenizer.ggml.{name}_token_id", -1) for name in ("eos", "eot", "eom")]
    turns = [i for i, text in enumerate(tokens) if text in ENDS_TEXT and text in template]
    return [number for number in dict.fromkeys([*named, *turns]) if 0 <= number < len(tokens)]


def _settings(header: Header, tokens: tuple[str, ...]) -> Json:
    """tokenizer_config.json: which tokens open, end and fill a text, and the chat template."""
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
