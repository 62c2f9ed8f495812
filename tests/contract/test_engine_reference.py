"""Engines that read Hugging Face folders, against transformers and the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sapo_backends import reference
from sapo_backends.base import Engine, PolicyUpdate, Sampling, TokenSequence, TrainSample

torch = pytest.importorskip("torch")

PROMPTS = [list(range(5, 17)), list(range(20, 51)), [7] * 20]
ARCHITECTURES = ("qwen2", "qwen3", "llama")
POLICIES = {
    "grpo": PolicyUpdate(1e-3),
    "dr_grpo": PolicyUpdate(1e-3, aggregation="constant", constant_length=16, temperature=0.8),
    "sequence_mean": PolicyUpdate(1e-3, aggregation="sequence_mean", clip_low=0.05, clip_high=0.05),
    "rloo": PolicyUpdate(
        1e-3, ratio_level="sequence", aggregation="constant", constant_length=16, clip_low=0.05, clip_high=0.05
    ),
    "gspo": PolicyUpdate(1e-3, ratio_level="sequence", aggregation="sequence_mean", clip_low=0.01, clip_high=0.02),
}


def exact_model(folder: Path) -> Any:
    """The model in float64 by transformers."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    model.get_input_embeddings().padding_idx = None  # else a sampled padding token would get no gradient as an input
    return model


def exact_logits(model: Any, prompt: tuple[int, ...], completion: tuple[int, ...]) -> Any:
    """(T, V) float64 logits that predict the completion."""
    ids = torch.tensor([[*prompt, *completion]])
    return model(ids).logits[0, len(prompt) - 1 : -1]


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_greedy_tokens_equal_those_of_transformers(
    reader: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path], architecture: str
) -> None:
    """Token for token, for prompts of different lengths in one batch."""
    model = exact_model(model_folder(architecture)).float()
    engine = load(reader, architecture)
    for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 2, Sampling(0.0, 1.0, 12), seed=0), strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert list(group[0].tokens) == expected[0, len(prompt) :].tolist()


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_logprobs_equal_the_float64_reference(
    reader: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path], architecture: str
) -> None:
    """Every completion token's log-probability, at a temperature other than 1 too."""
    model, engine = exact_model(model_folder(architecture)), load(reader, architecture)
    for temperature in (1.0, 0.6):
        groups = engine.generate(PROMPTS, 2, Sampling(temperature, 1.0, 9), seed=1)
        for prompt, group in zip(PROMPTS, groups, strict=True):
            for completion in group:
                with torch.no_grad():
                    logits = exact_logits(model, tuple(prompt), completion.tokens).numpy()
                rows = reference.log_softmax(logits, temperature)
                expected = rows[np.arange(len(completion.tokens)), list(completion.tokens)]
                scored = engine.logprobs([TokenSequence(tuple(prompt), completion.tokens)], temperature)[0]
                np.testing.assert_allclose(scored, expected, atol=reader.tolerance)
                np.testing.assert_allclose(completion.logprobs, expected, atol=reader.tolerance)


def _batch(engine: Engine, temperature: float) -> list[TrainSample]:
    """Drawn completions with every feature of a sample: zero and negative advantages, several lengths, old and
    behaviour log-probabilities that differ from the policy's."""
    rng = np.random.default_rng(0)
    groups = engine.generate(PROMPTS, 4, Sampling(temperature, 1.0, 10), seed=2)
    batch = []
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for i, completion in enumerate(group):
            tokens = completion.tokens[: 3 + 2 * i]
            scored = np.array(completion.logprobs[: len(tokens)])
            old = tuple(scored + rng.normal(0, 0.4, len(tokens)))
            batch.append(TrainSample(tuple(prompt), tokens, [1.0, -1.0, 0.0, 0.6][i], old_logprobs=old))
            if i == 3:
                behaviour = tuple(np.array(old) + rng.normal(0, 0.8, len(tokens)))
                batch[-1] = replace(batch[-1], behaviour_logprobs=behaviour, external=True)
    return batch


