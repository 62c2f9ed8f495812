"""Models that are real and seldom: another width of heads than usual, a scaled rope beside an unscaled one, few bits."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.support.families import TINY

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, TokenSequence
from sapo_backends.errors import BackendError, ModelNotFound

torch = pytest.importorskip("torch", reason="the torch engine is not installed")
transformers = pytest.importorskip("transformers")

from sapo_backends.common import hardware  # noqa: E402
from sapo_backends.measure.precision import model_size  # noqa: E402
from sapo_backends.torch_backend.transformers_lm import read_module  # noqa: E402

Folder = Callable[[str], Path]
LINEAR = {"rope_type": "linear", "factor": 8.0}
SEQUENCES = [TokenSequence(tuple(range(5, 35)), tuple(range(60, 70)))]


def opened(backend: str, folder: Path, **options: Any) -> Engine:
    chosen = {"method": "none", "precision": "float32", "device": "cpu", "threads": 1} | options
    return registry.get_backend(backend)().load(LoadRequest(str(folder), **chosen))


@pytest.fixture(params=["transformers 4", "transformers 5"])
def stretched(request: pytest.FixtureRequest, model_folder: Folder, tmp_path: Path) -> Path:
    """Gemma 3 whose layers without a window have a linearly scaled rope, as its sizes from 4B on do; either way to write it."""
    folder = tmp_path / "stretched"
    shutil.copytree(model_folder("gemma3_text"), folder)
    file = folder / "config.json"
    config = json.loads(file.read_text())
    config.pop("rope_parameters", None)
    if request.param == "transformers 4":
        config |= {
            "rope_theta": 1e6,
            "rope_local_base_freq": 1e4,
            "rope_scaling": LINEAR,
            "transformers_version": "4.57.0",
        }
    else:
        config["rope_parameters"] = {
            "full_attention": {**LINEAR, "rope_theta": 1e6},
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
        }
    file.write_text(json.dumps(config))
    return folder


def test_what_is_exported_of_a_stretched_model_is_that_model_to_transformers(stretched: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    engine = opened("torch", stretched)
    engine.export(out)
    expected = engine.logprobs(SEQUENCES)[0]
    engine.close()
    again = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
    tokens = torch.tensor([[*SEQUENCES[0].prompt, *SEQUENCES[0].completion]])
    with torch.no_grad():
        scores = again(tokens).logits.log_softmax(-1)[0, len(SEQUENCES[0].prompt) - 1 : -1]
    found = scores.gather(1, torch.tensor(SEQUENCES[0].completion)[:, None])[:, 0]
    np.testing.assert_allclose(found.numpy(), expected, atol=2e-5)


def test_mlx_reads_a_stretched_model_as_torch_does(stretched: Path) -> None:
    pytest.importorskip("mlx_lm")
    ours, theirs = opened("torch", stretched), opened("mlx", stretched)
    np.testing.assert_allclose(theirs.logprobs(SEQUENCES)[0], ours.logprobs(SEQUENCES)[0], atol=2e-5)
    ours.close()
    theirs.close()


def test_llama_cpp_s_cache_counts_the_heads_as_wide_as_they_are(model_folder: Folder, tmp_path: Path) -> None:
    """Qwen3-0.6B and Gemma 3 have wider heads than hidden / heads says."""
    native = pytest.importorskip("sapo_backends.llamacpp_backend.native")
    from sapo_backends.checkpoints.gguf_write import write_gguf

    folder = model_folder("qwen3-wide")
    config = json.loads((folder / "config.json").read_text())
    assert config["head_dim"] != config["hidden_size"] // config["num_attention_heads"]
    file = tmp_path / "model.gguf"
    write_gguf(folder, file, "F32", strict=False)
    model = native.GgufModel(file)
    numbers = 2 * config["num_hidden_layers"] * config["num_key_value_heads"] * config["head_dim"]
    assert model.cache_bytes(1, native.F32) == 4 * numbers
    model.close()


def test_a_config_that_does_not_say_so_is_tied_as_its_family_is(model_folder: Folder, tmp_path: Path) -> None:
    folder = tmp_path / "silent"
    shutil.copytree(model_folder("gemma3_text"), folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({k: v for k, v in config.items() if k != "tie_word_embeddings"}))
    assert model_size(folder, LoadRequest(str(folder)))[0].tied


@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.uint8])
def test_weights_of_few_bits_are_refused_by_name(kind: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What transformers keeps so on some GPUs is wrong without its scales; on others it dies at the first call."""
    module = torch.nn.Linear(4, 4)
    module.weight = torch.nn.Parameter(torch.zeros(4, 4).to(kind), requires_grad=False)
    monkeypatch.setattr(
        transformers.AutoModelForCausalLM, "from_pretrained", lambda *_, **__: (module, {"missing_keys": set()})
    )
    with pytest.raises(BackendError, match="quantised weights"):
        read_module(tmp_path, torch.float32)


