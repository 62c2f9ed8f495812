"""A GGUF file as a base: the same settings, weights and tokens as the folder that it was made of, for every family."""

from __future__ import annotations

import ctypes
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("gguf", reason="the package gguf is not installed")

from tests.support.gguf_files import nasty_texts

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample
from sapo_backends.checkpoints import locate, safetensors_numpy
from sapo_backends.checkpoints.gguf_header import TENSOR_TYPES
from sapo_backends.checkpoints.gguf_write import FORMS, write_gguf
from sapo_backends.checkpoints.locate import content_id
from sapo_backends.checkpoints.spec import decoder_spec
from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json
from sapo_backends.errors import ModelNotFound

Folder = Callable[[str], Path]
FAMILIES = (
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "phi3",
    "phi3-longrope",
    "smollm3",
    "olmo2",
    "olmo3",
    "granite",
    "gemma",
    "gemma2",
    "gemma3_text",
)
SEQUENCE = TokenSequence(tuple(range(5, 17)), (60, 61, 62, 258))


def load(engine: str, model: Path, **options: Any) -> Engine:
    """An engine on one thread with a small adapter."""
    chosen = {"method": "lora", "device": "cpu", "threads": 1, "lora_rank": 4, "lora_alpha": 8.0}
    return registry.get_backend(engine)().load(LoadRequest(model=str(model), **{**chosen, **options}))


def test_every_family_that_can_be_written_is_read_back() -> None:
    """No row of FORMS is left out of the round trips below."""
    assert {form.name for form in FORMS.values()} == {
        "gemma3" if family == "gemma3_text" else "llama" if family == "mistral" else family.partition("-")[0]
        for family in FAMILIES
        if family != "olmo3"
    }


@pytest.mark.parametrize("family", FAMILIES)
def test_a_file_says_what_its_folder_said(family: str, model_folder: Folder, tmp_path: Path) -> None:
    """Weights, tokens and log-probabilities are those of the Hugging Face folder that the file was written of."""
    folder, file = model_folder(family), tmp_path / "model.gguf"
    write_gguf(folder, file, "F32", strict=False)
    view = locate.resolve_model(str(file))
    theirs, ours = dict(safetensors_numpy.iter_tensors(folder)), dict(safetensors_numpy.iter_tensors(view))
    if "lm_head.weight" not in ours:
        theirs.pop("lm_head.weight", None)
    assert theirs.keys() == ours.keys()
    for name, tensor in theirs.items():
        np.testing.assert_allclose(ours[name], tensor, atol=3e-7, err_msg=name)
    whole, back = HfTokenizer(folder), HfTokenizer(view)
    assert (whole.eos_ids, whole.pad_id) == (back.eos_ids, back.pad_id)
    for text in nasty_texts(100):
        assert whole.encode_text(text) == back.encode_text(text)
    chat = [{"role": "user", "content": "hi"}]
    assert whole.encode_chat(chat) == back.encode_chat(chat)
    expected, got = (load("torch", model, precision="float32").logprobs([SEQUENCE])[0] for model in (folder, file))
    np.testing.assert_allclose(got, expected, atol=2e-5)


def test_stored_pieces_make_the_whole_tensor(model_folder: Folder, tmp_path: Path, monkeypatch: Any) -> None:
    """A tensor that is dequantised some rows at a time is the same as at once, in a file of 8 bits too."""
    from sapo_backends.checkpoints import gguf_model

    file = tmp_path / "model.gguf"
    write_gguf(model_folder("llama"), file, "Q8_0", strict=False)
    at_once = dict(gguf_model.iter_gguf_tensors(file))
    monkeypatch.setattr(gguf_model, "PIECE", 200)
    for name, tensor in gguf_model.iter_gguf_tensors(file):
        np.testing.assert_array_equal(tensor, at_once[name])


