"""The float64 reference itself: against finite differences, and against figures worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_backends.base import PolicyUpdate, TrainSample
from sapo_backends.common.update import split_minibatches
from sapo_backends.reference import log_softmax, sampling_distribution, surrogate_loss

RNG = np.random.default_rng(0)


def _batch() -> tuple[list[np.ndarray], list[TrainSample]]:
    logits = [RNG.normal(0, 2, (length, 7)) for length in (3, 1, 4)]
    batch = []
    for rows, advantage in zip(logits, (1.3, -0.7, 0.4), strict=True):
        tokens = tuple(int(t) for t in RNG.integers(0, 7, len(rows)))
        chosen = log_softmax(rows)[np.arange(len(rows)), list(tokens)]
        old = tuple(chosen + RNG.normal(0, 0.2, len(rows)))
        behaviour = tuple(np.array(old) + RNG.normal(0, 0.5, len(rows)))
        batch.append(TrainSample((1,), tokens, advantage, old_logprobs=old, behaviour_logprobs=behaviour))
    return logits, batch


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_the_analytic_gradient_equals_finite_differences(ratio_level: str, aggregation: str) -> None:
    """Every variant of the update, at a temperature, in every coordinate."""
    policy = PolicyUpdate(
        1e-3,
        ratio_level=ratio_level,
        aggregation=aggregation,
        constant_length=9,
        temperature=0.9,  # type: ignore[arg-type]
    )
    logits, batch = _batch()
    gradients = surrogate_loss(logits, batch, policy).gradients
    step = 1e-6
    for i, rows in enumerate(logits):
        for index in np.ndindex(rows.shape):
            shifted = [r.copy() for r in logits]
            shifted[i][index] += step
            higher = surrogate_loss(shifted, batch, policy).loss
            shifted[i][index] -= 2 * step
            lower = surrogate_loss(shifted, batch, policy).loss
            assert gradients[i][index] == pytest.approx((higher - lower) / (2 * step), abs=1e-7)


@pytest.mark.parametrize("ratio_level", ["token", "sequence"])
@pytest.mark.parametrize("aggregation", ["token_mean", "sequence_mean", "constant"])
def test_a_mask_leaves_what_a_batch_of_the_other_tokens_gives(ratio_level: str, aggregation: str) -> None:
    """Loss, entropy, clips and gradients are those of completions without the masked tokens and their logits."""
    policy = PolicyUpdate(1e-3, ratio_level=ratio_level, aggregation=aggregation, constant_length=9)  # type: ignore[arg-type]
    logits, batch = _batch()
    masks = [(True, False, True), (True,), (False, True, True, False)]
    masked = [replace(s, loss_mask=mask) for s, mask in zip(batch, masks, strict=True)]
    short = [
        TrainSample(
            s.prompt,
            tuple(s.masked(s.completion)),
            s.advantage,
            old_logprobs=tuple(s.masked(s.old_logprobs or ())),
            behaviour_logprobs=tuple(s.masked(s.behaviour_logprobs or ())),
        )
        for s in masked
    ]
    rows = [r[np.array(mask)] for r, mask in zip(logits, masks, strict=True)]
    found, expected = surrogate_loss(logits, masked, policy), surrogate_loss(rows, short, policy)
    assert (found.loss, found.entropy, found.clip_fraction, found.ratio_max) == (
        expected.loss,
        expected.entropy,
        expected.clip_fraction,
        expected.ratio_max,
    )
    for grad, part, mask in zip(found.gradients, expected.gradients, masks, strict=True):
        np.testing.assert_array_equal(grad[np.array(mask)], part)
        assert not grad[~np.array(mask)].any()


def test_ratio_one_is_the_plain_policy_gradient() -> None:
    """Token mean of -A (onehot - p), with tokens of samples without advantage in the denominator."""
    logits = [np.array([[0.0, np.log(3.0)]]), np.zeros((1, 2))]
    batch = [TrainSample((1,), (1,), 2.0), TrainSample((1,), (0,), 0.0)]
    result = surrogate_loss(logits, batch, PolicyUpdate(1e-3))
    assert result.loss == pytest.approx(-1.0)
    np.testing.assert_allclose(result.gradients[0], [[0.25, -0.25]])
    np.testing.assert_array_equal(result.gradients[1], 0.0)


def test_the_clip_stops_what_went_too_far_only() -> None:
    """A ratio above 1 + clip_high stops a good token, not a bad one."""
    logits = [np.zeros((1, 2))]
    sample = TrainSample((1,), (0,), 1.0, old_logprobs=(float(np.log(0.25)),))  # ratio 2
    policy = PolicyUpdate(1e-3)
    good, bad = (surrogate_loss(logits, [replace(sample, advantage=a)], policy) for a in (1.0, -1.0))
    assert (good.clip_fraction, bad.clip_fraction) == (1.0, 0.0)
    assert not good.gradients[0].any()
    assert bad.gradients[0].any()
    assert good.loss == pytest.approx(-1.28)


@given(st.lists(st.floats(-30, 30), min_size=2, max_size=40), st.floats(0.05, 1.0), st.floats(0.2, 3.0))
def test_the_nucleus_is_the_smallest_set_that_reaches_top_p(
    logits: list[float], top_p: float, temperature: float
) -> None:
    """It sums to 1, holds the most probable token, and loses top_p if its least token is taken away."""
    full = sampling_distribution(logits, temperature)
    kept = sampling_distribution(logits, temperature, top_p)
    assert kept.sum() == pytest.approx(1.0)
    assert kept[int(full.argmax())] > 0
    mass = full[kept > 0]
    assert mass.sum() >= top_p - 1e-9
    assert mass.sum() - mass.min() < top_p + 1e-9


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 5), st.integers(1, 12))
def test_every_epoch_uses_each_sample_once(epochs: int, parts: int, size: int) -> None:
    """Minibatches are a partition of the batch in each epoch, in an order that the seed decides."""
    batch = [TrainSample((i,), (i,), 1.0, old_logprobs=(0.0,)) for i in range(size)]
    policy = PolicyUpdate(1e-3, epochs=epochs, minibatches=parts)
    made = split_minibatches(batch, policy, 5, lambda sequences, temperature: [])
    assert sorted(s.prompt[0] for part in made for s in part) == sorted(list(range(size)) * epochs)
    assert made == split_minibatches(batch, policy, 5, lambda sequences, temperature: [])
