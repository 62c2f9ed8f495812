"""A `tokenizer.json` in the terms of a GGUF file: tokens, their kinds, and how text is split into them.

Our own llama.cpp engine passes ids and never uses this; other programs that open an exported file do.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sapo_backends.base import BackendError
from sapo_backends.checkpoints.chat_template import source_of
from sapo_backends.checkpoints.gguf_base.tokenizer_json import PRE_TOKENIZER, spelled_vocabulary
from sapo_backends.checkpoints.gguf_base.view import gguf_of
from sapo_backends.checkpoints.tokenizer import HfTokenizer, Json, read_json

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
"""llama_token_type."""
SPACE = "▁"
"""SentencePiece's."""
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_BEFORE, _ENDING = r"[^\r\n\p{L}\p{N}]?", "(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT4O = rf"{_BEFORE}{_UPPER}*{_LOWER}+{_ENDING}|{_BEFORE}{_UPPER}+{_LOWER}*{_ENDING}|\p{{N}}{{1,3}}{_REST}"
_NAMES = {
    _QWEN2: ("qwen2", ""),
    _QWEN2.replace(r"\p{N}|", r"\p{N}{1,3}|", 1): ("dbrx", "llama-bpe"),
    _GPT4O: ("gpt-4o", ""),
    _GPT4O.replace(_ENDING, "").replace("{1,3}", ""): ("", "tekken"),
}
"""Splitting patterns of the files -> llama.cpp's names: for words that are merged, and for words that are tokens as they
are, merged or not (ignore_merges). Its own patterns for the last two, of Phi-4-mini and Mistral Nemo, take combining marks
for no letters."""


@dataclass(frozen=True, slots=True)
class ByteLevel:
    """Pairs of tokens in the order in which they are joined. pre: the name under which llama.cpp knows the pre-tokenizer, ""
    when it has none for it."""

    merges: list[str]
    pre: str


@dataclass(frozen=True, slots=True)
class SentencePiece:
    """What is joined first has the highest score. opens_with_space: one is put before text that begins or follows a control
    token; None when text is split in a way that llama.cpp's SentencePiece does not know."""

    scores: list[float]
    opens_with_space: bool | None


@dataclass(frozen=True, slots=True)
class GgufTokenizer:
    """adds_bos: every text begins with bos, not only where the chat template writes it. eats_space: control tokens take the
    white space behind them along, as Phi-3's do."""

    tokens: list[str]
    kinds: list[int]
    way: ByteLevel | SentencePiece
    eos: int
    pad: int
    bos: int | None
    adds_bos: bool
    eats_space: bool
    chat_template: str

    @property
    def is_known(self) -> bool:
        """Whether llama.cpp splits text as the file says."""
        return bool(self.way.pre) if isinstance(self.way, ByteLevel) else self.way.opens_with_space is not None


def _steps(part: Json | None, name: str = "pretokenizers") -> list[Json]:
    if not part:
        return []
    return list(part.get(name, [])) if part.get("type") == "Sequence" else [part]


def pre_tokenizer(pre: Json | None, whole_words: bool) -> str:
    """llama.cpp's name for the pre_tokenizer and ignore_merges entries of a tokenizer.json; "" when it has none."""
    steps = _steps(pre)
    patterns = [step.get("pattern", {}).get("Regex", "") for step in steps if step.get("type") == "Split"]
    if patterns:
        return _NAMES.get(patterns[0], ("", ""))[whole_words] if len(patterns) == 1 else ""
    if whole_words:
        return ""
    kinds = [step.get("type") for step in steps]
    if kinds == ["Digits", "ByteLevel"] and steps[0].get("individual_digits"):
        return "smollm"
    return "gpt-2" if kinds == ["ByteLevel"] and steps[0].get("use_regex", True) else ""


def _merges(pairs: Iterable[Any]) -> list[str]:
    """Newer files write ["a", "b"], older ones "a b"."""
    return [pair if isinstance(pair, str) else " ".join(pair) for pair in pairs]


