"""Gemma 3 as it is published from 4B on: a language model that is part of one that also sees."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
from safetensors.numpy import load_file, save_file
from tests.contract.conftest import write_tokenizer

from sapo_backends.base import LoadRequest
from sapo_backends.checkpoints.spec import decoder_spec, why_not
from sapo_backends.measure.precision import model_size
from sapo_desktop.services.models.exports import ExportPlan, Format, create_export

torch = pytest.importorskip("torch", reason="the torch engine is not installed")
transformers = pytest.importorskip("transformers", reason="the torch engine is not installed")

from tests.contract.test_odd_models import SEQUENCES, opened  # noqa: E402
from tests.support.trained_models import trained  # noqa: E402

from sapo_backends.torch_backend.runtime import without_paths  # noqa: E402

TEXT = {
    "vocab_size": 300,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "query_pre_attn_scalar": 16,
    "sliding_window": 24,
    "max_position_embeddings": 512,
    "initializer_range": 0.1,
}
VISION = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
PUBLISHED = {
    "hidden_size": 2560,
    "intermediate_size": 10240,
    "num_hidden_layers": 34,
    "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
    "sliding_window": 1024,
}
"""All that the config.json of Gemma 3 4B says of its language part."""


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("gemma3")
    tokens = {"image_token_index": 299, "boi_token_index": 298, "eoi_token_index": 297}
    config = transformers.Gemma3Config(
        text_config=TEXT,
        vision_config=VISION | {"image_size": 28, "patch_size": 14},
        mm_tokens_per_image=4,
        eos_token_id=write_tokenizer(folder),
        **tokens,
    )
    torch.manual_seed(0)
    transformers.Gemma3ForConditionalGeneration(config).save_pretrained(folder)
    return folder


@pytest.mark.parametrize(
    "rename", [lambda name: name, lambda name: name.replace("language_model.model", "model.language_model")]
)
def test_the_own_decoder_computes_it_as_transformers_does(
    seeing: Path, tmp_path: Path, rename: Callable[[str], str]
) -> None:
    """By both ways in which its files name the tensors, and without those for seeing."""
    folder = tmp_path / "model"
    shutil.copytree(seeing, folder)
    tensors = {rename(name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    engine = opened("torch", folder)
    with without_paths("own"):
        other = opened("torch", seeing)
    assert "own decoder" in engine.info.extra["computed_by"]
    assert "transformers" in other.info.extra["computed_by"]
    for ours, theirs in zip(engine.logprobs(SEQUENCES), other.logprobs(SEQUENCES), strict=True):
        assert ours == pytest.approx(theirs, abs=1e-5)
    size, _ = model_size(folder, LoadRequest())
    assert size.parameters == engine.info.parameters < other.info.parameters
    assert (engine.info.context_length, engine.info.vocabulary) == (512, 300)
    engine.close()
    other.close()


def test_what_its_config_leaves_out_is_what_transformers_takes_it_for() -> None:
    whole = transformers.Gemma3TextConfig(**PUBLISHED).to_dict()
    told = decoder_spec({"architectures": ["Gemma3ForConditionalGeneration"], "text_config": PUBLISHED})
    assert told == decoder_spec({**whole, "architectures": ["Gemma3ForCausalLM"]})
    fewer = {"architectures": ["Gemma3ForConditionalGeneration"], "text_config": {}}
    whole = transformers.Gemma3TextConfig().to_dict()
    assert decoder_spec(fewer) == decoder_spec({**whole, "architectures": ["Gemma3ForCausalLM"]})
    assert why_not({**fewer, "quantization_config": {"bits": 4}}) == "quantised weights"


@pytest.mark.parametrize("kind", ["hf", "adapter", "gguf"])
def test_it_leaves_as_a_language_model_or_as_an_adapter_of_the_whole(
    seeing: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: Format
) -> None:
    pytest.importorskip({"hf": "transformers", "adapter": "peft", "gguf": "llama_cpp"}[kind])
    monkeypatch.setattr(import_module("sapo_desktop.services.models.exports.export"), "QUESTIONS", 4)
    done = create_export(
        trained(tmp_path, str(seeing), method="lora", precision="float32"), ExportPlan(kind, tmp_path / "out")
    )
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers > 0
    assert done.agreement.identical >= 0.7 * done.agreement.answers
    if kind == "hf":
        config = json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))
        assert config["architectures"] == ["Gemma3ForCausalLM"]
        _, found = transformers.Gemma3ForCausalLM.from_pretrained(tmp_path / "out", output_loading_info=True)
        assert (set(found["missing_keys"]), set(found["unexpected_keys"])) == (set(), set())


@pytest.mark.parametrize("engine", ["llamacpp+torch", "mlx"])
def test_other_engines_compute_its_language_part(seeing: Path, tmp_path: Path, engine: str) -> None:
    pytest.importorskip({"mlx": "mlx_lm"}.get(engine, "llama_cpp"))
    source = trained(tmp_path, str(seeing), method="lora", trainer=engine)
    assert source.checkpoint.is_dir()
    theirs, ours = (opened(name, seeing) for name in (engine.rpartition("+")[2], "torch"))
    for one, other in zip(theirs.logprobs(SEQUENCES), ours.logprobs(SEQUENCES), strict=True):
        assert one == pytest.approx(other, abs=1e-4)
    (tmp_path / "out").mkdir()
    theirs.export(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text("utf-8"))["architectures"] == ["Gemma3ForCausalLM"]
