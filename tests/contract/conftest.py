"""Engines under test and tiny random models for them to read.

To put an engine under contract: add a row to ENGINES. An engine that is not installed is skipped, except that with
CI=true a missing one is a failure.
"""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support import families
from tests.support.device import DEVICE

from sapo_backends import registry
from sapo_backends.base import Backend, Engine, LoadRequest
from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.scoring.prompts import build_messages
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.questions import generate_entry

EOS = "<|im_end|>"
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Case:
    """An engine with the loading method under test. reads_folders: it loads Hugging Face folders. trains: it has
    update(). needs: a package beside the engine's own."""

    backend: str
    method: str = "full"
    reads_folders: bool = True
    tolerance: float = 2e-5
    trains: bool = True
    precision: str = "float32"
    needs: str = ""

    def __str__(self) -> str:
        return f"{self.backend}-{self.method}{'-4bit' if self.precision.startswith('4bit') else ''}"


ENGINES = (
    Case("fake", reads_folders=False),
    Case("fake", method="lora", reads_folders=False),
    Case("torch"),
    Case("torch", method="lora"),
    Case("torch", method="lora", precision="4bit-float32", needs="bitsandbytes"),
    Case("mlx"),
    Case("mlx", method="lora"),
    Case("llamacpp", method="none", trains=False),
    Case("llamacpp+torch", method="lora"),
)
TRAINERS = tuple(case for case in ENGINES if case.trains)
READERS = tuple(case for case in ENGINES if case.reads_folders)


def write_tokenizer(folder: Path) -> int:
    """A byte tokenizer with three control tokens; gives the id of the end-of-sequence token."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(t, special=True) for t in ("<|endoftext|>", "<|im_start|>", EOS)])
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": EOS,
        "pad_token": "<|endoftext|>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings), encoding="utf-8")
    return int(tokenizer.token_to_id(EOS))


def _to_four_bits(weight: Any) -> None:
    """Round to what 4 bits can say: every engine then has the same weights, in whatever precision it stores them."""
    import torch

    from sapo_backends.torch_backend.ops import BLOCK, LEVELS

    if weight.numel() % BLOCK:
        return
    blocks = weight.view(-1, BLOCK)
    scales = blocks.abs().amax(dim=1, keepdim=True)
    levels = torch.tensor(LEVELS)
    nearest = (blocks[:, :, None] / scales[:, :, None] - levels).abs().argmin(dim=-1)
    blocks.copy_(levels[nearest] * scales)


def write_model(folder: Path, architecture: str) -> Path:
    """A random model of two layers and 300 tokens, written by transformers."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        architecture.partition("-")[0],
        **{
            "vocab_size": 300,
            "hidden_size": 64,
            "intermediate_size": 96,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "max_position_embeddings": 512,
            "eos_token_id": write_tokenizer(folder),
            "bos_token_id": None,
            "pad_token_id": 256,
            "initializer_range": 0.1,
            "tie_word_embeddings": True,
            **families.TINY.get(architecture, {}),
        },
    )
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:  # biases and norms are 0 and 1 at first, which would hide mistakes
                parameter.add_(torch.randn_like(parameter) * 0.1)
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not model.get_output_embeddings():
                _to_four_bits(module.weight)
    model.save_pretrained(folder)
    written = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    if "rope_theta" in written.get("rope_parameters", {}):
        written["rope_theta"] = written["rope_parameters"]["rope_theta"]  # some readers look only here
    (folder / "config.json").write_text(json.dumps(written), encoding="utf-8")
    return folder


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """architecture -> folder of a tiny random model, made once."""
    made: dict[str, Path] = {}

    def folder(architecture: str) -> Path:
        if architecture not in made:
            made[architecture] = write_model(tmp_path_factory.mktemp(architecture), architecture)
        return made[architecture]

    return folder


