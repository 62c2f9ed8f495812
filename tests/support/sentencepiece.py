"""Tokenizers as Llama 2, Mistral, Phi-3 and Gemma have them: SentencePiece's BPE in a `tokenizer.json`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers

SPACE = "▁"
_ESCAPE = {"type": "Replace", "pattern": {"String": " "}, "content": SPACE}
_PREPEND = ({"type": "Sequence", "normalizers": [{"type": "Prepend", "prepend": SPACE}, _ESCAPE]}, None)
WAYS: dict[str, tuple[Any, Any]] = {
    "llama2": _PREPEND,
    "phi3": _PREPEND,
    "mistral": (None, {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": "first", "split": False}),
    "gemma": (
        _ESCAPE,
        {"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious", "invert": False},
    ),
}
"""normalizer and pre_tokenizer."""
CONTROL = ("<unk>", "<s>", "</s>", "<|endoftext|>", "<|user|>", "<|end|>")
OWN = ("\n\n", SPACE * 2, SPACE * 4)
"""Tokens that a Gemma names itself: matched as they stand, before anything is joined."""


def write_tokenizer(folder: Path, text: str, way: str, size: int = 640) -> None:
    """tokenizer.json and tokenizer_config.json over pieces learned from `text`: as SentencePiece leaves them, every pair of
    pieces that makes a piece is a merge, in the order of what they make."""
    own = OWN if way == "gemma" else ()
    names = [*CONTROL, *(f"<0x{byte:02X}>" for byte in range(256)), *own]
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.Metaspace()
    learner.train_from_iterator([text], trainers.BpeTrainer(vocab_size=size - len(names), show_progress=False))
    learned = sorted(learner.get_vocab().items(), key=lambda item: item[1])
    vocabulary = {name: i for i, name in enumerate([*names, *(name for name, _ in learned if name not in names)])}
    merges = [
        [piece[:i], piece[i:]]
        for piece, _ in learned
        for i in range(1, len(piece))
        if piece[:i] in vocabulary and piece[i:] in vocabulary
    ]
    normalizer, pre_tokenizer = WAYS[way]
    added = [
        {"id": vocabulary[name], "content": name, "special": name in CONTROL, "normalized": name not in CONTROL}
        | {"single_word": False, "lstrip": False}
        | {"rstrip": way == "phi3" and name in ("</s>", "<|user|>", "<|end|>")}
        for name in (*CONTROL, *own)
    ]
    data = {
        "version": "1.0",
        "added_tokens": added,
        "normalizer": normalizer,
        "pre_tokenizer": pre_tokenizer,
        "decoder": {
            "type": "Sequence",
            "decoders": [
                {"type": "Replace", "pattern": {"String": SPACE}, "content": " "},
                {"type": "ByteFallback"},
                {"type": "Fuse"},
            ],
        },
        "model": {"type": "BPE", "vocab": vocabulary, "merges": merges, "byte_fallback": True}
        | {"unk_token": "<unk>", "fuse_unk": True},
    }
    (folder / "tokenizer.json").write_text(json.dumps(data), "utf-8")
    template = "{{ bos_token }}{% for m in messages %}<|user|>\n{{ m.content }}<|end|>\n{% endfor %}<|user|>"
    settings = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "chat_template": template}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
