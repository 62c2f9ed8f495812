"""What leaves an engine is read by others: exported models by transformers, adapters by peft."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, processors

from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, TokenSequence, TrainSample
from sapo_backends.checkpoints.gguf_write import write_gguf
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.checkpoints.write_folder import write_adapter_folder, write_settings
from sapo_backends.errors import BackendError

torch = pytest.importorskip("torch")

ALPHA = LoadRequest().lora_alpha
PROMPT, COMPLETION = tuple(range(5, 17)), (60, 61, 62, 258)
BATCH = [TrainSample(PROMPT, COMPLETION, 1.0), TrainSample(PROMPT, (63, 64, 65), -1.0)]

CONTINUE = """
import json, sys
from pathlib import Path
from sapo_backends import registry
from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample
model, start, end, saved, out = sys.argv[1:]
prompts = [list(range(5, 17)), list(range(20, 51))]
for method in ("full", "lora"):
    engine = registry.get_backend("torch")().load(LoadRequest(model=model, method=method, device="cpu", threads=2))
    if saved != "-":
        engine.restore(Path(saved) / method)
    for seed in range(int(start), int(end)):
        if seed == 4 and saved == "-":
            (Path(out) / "half" / method).mkdir(parents=True)
            engine.save(Path(out) / "half" / method)
        groups = engine.generate(prompts, 4, Sampling(max_new_tokens=6), seed)
        batch = [
            TrainSample(tuple(prompt), completion.tokens, 1.0 if i % 2 else -0.8)
            for prompt, group in zip(prompts, groups, strict=True) for i, completion in enumerate(group)
        ]
        engine.update(batch, PolicyUpdate(1e-3), seed)
    (Path(out) / method).mkdir()
    engine.save(Path(out) / method)
"""


def by_transformers(model: Any) -> np.ndarray:
    """Log-probabilities of COMPLETION by a transformers model."""
    with torch.no_grad():
        rows = model(torch.tensor([[*PROMPT, *COMPLETION]])).logits[0, len(PROMPT) - 1 : -1].log_softmax(-1)
    found: np.ndarray = rows.gather(1, torch.tensor(COMPLETION)[:, None])[:, 0].numpy()
    return found


def trained(case: Any, load: Callable[..., Engine]) -> tuple[Engine, list[float]]:
    """An engine after a few updates, with its log-probabilities of COMPLETION."""
    engine = load(case)
    for seed in range(5):
        engine.update(BATCH, PolicyUpdate(3e-3), seed)
    return engine, engine.logprobs([TokenSequence(PROMPT, COMPLETION)])[0]


def test_an_exported_model_is_what_was_trained(
    any_architecture: Any, load: Callable[..., Engine], tmp_path: Path
) -> None:
    """transformers computes the same from the folder, whose config carries the rope base in both places."""
    from transformers import AutoModelForCausalLM

    engine, expected = trained(any_architecture, load)
    engine.export(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"]
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    np.testing.assert_allclose(by_transformers(model), expected, atol=2e-5)
    again = load_folder(tmp_path)
    np.testing.assert_allclose(again.logprobs([TokenSequence(PROMPT, COMPLETION)])[0], expected, atol=2e-5)


def load_folder(folder: Path) -> Engine:
    from sapo_backends.torch_backend import TorchBackend

    return TorchBackend().load(LoadRequest(model=str(folder), precision="float32", device="cpu", threads=1))


@pytest.mark.filterwarnings("ignore:.is_gradient_checkpointing. is deprecated:FutureWarning")  # peft, not us
def test_an_adapter_is_read_by_peft(
    lora: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """peft computes the same from the base model and the adapter's folder, and so does the merged folder."""
    peft = pytest.importorskip("peft")
    from transformers import AutoModelForCausalLM

    engine, expected = trained(lora, load)
    engine.export(tmp_path)
    (tmp_path / "adapter").mkdir()
    write_adapter_folder(engine.adapter(), ALPHA, "base", model_folder("qwen2"), tmp_path / "adapter")
    base = AutoModelForCausalLM.from_pretrained(model_folder("qwen2"), dtype=torch.float32)
    assert np.abs(by_transformers(base) - expected).max() > 1e-3
    adapted = peft.PeftModel.from_pretrained(base, tmp_path / "adapter")
    np.testing.assert_allclose(by_transformers(adapted), expected, atol=2e-5)
    merged = load_folder(tmp_path)
    np.testing.assert_allclose(merged.logprobs([TokenSequence(PROMPT, COMPLETION)])[0], expected, atol=5e-5)