def require_backend(case: Case) -> type[Backend]:
    """The backend, or a skip when it is not installed (a failure in CI)."""
    missing = [part for part in case.backend.split("+") if part not in registry.installed_backends()]
    if missing and os.environ.get("CI") != "true":
        pytest.skip(f"the {missing[0]} engine is not installed")
    if case.needs and importlib.util.find_spec(case.needs) is None:
        pytest.skip(f"{case.needs} is not installed")
    return registry.get_backend(case.backend)


@pytest.fixture(scope="session", autouse=True)
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Caches go to a folder of the tests."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SAPO_HOME", str(tmp_path_factory.mktemp("home")))
        yield


@pytest.fixture(scope="session")
def load(model_folder: Callable[[str], Path]) -> Callable[..., Engine]:
    """(case, architecture, device) -> a fresh engine in float32."""

    def fresh(case: Case, architecture: str = "qwen2", device: str = "") -> Engine:
        backend = require_backend(case)
        device = device or (DEVICE if case.backend == "torch" else "cpu")
        model = str(model_folder(architecture)) if case.reads_folders else "fake"
        # llama.cpp's barriers spin: with two threads and a busy processor a test of one second takes minutes
        threads = 1 if "llamacpp" in case.backend else 2
        request = LoadRequest(
            model=model, method=case.method, precision=case.precision, device=device, threads=threads, lora_rank=4
        )
        return backend().load(request)

    return fresh


@pytest.fixture(params=ENGINES, ids=str)
def case(request: pytest.FixtureRequest) -> Case:
    """Each engine in turn."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(params=READERS, ids=str)
def reader(request: pytest.FixtureRequest) -> Case:
    """Each engine that loads Hugging Face folders."""
    chosen: Case = request.param
    return chosen


@pytest.fixture
def reading_backend(reader: Case) -> type[Backend]:
    """What builds the engine of `reader`."""
    return require_backend(reader)


@pytest.fixture(params=[case for case in READERS if case.method == "full" and case.trains], ids=str)
def full(request: pytest.FixtureRequest) -> Case:
    """Each engine that trains all weights of a Hugging Face folder."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(
    params=[case for case in READERS if case.method == "lora" and case.trains and "+" not in case.backend], ids=str
)
def lora(request: pytest.FixtureRequest) -> Case:
    """Each engine that trains an adapter on a Hugging Face folder."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(params=[case for case in TRAINERS if case.method == "lora"], ids=str)
def keeping(request: pytest.FixtureRequest) -> Case:
    """Each engine that trains beside the weights that it was given, and so still has them."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(params=[case for case in READERS if str(case) == "torch-full"], ids=str)
def any_architecture(request: pytest.FixtureRequest) -> Case:
    """Each engine that loads architectures it does not know itself."""
    chosen: Case = request.param
    return chosen


@pytest.fixture(params=[case for case in READERS if str(case) == "torch-lora"], ids=str)
def any_lora(request: pytest.FixtureRequest) -> Case:
    """Each engine that writes peft's adapter folder."""
    chosen: Case = request.param
    return chosen


@pytest.fixture
def engine(case: Case, load: Callable[..., Engine]) -> Iterator[Engine]:
    """A fresh engine of each kind on the tiny Qwen2 model."""
    made = load(case)
    yield made
    made.close()


@pytest.fixture(params=TRAINERS, ids=str)
def training_case(request: pytest.FixtureRequest) -> Case:
    """Each engine that trains."""
    chosen: Case = request.param
    return chosen


@pytest.fixture
def trainer(training_case: Case, load: Callable[..., Engine]) -> Iterator[Engine]:
    """A fresh engine of each kind that trains, on the tiny Qwen2 model."""
    made = load(training_case)
    yield made
    made.close()


@pytest.fixture(scope="session")
def held_out_chats() -> list[list[dict[str, str]]]:
    """Fifty real questions of the paper's nine tasks, as chats."""
    refs = [held_out(task, "starter", index) for index in range(6) for task in PAPER_TASKS][:50]
    return [build_messages(generate_entry(ref)[1]["question"]) for ref in refs]