def test_every_type_with_a_size_here_is_one_of_the_package() -> None:
    """Blocks and bytes of a type, by which a tensor's bounds are checked, are those of the gguf package."""
    import gguf

    for number, (name, block, size) in TENSOR_TYPES.items():
        kind = gguf.GGMLQuantizationType(number)
        assert (kind.name, *gguf.GGML_QUANT_SIZES[kind]) == (name, block, size)


def test_llama_cpp_generates_from_the_file_itself(model_folder: Folder, tmp_path: Path) -> None:
    """Nothing is written for it, the adapter fits, and an update of the trainer changes what it generates by."""
    pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    file = tmp_path / "model.gguf"
    write_gguf(model_folder("llama"), file, "F32", strict=False)
    before = file.stat()
    generator, trainer = load("llamacpp", file), load("torch", file, precision="float32")
    group = generator.generate([list(SEQUENCE.prompt)], 2, Sampling(max_new_tokens=8), 0)[0]
    scored = trainer.logprobs([TokenSequence(SEQUENCE.prompt, each.tokens) for each in group])
    for each, logprobs in zip(group, scored, strict=True):
        np.testing.assert_allclose(each.logprobs, logprobs, atol=5e-3)
    trainer.update([TrainSample(SEQUENCE.prompt, SEQUENCE.completion, 1.0)], PolicyUpdate(1e-2), 0)
    unchanged = generator.logprobs([SEQUENCE])[0]
    generator.set_adapter(trainer.adapter(), 8.0)
    np.testing.assert_allclose(generator.logprobs([SEQUENCE])[0], trainer.logprobs([SEQUENCE])[0], atol=5e-3)
    assert np.abs(np.subtract(generator.logprobs([SEQUENCE])[0], unchanged)).max() > 0.05
    generator.close()
    after = file.stat()
    assert (after.st_size, after.st_mtime_ns) == (before.st_size, before.st_mtime_ns)
    assert [each.name for each in tmp_path.iterdir()] == ["model.gguf"]


def test_a_file_that_was_changed_or_moved_is_told_of(model_folder: Folder, tmp_path: Path) -> None:
    """One sentence with what to do, whether the file is gone, is another one, or was never there."""
    file = tmp_path / "model.gguf"
    write_gguf(model_folder("qwen2"), file, "F16", strict=False)
    view = locate.resolve_model(str(file))
    copied = tmp_path / "copy.gguf"
    shutil.copyfile(file, copied)
    assert content_id(locate.resolve_model(str(copied))) == content_id(view)
    os.utime(file, ns=(1, 1))
    with pytest.raises(ModelNotFound, match="was changed while it was in use"):
        locate.weight_files(view)
    file.unlink()
    with pytest.raises(ModelNotFound, match="not there any more"):
        locate.weight_files(view)
    with pytest.raises(ModelNotFound, match=r"There is no file .*model\.gguf"):
        locate.resolve_model(str(file))


def test_other_files_get_one_sentence(model_folder: Folder, tmp_path: Path) -> None:
    """An adapter, one of several parts, an unknown architecture, a cut and a foreign file: what it is and what to do."""
    import gguf

    def file(name: str, architecture: str = "llama", **strings: Any) -> Path:
        path = tmp_path / f"{name}.gguf"
        writer = gguf.GGUFWriter(path, architecture)
        for key, value in strings.items():
            add = writer.add_string if isinstance(value, str) else writer.add_uint32
            add(key.replace("__", "."), value)
        writer.add_tensor("token_embd.weight", np.zeros((4, 32), np.float32))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
        return path

    whole = tmp_path / "whole.gguf"
    write_gguf(model_folder("qwen2"), whole, "F16", strict=False)
    cut, foreign, vast = tmp_path / "cut.gguf", tmp_path / "foreign.gguf", tmp_path / "vast.gguf"
    cut.write_bytes(whole.read_bytes()[:-64])
    foreign.write_bytes(b"PK\3\4" + bytes(100))
    vast.write_bytes(b"GGUF" + struct.pack("<IQQ", 3, 1 << 60, 1 << 60))
    cases = {
        file("adapter", general__type="adapter"): "holds no model",
        file("mamba", "mamba"): "architecture is mamba",
        file("part", split__count=3): "one of several parts",
        file("bare"): "is missing",
        cut: "is cut off",
        foreign: "is a file and no model",
        vast: "it claims",
    }
    for path, sentence in cases.items():
        with pytest.raises(ModelNotFound, match=sentence):
            locate.resolve_model(str(path))


