"""A `tokenizer.json` in the terms of a GGUF file: tokens, their kinds, merges and the name of the pre-tokenizer.

Our own llama.cpp engine passes ids and never uses this; other programs that open an exported file do.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_backends.base import BackendError
from sapo_backends.checkpoints.chat_template import source_of
from sapo_backends.checkpoints.tokenizer import HfTokenizer, Json, read_json

NORMAL, CONTROL, USER_DEFINED, UNUSED = 1, 3, 4, 5
"""llama_token_type."""
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_NAMES = {_QWEN2: "qwen2", _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1): "llama-bpe"}
"""Splitting patterns of the files that llama.cpp knows by name."""


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """pre: the name under which llama.cpp knows the pre-tokenizer, "" when it has none for it. adds_bos: every text begins
    with bos, not only where the chat template writes it."""

    tokens: list[str]
    kinds: list[int]
    merges: list[str]
    pre: str
    eos: int
    pad: int
    bos: int | None
    adds_bos: bool
    chat_template: str


def _steps(pre: Json | None) -> list[Json]:
    if not pre:
        return []
    return list(pre.get("pretokenizers", [])) if pre.get("type") == "Sequence" else [pre]


def pre_tokenizer(pre: Json | None) -> str:
    """llama.cpp's name for the pre_tokenizer entry of a tokenizer.json; "" when it has none."""
    steps = _steps(pre)
    patterns = [step.get("pattern", {}).get("Regex", "") for step in steps if step.get("type") == "Split"]
    if patterns:
        return _NAMES.get(patterns[0], "") if len(patterns) == 1 else ""
    kinds = [step.get("type") for step in steps]
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    return "gpt-2" if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) else ""


def _merges(pairs: Iterable[Any]) -> list[str]:
    """Newer files write ["a", "b"], older ones "a b"."""
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]


def gguf_tokenizer(folder: Path, vocabulary: int) -> GgufTokenizer:
    """Read a folder's tokenizer, padded with unused tokens to the model's vocabulary.

    Raises BackendError when it is no byte-level BPE (the only kind written here).
    """
    data, settings = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    model = data.get("model", {})
    if model.get("type") != "BPE" or model.get("byte_fallback"):
        raise BackendError(f"{folder} has no byte-level BPE tokenizer; only those can be written as GGUF.")
    ours = HfTokenizer(folder)
    tokens = [f"[PAD{i}]" for i in range(vocabulary)]
    kinds = [UNUSED] * vocabulary
    for text, i in model["vocab"].items():
        tokens[i], kinds[i] = text, NORMAL
    for token in data.get("added_tokens", []):
        i = int(token["id"])
        if i < vocabulary:
            special = token.get("special") or i in ours.eos_ids
            tokens[i], kinds[i] = token["content"], CONTROL if special else USER_DEFINED
    bos = settings.get("bos_token")
    bos = bos.get("content") if isinstance(bos, dict) else bos
    return GgufTokenizer(
        tokens=tokens,
        kinds=kinds,
        # llama.cpp wants at least one merge; control tokens never take part in one.
        merges=_merges(model["merges"]) or [f"{tokens[ours.eot_id]} {tokens[ours.eot_id]}"],
        pre=pre_tokenizer(data.get("pre_tokenizer")),
        eos=ours.eot_id,
        pad=ours.pad_id,
        bos=ours.opening[0] if ours.opening else tokens.index(bos) if bos in tokens else None,
        adds_bos=len(ours.opening) == 1,
        chat_template=source_of(folder, settings, otherwise=""),
    )
