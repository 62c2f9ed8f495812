"""The loss mask: tokens of an environment are context and nothing else, in every engine as in the float64 reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.test_engine_reference import POLICIES, _batch, _exact_gradient, exact_logits, exact_model

from sapo_backends import reference
from sapo_backends.base import Engine, PolicyUpdate, TrainSample
from sapo_backends.common.update import condense, has_gradient

torch = pytest.importorskip("torch")
SUMS = PolicyUpdate(1e-3, aggregation="constant", constant_length=16)
"""Every token's part of the loss is independent of the others."""


def _by_turns(batch: list[TrainSample]) -> list[TrainSample]:
    """The batch with tokens of an environment in it: at the beginning, in the middle, at the end, everywhere, nowhere."""
    masks = ([False, True, True, True], [True, False], [True, True, False], [False], [True])
    return [
        replace(s, loss_mask=tuple((masks[i % 5] * len(s.completion))[: len(s.completion)]))
        for i, s in enumerate(batch)
    ]


@pytest.mark.parametrize("algorithm", POLICIES)
def test_tokens_of_an_environment_carry_no_loss_as_in_the_float64_reference(
    full: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path], algorithm: str
) -> None:
    """They are context: no loss, gradient, ratio, entropy or clip, and in no length of a mean."""
    policy, engine = POLICIES[algorithm], load(full)
    batch = _by_turns(_batch(engine, policy.temperature))
    loss, expected = _exact_gradient(exact_model(model_folder("qwen2")), batch, policy)
    found: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    largest = max(float(np.abs(grad).max()) for grad in expected.values())
    for name, grad in expected.items():
        np.testing.assert_allclose(found[name], grad, atol=2e-4 * largest, err_msg=name)
    stats = engine.update(batch, policy, seed=0)
    assert stats.loss == pytest.approx(loss, abs=1e-5)
    assert stats.tokens_local + stats.tokens_external == sum(sum(s.loss_mask or ()) for s in batch)


def test_a_mask_that_masks_nothing_changes_no_bit(full: Any, load: Callable[..., Engine]) -> None:
    policy, engine = POLICIES["gspo"], load(full)
    plain = _batch(engine, policy.temperature)
    masked = [replace(s, loss_mask=(True,) * len(s.completion)) for s in plain]
    found: dict[str, Any] = engine.gradient(masked, policy)  # type: ignore[attr-defined]
    expected: dict[str, Any] = engine.gradient(plain, policy)  # type: ignore[attr-defined]
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


def test_a_masked_token_s_log_probabilities_never_count(full: Any, load: Callable[..., Engine]) -> None:
    """Whatever stands there as old or behaviour log-probability, the gradient is the same."""
    policy, engine = POLICIES["rloo"], load(full)
    batch = _by_turns(_batch(engine, policy.temperature))

    def spoiled(values: tuple[float, ...] | None, mask: tuple[bool, ...]) -> tuple[float, ...] | None:
        return None if values is None else tuple(v if m else -50.0 for v, m in zip(values, mask, strict=True))

    other = [
        replace(
            s,
            old_logprobs=spoiled(s.old_logprobs, s.loss_mask or ()),
            behaviour_logprobs=spoiled(s.behaviour_logprobs, s.loss_mask or ()),
        )
        for s in batch
    ]
    found: dict[str, Any] = engine.gradient(other, policy)  # type: ignore[attr-defined]
    expected: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    assert all(np.array_equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("algorithm", POLICIES)
def test_a_condensed_minibatch_has_the_same_gradient(full: Any, load: Callable[..., Engine], algorithm: str) -> None:
    """Equal samples computed once and a common prefix computed once: the loss and every gradient stay, clipping included."""
    policy, engine = POLICIES[algorithm], load(full)
    common = tuple(engine.tokenizer.encode_text("The same words before every question. " * 4))
    batch = [replace(s, prompt=(*common, *s.prompt)) for s in _by_turns(_batch(engine, policy.temperature))]
    batch = [*batch, batch[0], *batch[:3]]
    condensed = condense(batch)
    assert {sample.prompt for sample in condensed if has_gradient(sample)} == {common}
    assert sum(sample.advantage == 0.0 for sample in condensed) >= sum(sample.advantage == 0.0 for sample in batch) + 3
    found: dict[str, Any] = engine.gradient(condensed, policy)  # type: ignore[attr-defined]
    expected: dict[str, Any] = engine.gradient(batch, policy)  # type: ignore[attr-defined]
    largest = max(float(np.abs(grad).max()) for grad in expected.values())
    for name, grad in expected.items():
        np.testing.assert_allclose(found[name], grad, atol=2e-5 * largest, err_msg=name)


def _halves(batch: list[TrainSample]) -> tuple[list[TrainSample], list[TrainSample]]:
    """The batch under a mask, and under its opposite."""
    some = _by_turns(batch)
    return some, [replace(s, loss_mask=tuple(not counts for counts in s.loss_mask or ())) for s in some]


def _adds_up(engine: Any, batch: list[TrainSample]) -> None:
    """The gradients under a mask and under its opposite add up to the gradient of all tokens."""
    parts = [engine.gradient(half, SUMS) for half in _halves(batch)]
    whole = engine.gradient(batch, SUMS)
    largest = max(float(np.abs(grad).max()) for grad in whole.values())
    assert largest > 0.0
    for name, grad in whole.items():
        np.testing.assert_allclose(parts[0][name] + parts[1][name], grad, atol=2e-4 * largest, err_msg=name)


def test_an_adapter_s_masked_gradients_add_up(lora: Any, load: Callable[..., Engine]) -> None:
    engine = load(lora)
    rng = np.random.default_rng(0)
    engine.set_adapter(
        {n: rng.normal(0, 0.1, np.shape(t)).astype(np.float32) for n, t in engine.adapter().items()}, 8.0
    )
    _adds_up(engine, _batch(engine, 1.0))


def test_masked_gradients_add_up_where_transformers_computes(
    any_architecture: Any, load: Callable[..., Engine]
) -> None:
    engine = load(any_architecture, "gpt_neox")
    assert "transformers" in engine.info.extra["computed_by"]
    _adds_up(engine, _batch(engine, 1.0))


@pytest.mark.parametrize("algorithm", ["grpo", "gspo"])
def test_every_trainer_s_masked_loss_is_the_reference_s(
    training_case: Any, load: Callable[..., Engine], model_folder: Callable[[str], Path], algorithm: str
) -> None:
    """Pairs of engines and fresh adapters too; the statistics count what carries loss alone."""
    if not training_case.reads_folders:
        pytest.skip("the fake engine's update is the reference's own")
    policy, engine, model = POLICIES[algorithm], load(training_case), exact_model(model_folder("qwen2"))
    batch = _by_turns(_batch(engine, policy.temperature))
    batch = [replace(s, behaviour_logprobs=s.behaviour_logprobs or s.old_logprobs) for s in batch]
    with torch.no_grad():
        logits = [exact_logits(model, s.prompt, s.completion).numpy() for s in batch]
    expected = reference.surrogate_loss(logits, batch, policy)
    stats = engine.update(batch, policy, seed=0)
    assert stats.loss == pytest.approx(expected.loss, abs=2e-5)
    assert stats.tokens_local + stats.tokens_external == sum(s.learned for s in batch)
    chosen = [lp for s, lp in zip(batch, expected.logprobs, strict=True) if s.external and s.advantage]
    assert stats.logprob_external == pytest.approx(float(np.concatenate(chosen).mean()), abs=1e-4)