def test_tokens_of_a_real_file_are_llama_cpps(real_model: Path) -> None:
    """On 1,000 texts that splitting is hard for."""
    pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    import llama_cpp.llama_cpp as llama

    parameters = llama.llama_model_default_params()
    parameters.vocab_only = True
    model = llama.llama_model_load_from_file(str(real_model).encode(), parameters)
    vocabulary = llama.llama_model_get_vocab(model)
    tokenizer = HfTokenizer(locate.resolve_model(str(real_model)))
    for text in nasty_texts(1000):
        data = text.encode()
        room = (ctypes.c_int32 * (len(data) + 8))()
        count = llama.llama_tokenize(vocabulary, data, len(data), room, len(room), False, False)
        assert tokenizer.encode_text(text) == list(room[:count]), repr(text)
    llama.llama_model_free(model)


def test_a_real_file_is_computed_as_transformers_does(real_model: Path) -> None:
    """Log-probabilities of real text agree to 1e-4 with transformers' own reading of the file; then one update changes them."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")

    engine = load("torch", real_model, precision="float32")
    ids = engine.tokenizer.encode_text((Path(__file__).parents[2] / "README.md").read_text("utf-8")[:600])
    model = transformers.AutoModelForCausalLM.from_pretrained(
        real_model.parent, gguf_file=real_model.name, dtype=torch.float32, local_files_only=True
    )
    with torch.no_grad():
        rows = model(torch.tensor([ids])).logits[0, :-1].double().log_softmax(-1)
    expected = rows.gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()
    sequence = TokenSequence((ids[0],), tuple(ids[1:]))
    assert np.abs(np.subtract(engine.logprobs([sequence])[0], expected)).max() < 1e-4
    engine.update([TrainSample(sequence.prompt, sequence.completion[:20], 1.0)], PolicyUpdate(1e-3), 0)
    assert sum(engine.logprobs([sequence])[0][:20]) > sum(expected[:20])
    assert decoder_spec(read_json(locate.resolve_model(str(real_model)) / "config.json")).layers == len(
        model.model.layers
    )


@pytest.mark.parametrize("family", ["llama", "gemma3_text", "mistral"])
def test_prompts_that_begin_alike_are_prefilled_once_with_the_same_result(
    family: str, model_folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prompts of several lengths, one of them all that the others begin with: tokens and log-probabilities are those of each
    alone, with windows too."""
    from sapo_backends.torch_backend import TorchBackend, packing

    common = list(range(5, 29))
    prompts = [[*common, 40, 41], common, [*common, 60], [*common, *range(70, 90)]]
    with TorchBackend.plainly():
        engine = load("torch", model_folder(family), precision="float32")
        assert packing.shared_prefix(prompts) == len(common) - 1
        once = engine.generate(prompts, 2, Sampling(0.0, 1.0, 6), 1)
        monkeypatch.setattr(packing, "SHARED_PREFIX", 1000)
        assert packing.shared_prefix(prompts) == 0
        each = engine.generate(prompts, 2, Sampling(0.0, 1.0, 6), 1)
    assert [[c.tokens for c in group] for group in once] == [[c.tokens for c in group] for group in each]
    for a, b in zip((c for group in once for c in group), (c for group in each for c in group), strict=True):
        np.testing.assert_allclose(a.logprobs, b.logprobs, atol=1e-4)