def test_a_folder_that_lacks_a_tensor_of_a_transformers_architecture_is_refused_by_its_name(
    model_folder: Folder, tmp_path: Path
) -> None:
    """transformers would give it random values; a tensor of another shape is one sentence, too."""
    folder = tmp_path / "damaged"
    shutil.copytree(model_folder("gpt2"), folder)
    file, name = folder / "model.safetensors", "transformer.h.1.mlp.c_fc.weight"
    whole = load_file(file)
    save_file({key: tensor for key, tensor in whole.items() if key != name}, file, {"format": "pt"})
    with pytest.raises(ModelNotFound, match=f"lacks 1 tensors, for one {name}"):
        opened("torch", folder)
    save_file({**whole, name: whole[name][:, :-1].copy()}, file, {"format": "pt"})
    with pytest.raises(ModelNotFound, match="transformers cannot load"):
        opened("torch", folder)


def test_an_export_by_transformers_holds_every_tensor_of_the_module_s_state_buffers_too(
    model_folder: Folder, tmp_path: Path
) -> None:
    """Gemma 4 keeps a factor of each layer as a buffer, which is 1 where the file has none."""
    folder, out = tmp_path / "gemma4", tmp_path / "out"
    shutil.copytree(model_folder("gemma4_text"), folder)
    whole = load_file(folder / "model.safetensors")
    scalars = {name: np.full_like(tensor, 0.3) for name, tensor in whole.items() if name.endswith("layer_scalar")}
    assert len(scalars) == 2
    save_file(whole | scalars, folder / "model.safetensors", {"format": "pt"})
    engine = opened("torch", folder)
    out.mkdir()
    engine.export(out)
    assert load_file(out / "model.safetensors").keys() == whole.keys()
    again = opened("torch", out)
    assert again.logprobs(SEQUENCES) == engine.logprobs(SEQUENCES)
    engine.close()
    again.close()


@pytest.fixture(scope="module")
def seeing(model_folder: Folder, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Qwen3.5 as it is published: the language model is part of a multimodal one."""
    folder = tmp_path_factory.mktemp("seeing")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(model_folder("qwen2") / name, folder)
    text = {"vocab_size": 300, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "eos_token_id": 258}
    text |= {
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 4096,
        **TINY["qwen3_5_text"],
    }
    vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 64}
    tokens = {f"{name}_token_id": 259 + i for i, name in enumerate(("image", "video", "vision_start", "vision_end"))}
    vision["num_position_embeddings"] = 16
    config = transformers.Qwen3_5Config(text_config=text, vision_config=vision, **tokens)
    torch.manual_seed(0)
    transformers.Qwen3_5ForConditionalGeneration(config).save_pretrained(folder)
    return folder


def test_an_export_names_in_architectures_the_class_whose_keys_its_weights_have(seeing: Path, tmp_path: Path) -> None:
    """And describes that class: transformers then finds every tensor, and computes the same."""
    engine = opened("torch", seeing)
    engine.export(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["Qwen3_5ForCausalLM"]
    assert "vision_config" not in config
    assert str(seeing) not in json.dumps(config)
    _, told = transformers.Qwen3_5ForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert (set(told["missing_keys"]), set(told["unexpected_keys"])) == (set(), set())
    again = opened("torch", tmp_path)
    assert again.logprobs(SEQUENCES) == engine.logprobs(SEQUENCES)
    engine.close()
    again.close()


def test_a_model_that_also_sees_has_its_language_part_s_context(seeing: Path) -> None:
    engine = opened("torch", seeing)
    assert (engine.info.context_length, engine.info.vocabulary) == (4096, 300)
    engine.close()


def test_a_model_that_transformers_reads_no_language_model_of_is_refused_in_a_sentence(
    seeing: Path, tmp_path: Path
) -> None:
    """Without the names of all classes that it knows."""
    folder = tmp_path / "model"
    shutil.copytree(seeing, folder)
    config = {"model_type": "mistral3", "architectures": ["Mistral3ForConditionalGeneration"], "text_config": {}}
    (folder / "config.json").write_text(json.dumps(config), "utf-8")
    with pytest.raises(ModelNotFound, match=r"model: it has no causal language model .* Choose a model") as refused:
        opened("torch", folder)
    assert len(str(refused.value)) < 300


def test_what_transformers_frees_goes_back_to_the_system(model_folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """Kept, what a micro-batch leaves behind fits nothing that comes later: twice the memory in float32."""
    seen = list[object]()
    monkeypatch.setattr(hardware, "keep_freed", lambda: seen.append("kept"))
    monkeypatch.setattr(hardware, "return_freed", seen.append)
    opened("torch", model_folder("gpt2")).close()
    assert seen == [hardware.ACTIVATIONS]
    opened("torch", model_folder("qwen3_5_text")).close()
    assert seen[1:] == ["kept"], "a step of a state is as large as an update's activations: more than twice as slow"
