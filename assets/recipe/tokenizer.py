"""A byte-level BPE tokenizer of 1024 tokens in which every digit is a token of its own.

It splits text as Qwen2 does, the pre-tokenizer that transformers gives every model of that type and that llama.cpp knows
as "qwen2". The merges are not the usual greedy ones: every merge grows a frequent word from its left end (" " + "f",
" f" + "i" ...), and no merge lies inside a word. So a word of lower-case letters without a space before it, such as the
answer of a BF program, always falls into letters, as its worked steps do; greedy merges cut such words in places that a
small model cannot guess. Runs of one symbol merge by powers of two, which makes a run's length readable.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

VOCAB_SIZE = 1024
END, START, STOP = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] != 'system' %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
"""ChatML without the system message: the starter was trained on user and assistant turns only."""
_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_APART = r"\d| ?[^\s\w]|\n"
_RUNS = "+-"
_ANSWER = (("n", "s"), ("ns", "w"), ("a", "nsw"), ("answ", "e"), ("answe", "r"), ("<", "answer"))
"""The one lower-case word without a space that is worth a token; begun at its rarest pair."""
_LOWER = re.compile(r"[a-z]+")


def _splitter(*patterns: str) -> pre_tokenizers.PreTokenizer:
    splits = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*splits, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def _counts(texts: Iterable[str]) -> Counter[str]:
    """Pieces of the text, bytes written as the byte-level alphabet writes them, with how often they occur."""
    splitter = _splitter(_APART, _QWEN2)
    return Counter(piece for text in texts for piece, _ in splitter.pre_tokenize_str(text))


def _merges(counts: Counter[str], room: int) -> Iterator[tuple[str, str]]:
    """Up to `room` merges: the fixed ones, then the words that save most tokens, each from left to right."""
    made: dict[tuple[str, str], None] = dict.fromkeys(_ANSWER)
    for symbol in _RUNS:
        made.update(dict.fromkeys((symbol * n, symbol * n) for n in (1, 2, 4, 8)))
    made.update(dict.fromkeys(("Ġ", c) for c in "abcdefghijklmnopqrstuvwxyz"))
    words = sorted(counts, key=lambda w: (-counts[w] * (len(w) - 1) / len(w), w))
    for word in words:
        if len(word) < 2 or _LOWER.fullmatch(word):
            continue
        chain = [(word[:n], word[n]) for n in range(1, len(word))]
        if len(made.keys() | set(chain)) <= room:
            made.update(dict.fromkeys(chain))
    return iter(made)


def train(texts: Iterable[str]) -> Tokenizer:
    """Specials first, then the 256 bytes, then one token a merge."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([END, START, STOP, *alphabet])}
    merges = list(_merges(_counts(texts), VOCAB_SIZE - len(vocabulary)))
    for left, right in merges:
        vocabulary.setdefault(left + right, len(vocabulary))
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = _splitter(_QWEN2)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in (END, START, STOP)])
    return tokenizer


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The number of a special token. Raises ValueError when the tokenizer is not one of ours."""
    number = tokenizer.token_to_id(token)
    if number is None:
        raise ValueError(f"The tokenizer has no token {token}: it was not made by this recipe.")
    return number


def prompt_text(question: str) -> str:
    """What the chat template makes of one question."""
    return f"{START}user\n{question}{STOP}\n{START}assistant\n"


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """tokenizer.json and the configuration that transformers reads."""
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    special = {str(tokenizer.token_to_id(t)): AddedToken(t, special=True) for t in (END, START, STOP)}
    config = {
        "tokenizer_class": "Qwen2Tokenizer",
        "added_tokens_decoder": {
            key: {
                "content": token.content,
                "lstrip": False,
                "normalized": False,
                "rstrip": False,
                "single_word": False,
                "special": True,
            }
            for key, token in special.items()
        },
        "additional_special_tokens": [START, STOP],
        "bos_token": None,
        "eos_token": STOP,
        "pad_token": END,
        "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=1) + "\n", encoding="utf-8")
