"""Exports of models that were trained in another way than usual. Child processes and libraries are real."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("transformers", reason="the torch engine is not installed")

from tests.support.trained_models import random_model, trained

from sapo_backends.base import Thinking
from sapo_desktop.services.models.exports import ExportPlan, ExportSource, create_export

SWITCH = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}"
)
"""As Qwen3's."""


def reasoning(folder: Path, thinking: Thinking) -> ExportSource:
    """A trained model whose chat template has a switch for reasoning."""
    base = random_model(folder / "base", "qwen3")
    settings = json.loads((base / "tokenizer_config.json").read_text(encoding="utf-8"))
    (base / "tokenizer_config.json").write_text(json.dumps({**settings, "chat_template": SWITCH}), encoding="utf-8")
    return trained(folder / "run", str(base), 1, method="full", thinking=thinking, tasks=("basic_arithmetic",))


@pytest.fixture(scope="module")
def on(tmp_path_factory: pytest.TempPathFactory) -> ExportSource:
    return reasoning(tmp_path_factory.mktemp("on"), "on")


def test_a_model_that_was_trained_with_thinking_on_means_the_same_when_it_is_exported(
    on: ExportSource, tmp_path: Path
) -> None:
    done = create_export(on, ExportPlan("hf", tmp_path / "out"))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers > 0


def test_its_modelfile_opens_no_empty_reasoning_and_llama_cpp_reads_it(on: ExportSource, tmp_path: Path) -> None:
    pytest.importorskip("llama_cpp", reason="the llamacpp engine is not installed")
    done = create_export(on, ExportPlan("gguf", tmp_path / "out"))
    assert done.agreement is not None
    assert done.agreement.prompts == done.agreement.answers > 0
    assert "{{ .Prompt }}<|im_end|>\n<|im_start|>assistant\n{{ .Response }}" in modelfile(tmp_path / "out")


def test_a_model_whose_reasoning_was_off_says_so_in_its_modelfile_and_card(tmp_path: Path) -> None:
    create_export(reasoning(tmp_path, "off"), ExportPlan("gguf", tmp_path / "out", verify=False))
    assert "assistant\n<think>\n\n</think>\n\n{{ .Response }}" in modelfile(tmp_path / "out")
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "switch for reasoning, which was off in training: `apply_chat_template(…, enable_thinking=False)`" in card
    assert "--jinja --reasoning-budget 0\n" in card


def test_the_adapter_of_a_base_in_4_bits_is_exported_and_the_card_says_on_which_base_it_was_trained(
    tmp_path: Path,
) -> None:
    pytest.importorskip("peft", reason="the torch engine is not installed")
    four = trained(tmp_path / "run", "starter-1m", method="lora", precision="4bit-float32", tasks=("basic_arithmetic",))
    done = create_export(four, ExportPlan("adapter", tmp_path / "out"))
    assert done.agreement is not None
    assert done.agreement.identical < done.agreement.answers == done.agreement.prompts
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "belongs to the base in 4 bits (NF4, as QLoRA rounds it)" in card
    assert "- base: starter-1m, in 4 bits (NF4) while it was trained\n" in card


def modelfile(folder: Path) -> str:
    return (folder / "Modelfile").read_text(encoding="utf-8")
