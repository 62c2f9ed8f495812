"""GGUF files that were made to do harm: each is refused in one sentence of the child that reads it, or does none.

A part of tests/fuzz/model_files.py, without the command line.
"""

from __future__ import annotations

import os
import time
import warnings
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz.gguf_mutations import attack_gguf
from tests.support.gguf_files import whole_model

from sapo_backends import registry
from sapo_backends.base import LoadRequest, Sampling
from sapo_backends.checkpoints import gguf_model, safetensors_numpy
from sapo_backends.checkpoints.chat_template import ChatTemplate
from sapo_backends.checkpoints.gguf_header import GgufHeader, TensorEntry
from sapo_backends.checkpoints.locate import resolve_local_model
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.errors import BackendError, ModelNotFound, TemplateRefused

REFUSED = {
    "more heads than hidden": ("qwen2", "has another shape than"),
    "keys of 4e9": ("qwen2", "head_dim 4,000,000,000, and a model has from 0"),
    "a negative number of key heads": ("qwen2", "num_key_value_heads -2"),
    "epsilon that is no number": ("llama", "layer_norm_rms_epsilon is no number"),
    "negative epsilon": ("qwen2", "rms_norm_eps of -1.0, with which nothing can be computed"),
    "base frequency below 0": ("gemma3", "rope_theta of -10000.0, with which nothing can be computed"),
    "factors that are no numbers": ("phi3", "rope scaling of nan, with which nothing can be computed"),
    "one in another's place": ("qwen2", "lie in the same place"),
    "a thousand layers in one place": ("llama", "lie in the same place"),
    "a terabyte of nothing": ("qwen2", "vocab_size 17,179,869,184"),
    "tokens of 256 letters": ("llama", "Its tokens have 38,400,0.. characters together"),
    "an architecture of a megabyte": ("llama", "Use another file, or the model's Hugging Face folder"),
    "a way of splitting of a megabyte": ("qwen2", "Use the model's Hugging Face folder"),
}
"""Attack -> a kind of file, and what is said of it."""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a file is written, beside an empty cache."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    return tmp_path / "model.gguf"


@pytest.mark.parametrize("family", ["qwen2", "llama", "gemma3", "phi3"])
def test_the_files_that_are_changed_here_are_good_ones(file: Path, family: str) -> None:
    """Nothing below is refused because of what was not changed."""
    file.write_bytes(whole_model(family))
    assert HfTokenizer(resolve_local_model(str(file))).encode_text("hello")


@pytest.mark.parametrize("name", REFUSED)
def test_a_hostile_file_is_refused_in_one_sentence(file: Path, name: str) -> None:
    """In good time, in one line of what can be printed, however long the file's own words are."""
    family, sentence = REFUSED[name]
    attack_gguf(file, whole_model(family), name)
    began = time.monotonic()
    with pytest.raises(ModelNotFound, match=sentence) as refused:
        resolve_local_model(str(file))
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) <= 1000
    assert time.monotonic() - began < 20


def test_weights_that_are_no_numbers_end_a_generation_in_one_sentence(file: Path) -> None:
    """The sampler looked for a token behind the last one, which no caller was told of in words."""
    pytest.importorskip("torch", reason="the torch engine is not installed")
    attack_gguf(file, whole_model(), "factors that are no numbers")
    request = LoadRequest(str(file), method="lora", device="cpu", threads=1, precision="float32")
    engine = registry.get_backend("torch")().load(request)
    for temperature in (1.0, 0.0):
        with pytest.raises(BackendError, match="The model computes no numbers"):
            engine.generate([[1, 2, 3]], 2, Sampling(max_new_tokens=4, temperature=temperature), 0)


def test_patterns_are_not_made_of_a_control_token_of_5_megabytes(file: Path) -> None:
    """Of one of 10 MB they took 20 s and 2.8 GB."""
    attack_gguf(file, whole_model(), "a control token of 5 MB")
    folder = resolve_local_model(str(file))
    with pytest.raises(ModelNotFound, match=r"has added tokens of 5,000,0.. characters"):
        HfTokenizer(folder)


def test_a_template_that_uses_up_its_budget_is_refused_at_once_in_the_end() -> None:
    """Each of a task's questions cost its second before."""
    slow = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
    template = ChatTemplate("{% if messages[0].content == 'short' %}x{% else %}" + slow + "{% endif %}")
    began = time.thread_time()
    for _ in range(40):
        with pytest.raises(TemplateRefused):
            template.render([{"role": "user", "content": "long"}])
    assert time.thread_time() - began < 8
    with pytest.raises(TemplateRefused, match="refused before, each time after long work"):
        template.render([{"role": "user", "content": "short"}])


def test_a_file_that_is_cut_off_while_its_weights_are_read_is_said_and_ends_no_process(file: Path) -> None:
    """A mapped one ended the node and every export with a bus error, without a word."""
    file.write_bytes(whole_model())
    pieces = gguf_model.iter_gguf_pieces(file)
    next(pieces)
    os.truncate(file, 4096)
    with pytest.raises(ModelNotFound, match=r"model\.gguf was cut off while it was read: .* Copy or download it again"):
        list(pieces)


def test_safetensors_that_are_cut_off_while_they_are_read_are_said_and_end_no_process(tmp_path: Path) -> None:
    """The same of a Hugging Face folder."""
    numpy_files = pytest.importorskip("safetensors.numpy")
    rows = np.ones((64, 4096), np.float32)
    numpy_files.save_file({"a": rows, "b": rows}, tmp_path / "model.safetensors")
    tensors = safetensors_numpy.iter_tensors(tmp_path)
    next(tensors)
    os.truncate(tmp_path / "model.safetensors", rows.nbytes)
    with pytest.raises(ModelNotFound, match="it ends within b"):
        list(tensors)


def test_quantised_weights_that_are_no_numbers_print_no_warning() -> None:
    """The library's lines of source stood before the sentence that says it."""
    block = np.frombuffer(np.float16(np.inf).tobytes() + bytes(18), np.uint8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        row = gguf_model.read_rows(block, GgufHeader({}, {}, (), 0, 20), TensorEntry("a", (32,), 3, 0), 0, 1)
    assert np.isnan(row).all()