def _opens_with_space(data: Json, chat: bool) -> bool | None:
    """See SentencePiece. chat: whether texts begin with a chat template's control token."""
    changes = _steps(data.get("normalizer"), "normalizers")
    splits = [step for step in _steps(data.get("pre_tokenizer")) if step.get("pattern") != {"String": " "}]
    if not changes and len(splits) == 1 and splits[0].get("type") == "Metaspace" and splits[0].get("split") is False:
        return {"always": True, "never": False, "first": not chat}.get(splits[0].get("prepend_scheme", ""))
    *before, last = changes or [{}]
    prepended = [{"type": "Prepend", "prepend": SPACE}]
    if (
        splits
        or last != {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
        or before not in ([], prepended)
    ):
        return None
    return before == prepended


def _scores(model: Json, tokens: list[str]) -> list[float]:
    """Of each token: the earlier a merge makes it, the higher. What none makes comes last."""
    ranks: dict[str, int] = {}
    for rank, pair in enumerate(model["merges"]):
        ranks.setdefault("".join(pair) if not isinstance(pair, str) else pair.replace(" ", ""), rank)
    return [-float(ranks.get(token, len(model["merges"]))) for token in tokens]


def gguf_tokenizer(folder: Path, vocabulary: int) -> GgufTokenizer:
    """Read a folder's tokenizer, padded with unused tokens to the model's vocabulary.

    Raises BackendError when it is no BPE (the only kind written here).
    """
    data, settings = read_json(folder / "tokenizer.json"), read_json(folder / "tokenizer_config.json")
    model = data.get("model", {})
    if model.get("type") != "BPE":
        raise BackendError(f"{folder} has no BPE tokenizer; only those can be written as GGUF.")
    if gguf_of(folder) is not None:
        model = spelled_vocabulary(model, vocabulary)
    pieces, ours = bool(model.get("byte_fallback")), HfTokenizer(folder)
    added = data.get("added_tokens", [])
    if max(model["vocab"].values(), default=0) >= vocabulary:
        raise BackendError(
            f"{folder} has {vocabulary} embeddings, fewer than its tokenizer has tokens. Download it again."
        )
    tokens = [f"[PAD{i}]" for i in range(vocabulary)]
    kinds = [UNUSED] * vocabulary
    for text, i in model["vocab"].items():
        tokens[i], kinds[i] = text, BYTE if pieces and _BYTE.fullmatch(text) else NORMAL
    for token in added:
        i, text = int(token["id"]), token["content"]
        if i < vocabulary:
            special = token.get("special") or i in ours.eos_ids
            # llama.cpp looks for the app's own tokens before it writes spaces as SentencePiece does
            tokens[i] = text.replace(SPACE, " ") if pieces and not special and token.get("normalized") else text
            kinds[i] = CONTROL if special else USER_DEFINED
    if pieces and model.get("unk_token") in model["vocab"]:
        kinds[model["vocab"][model["unk_token"]]] = UNKNOWN
    bos = settings.get("bos_token")
    bos = bos.get("content") if isinstance(bos, dict) else bos
    template = source_of(folder, settings, otherwise="")
    return GgufTokenizer(
        tokens=tokens,
        kinds=kinds,
        way=SentencePiece(_scores(model, tokens), _opens_with_space(data, bool(template)))
        if pieces
        # llama.cpp wants at least one merge; control tokens never take part in one.
        else ByteLevel(
            _merges(model["merges"]) or [f"{tokens[ours.eot_id]} {tokens[ours.eot_id]}"],
            settings.get(PRE_TOKENIZER) or pre_tokenizer(data.get("pre_tokenizer"), bool(model.get("ignore_merges"))),
        ),
        eos=ours.eot_id,
        pad=ours.pad_id,
        bos=ours.opening[0] if ours.opening else tokens.index(bos) if bos in tokens else None,
        adds_bos=len(ours.opening) == 1,
        eats_space=any(token.get("rstrip") for token in added),
        chat_template=template,
    )