def _exact_gradient(model: Any, batch: list[TrainSample], policy: PolicyUpdate) -> tuple[float, dict[str, Any]]:
    """Loss and d loss / d weights in float64: the reference's gradient by the logits, carried back by autograd."""
    logits = [exact_logits(model, s.prompt, s.completion) for s in batch]
    result = reference.surrogate_loss([rows.detach().numpy() for rows in logits], batch, policy)
    torch.autograd.backward(logits, [torch.from_numpy(grad) for grad in result.gradients])
    return result.loss, {name: p.grad.numpy() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("algorithm", POLICIES)
@pytest.mark.parametrize("architecture", ["qwen2", "llama"])
def test_loss_and_gradient_equal_the_float64_reference(
    full: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path], algorithm: str, architecture: str
) -> None:
    """Clipping, truncated importance weights, every aggregation, and prompts shared by several completions."""
    policy = POLICIES[algorithm]
    engine = load(full, architecture)
    batch = _batch(engine, policy.temperature)
    loss, expected = _exact_gradient(exact_model(model_folder(architecture)), batch, policy)
    found: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    assert found.keys() == expected.keys()
    largest = max(float(np.abs(grad).max()) for grad in expected.values())
    for name, grad in expected.items():
        np.testing.assert_allclose(found[name], grad, atol=2e-4 * largest, err_msg=name)
    stats = engine.update(batch, policy, seed=0)
    assert stats.loss == pytest.approx(loss, abs=1e-5)
    assert 0 < stats.clip_fraction < 1


def test_the_gradient_at_ratio_one_equals_the_reference(
    full: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path]
) -> None:
    """Without old log-probabilities the first step is the plain policy gradient."""
    engine = load(full)
    policy = POLICIES["grpo"]
    batch = [replace(s, old_logprobs=None, behaviour_logprobs=None) for s in _batch(engine, 1.0)]
    _, expected = _exact_gradient(exact_model(model_folder("qwen2")), batch, policy)
    found: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    largest = max(float(np.abs(grad).max()) for grad in expected.values())
    for name, grad in expected.items():
        np.testing.assert_allclose(found[name], grad, atol=2e-4 * largest, err_msg=name)


def test_the_adapter_s_gradient_equals_the_reference(
    lora: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path]
) -> None:
    """d loss / d A = scale B^T dW and d loss / d B = scale dW A^T, at an adapter that is not zero."""
    engine, model, policy = load(lora), exact_model(model_folder("qwen2")), POLICIES["grpo"]
    rng = np.random.default_rng(0)
    adapter: dict[str, Any] = {n: rng.normal(0, 0.1, np.shape(t)) for n, t in engine.adapter().items()}
    rank, alpha = 4, 8.0
    engine.set_adapter({n: t.astype(np.float32) for n, t in adapter.items()}, alpha)
    weights = dict(model.named_parameters())
    modules = [n.removesuffix(".lora_A.weight") for n in adapter if n.endswith(".lora_A.weight")]
    assert len(modules) == 2 * 7
    with torch.no_grad():
        for module in modules:
            delta = adapter[f"{module}.lora_B.weight"] @ adapter[f"{module}.lora_A.weight"] * (alpha / rank)
            weights[f"{module.removeprefix('base_model.model.')}.weight"] += torch.from_numpy(delta)
    batch = _batch(engine, 1.0)
    _, expected = _exact_gradient(model, batch, policy)
    found: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    for module in modules:
        into = expected[f"{module.removeprefix('base_model.model.')}.weight"] * (alpha / rank)
        a, b = adapter[f"{module}.lora_A.weight"], adapter[f"{module}.lora_B.weight"]
        for part, grad in (("A", b.T @ into), ("B", into @ a.T)):
            np.testing.assert_allclose(
                found[f"{module}.lora_{part}.weight"], grad, atol=3e-4 * np.abs(grad).max() + 1e-7, err_msg=module
            )


def test_other_architectures_are_left_to_transformers(
    any_architecture: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path]
) -> None:
    """GPT-NeoX stands for all of them: greedy tokens, log-probabilities, loss and gradient."""
    engine, model = load(any_architecture, "gpt_neox"), exact_model(model_folder("gpt_neox"))
    assert "transformers" in engine.info.extra["computed_by"]
    for prompt, group in zip(PROMPTS, engine.generate(PROMPTS, 2, Sampling(0.0, 1.0, 12), seed=0), strict=True):
        ids = torch.tensor([prompt])
        expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=12)
        assert list(group[1].tokens) == expected[0, len(prompt) :].tolist()
    policy = POLICIES["gspo"]
    batch = _batch(engine, policy.temperature)
    loss, grads = _exact_gradient(model, batch, policy)
    found: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    assert found.keys() == grads.keys()
    largest = max(float(np.abs(grad).max()) for grad in grads.values())
    for name, grad in grads.items():
        np.testing.assert_allclose(found[name], grad, atol=2e-4 * largest, err_msg=name)
    assert engine.update(batch, policy, seed=0).loss == pytest.approx(loss, abs=1e-5)
