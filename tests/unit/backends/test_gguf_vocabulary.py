"""Tokenizers in a GGUF file: llama.cpp splits text as the trainer does."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.benchmarks.shapes import SHAPES, write_model
from tests.support.sentencepiece import WAYS, write_tokenizer
from tokenizers import Regex, Tokenizer, pre_tokenizers, trainers

from sapo_backends.checkpoints.gguf_write import gguf_tokenizer, require_writable, shown_name, write_gguf
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.errors import BackendError

TEXT = (Path(__file__).parents[3] / "README.md").read_text("utf-8")
SHAPE = replace(SHAPES["tiny"], vocabulary=704)
PARTS = [*"  \n\tabcdeß😀<>|0123", "  ", "    ", "\n\n", "the ", "<0x0A>", "ing", " swarm", "\u0301", "Of", "IT's"]
WORD = "qzx"
LLAMA3 = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|"
    r"\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
WORDS = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
BYTE_LEVEL: dict[str, tuple[Any, ...]] = {
    "gpt-2": (WORDS,),
    "smollm": (pre_tokenizers.Digits(individual_digits=True), WORDS),
    "qwen2": (pre_tokenizers.Split(Regex(LLAMA3.replace("{1,3}", "")), "isolated"), BYTES),
    "llama3": (pre_tokenizers.Split(Regex(LLAMA3), "isolated"), BYTES),
    "gpt-4o": (pre_tokenizers.Split(Regex(GPT4O), "isolated"), BYTES),
    "tekken": (pre_tokenizers.Split(Regex(TEKKEN), "isolated"), BYTES),
}
UNKNOWN = {("gpt-2", True), ("smollm", True), ("qwen2", True), ("gpt-4o", True), ("tekken", False)}
"""With these llama.cpp has no name, for words that are tokens as they are or for words that are merged."""
MARK = "\u0301"


def texts() -> list[str]:
    """Of pieces that splitting is hard for, and out of TEXT."""
    rng = random.Random(0)
    found = ["".join(rng.choices(PARTS, k=rng.randrange(1, 40))) for _ in range(200)]
    return found + [TEXT[i : i + rng.randrange(1, 300)] for i in rng.choices(range(len(TEXT)), k=200)]


def made(folder: Path, way: str) -> Path:
    folder.mkdir()
    write_model(folder, SHAPE, architecture="llama")
    write_tokenizer(folder, TEXT, way)
    return folder


def byte_level(folder: Path, steps: Sequence[Any], whole_words: bool) -> Path:
    """A tokenizer of bytes learned from TEXT, and one word that no merge makes."""
    folder.mkdir()
    write_model(folder, SHAPE, architecture="llama")
    learner = Tokenizer.from_file(str(folder / "tokenizer.json"))
    learner.pre_tokenizer = pre_tokenizers.Sequence(list(steps))
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    learner.train_from_iterator(
        [TEXT], trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    )
    data = json.loads(learner.to_str())
    model = data["model"] | {"ignore_merges": whole_words}
    model["vocab"] |= {WORD: len(model["vocab"])}
    taken = len(model["vocab"])
    added = [{**token, "id": taken + i} for i, token in enumerate(data["added_tokens"])]
    (folder / "tokenizer.json").write_text(json.dumps({**data, "model": model, "added_tokens": added}), "utf-8")
    return folder


def change(folder: Path, **parts: Any) -> None:
    file = folder / "tokenizer.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), **parts}), "utf-8")


@pytest.mark.parametrize("way", WAYS)
def test_llama_cpp_splits_text_into_the_same_pieces(tmp_path: Path, way: str) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    folder = made(tmp_path / "model", way)
    write_gguf(folder, tmp_path / "mine.gguf", "F32")
    theirs = llama_cpp.Llama(str(tmp_path / "mine.gguf"), vocab_only=True, verbose=False)
    ours = HfTokenizer(folder)
    for text in texts():
        chat = f"<s><|user|>\n{text}<|end|>\n<|user|>"
        found = list(theirs.tokenize(chat.encode(), add_bos=False, special=True))
        assert found == ours.encode_chat([{"role": "user", "content": text}]), repr(text)
    assert theirs.detokenize(ours.encode_text("the 😀")).decode().strip() == "the 😀"


@pytest.mark.parametrize("whole_words", [False, True])
@pytest.mark.parametrize("way", BYTE_LEVEL)
def test_llama_cpp_splits_text_into_the_same_bytes_where_it_knows_the_way(
    tmp_path: Path, way: str, whole_words: bool
) -> None:
    llama_cpp = pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    folder = byte_level(tmp_path / "model", BYTE_LEVEL[way], whole_words)
    if (way, whole_words) in UNKNOWN:
        with pytest.raises(BackendError, match="no name for the way"):
            require_writable(folder)
        return
    write_gguf(folder, tmp_path / "mine.gguf", "F32")
    theirs = llama_cpp.Llama(str(tmp_path / "mine.gguf"), vocab_only=True, verbose=False)
    ours = HfTokenizer(folder)
    for text in [*texts(), f"{WORD} b{WORD}", "BigWord's IT'S HTTPServer 1234567 a/b//\n/c"]:
        if MARK in text and way in ("gpt-4o", "tekken"):
            continue  # llama.cpp takes a combining mark for no letter there
        assert list(theirs.tokenize(text.encode(), add_bos=False)) == ours.encode_text(text), repr(text)


def test_a_way_of_splitting_that_llama_cpp_does_not_know_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "model", "mistral")
    require_writable(folder)
    change(folder, pre_tokenizer={**WAYS["mistral"][1], "split": True})
    with pytest.raises(BackendError, match="no name for the way"):
        require_writable(folder)
    change(folder, pre_tokenizer=None, normalizer={"type": "NFKC"})
    with pytest.raises(BackendError, match="no name for the way"):
        require_writable(folder)


def test_a_tokenizer_that_is_no_bpe_or_has_more_tokens_than_embeddings_is_refused(tmp_path: Path) -> None:
    folder = made(tmp_path / "model", "llama2")
    with pytest.raises(BackendError, match="fewer than its tokenizer has tokens"):
        gguf_tokenizer(folder, 300)
    change(folder, model={"type": "WordLevel", "vocab": {"</s>": 0}, "unk_token": "</s>"})
    with pytest.raises(BackendError, match="no BPE"):
        gguf_tokenizer(folder, 704)


def test_only_a_model_whose_control_tokens_eat_white_space_is_called_phi_3(tmp_path: Path) -> None:
    """llama.cpp goes by the name, and cannot load what is called so without Phi-3's tokens."""
    phi3, llama2 = (gguf_tokenizer(made(tmp_path / way, way), 704) for way in ("phi3", "llama2"))
    assert [shown_name(name, phi3) for name in ("coach", "my-phi3")] == ["Phi-3 coach", "my-phi3"]
    without = replace(phi3, tokens=["?" if token == "</s>" else token for token in phi3.tokens])
    assert shown_name("coach", without) == "coach"
    assert [shown_name(name, llama2) for name in ("coach", "like-Phi-3")] == ["coach", "like-Phi 3"]