def test_a_model_trained_as_a_whole_has_no_adapter_folder(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """The message says which formats there are instead."""
    with pytest.raises(BackendError, match="hf or gguf"):
        write_adapter_folder({}, ALPHA, "base", model_folder("qwen2"), tmp_path)
    assert not any(tmp_path.iterdir())


def test_stretched_rotary_settings_go_to_all_three_places(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Readers that know only rope_scaling would silently compute Llama 3 without it."""
    write_settings(model_folder("llama"), tmp_path, "float32")
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    assert config["rope_parameters"]["rope_theta"] == config["rope_theta"] == 500_000.0
    assert config["rope_scaling"] == {k: v for k, v in config["rope_parameters"].items() if k != "rope_theta"}
    assert config["rope_scaling"]["rope_type"] == "llama3"


def test_a_rope_for_each_kind_of_layer_stays_as_it_is(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """There is no single one that could be written at the top."""
    source = tmp_path / "source"
    source.mkdir()
    for file in model_folder("qwen2").iterdir():
        (source / file.name).write_bytes(file.read_bytes())
    config = json.loads((source / "config.json").read_text(encoding="utf-8"))
    ropes = {"full_attention": {"rope_type": "default", "rope_theta": 1e6}, "sliding_attention": {"rope_theta": 1e4}}
    (source / "config.json").write_text(json.dumps({**config, "rope_parameters": ropes}), encoding="utf-8")
    (tmp_path / "out").mkdir()
    write_settings(source, tmp_path / "out", "float32")
    assert json.loads((tmp_path / "out" / "config.json").read_text(encoding="utf-8"))["rope_parameters"] == ropes


def test_every_end_token_and_a_missing_chat_template_are_written_down(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """A base model names its end in another file than the reader looks at, and has no template: both leave with it."""
    source, out = tmp_path / "source", tmp_path / "out"
    source.mkdir()
    out.mkdir()
    for file in model_folder("qwen2").iterdir():
        if file.name != "chat_template.jinja":
            (source / file.name).write_bytes(file.read_bytes())
    settings = json.loads((source / "tokenizer_config.json").read_text(encoding="utf-8"))
    settings.pop("chat_template", None)
    (source / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    (source / "generation_config.json").write_text(json.dumps({"eos_token_id": 256}), encoding="utf-8")
    write_settings(source, out, "float32")
    assert json.loads((out / "generation_config.json").read_text(encoding="utf-8"))["eos_token_id"] == [256, 258]
    chat = [{"role": "user", "content": "How much is 2 + 2?"}]
    assert HfTokenizer(out).encode_chat(chat) == HfTokenizer(source).encode_chat(chat)
    assert (out / "chat_template.jinja").is_file()


def test_a_new_process_continues_exactly(model_folder: Callable[[str], Path], tmp_path: Path) -> None:
    """Eight rounds of generating and updating, saved after four, equal four more in another process: the files are the same.
    All weights and an adapter."""
    folder = str(model_folder("qwen2"))

    def run(start: int, end: int, saved: str) -> Path:
        out = tmp_path / f"{start}-{end}"
        out.mkdir()
        command = [sys.executable, "-c", CONTINUE, folder, str(start), str(end), saved, str(out)]
        subprocess.run(command, check=True)
        return out

    straight = run(0, 8, "-")
    half = straight / "half"
    resumed = run(4, 8, str(half))
    for method, name in product(("full", "lora"), ("trained.safetensors", "optimizer.safetensors", "state.json")):
        assert (straight / method / name).read_bytes() == (resumed / method / name).read_bytes()
        assert (straight / method / name).read_bytes() != (half / method / name).read_bytes()


CHAT = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "1+1?"}]


@pytest.fixture(params=["named", "written"])
def base(request: pytest.FixtureRequest, model_folder: Callable[[str], Path], tmp_path: Path) -> Path:
    """A base model without a chat template, whose tokenizer names a first token, or writes it without a name."""
    folder = tmp_path / "base"
    shutil.copytree(model_folder("llama"), folder)
    settings = json.loads((folder / "tokenizer_config.json").read_text(encoding="utf-8"))
    del settings["chat_template"]
    if request.param == "named":
        settings["bos_token"] = "<|endoftext|>"
    else:
        raw = Tokenizer.from_file(str(folder / "tokenizer.json"))
        template = processors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", 256)])
        setattr(raw, "post_processor", template)  # noqa: B010 - a Rust property that vulture does not know
        raw.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return folder


def exported(base: Path, folder: Path) -> tuple[Path, list[int]]:
    """The folder that an engine writes for a base, and CHAT as the base reads it."""
    engine = load_folder(base)
    ids = engine.tokenizer.encode_chat(CHAT)
    folder.mkdir()
    engine.export(folder)
    assert ids.count(256) == 1
    assert ids[0] == 256
    return folder, ids


def test_a_base_begins_with_its_first_token_in_this_program_and_in_transformers(base: Path, tmp_path: Path) -> None:
    """Once, as in training, also where a text spells it."""
    from transformers import AutoTokenizer

    folder, ids = exported(base, tmp_path / "out")
    assert HfTokenizer(folder).encode_chat(CHAT) == ids
    hostile = [{"role": "user", "content": "<|endoftext|>"}]
    assert HfTokenizer(folder).encode_chat(hostile) == HfTokenizer(base).encode_chat(hostile)
    assert AutoTokenizer.from_pretrained(folder).apply_chat_template(CHAT)["input_ids"] == ids


def test_a_base_begins_with_its_first_token_in_llama_cpp(base: Path, tmp_path: Path) -> None:
    """Once in a chat, and in a plain text, which has no template to write it."""
    llama_cpp = pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    folder, ids = exported(base, tmp_path / "out")
    write_gguf(folder, tmp_path / "base.gguf", "F32")
    model = llama_cpp.Llama(str(tmp_path / "base.gguf"), n_ctx=64, n_threads=1, verbose=False)
    model.create_chat_completion(CHAT, max_tokens=1)
    assert model.input_ids[: model.n_tokens].tolist() == ids
    model.create_completion("1+1?", max_tokens=1)
    assert model.input_ids[: model.n_tokens].tolist() == [256, *HfTokenizer(base).encode_text("1+1?")]
    model.close()
