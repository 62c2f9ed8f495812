"""The policy-gradient update in NumPy float64, written to be read: every engine is compared with it.

Sources: GRPO (arXiv 2402.03300), asymmetric clip and token mean (DAPO, arXiv 2503.14476), Dr. GRPO (arXiv 2503.20783),
sequence ratio (GSPO, arXiv 2507.18071), truncated importance sampling (Yao et al. 2025).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sapo_backends.base import PolicyUpdate, TrainSample, token_weight

Float64 = NDArray[np.float64]


def log_softmax(logits: ArrayLike, temperature: float = 1.0) -> Float64:
    """Log-probabilities over the last axis, exact to float64 rounding."""
    scaled = np.asarray(logits, dtype=np.float64) / temperature
    shifted = scaled - scaled.max(axis=-1, keepdims=True)
    result: Float64 = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return result


def sampling_distribution(logits: ArrayLike, temperature: float, top_p: float = 1.0) -> Float64:
    """Probabilities (V,) that a sampler must follow.

    Temperature 0 puts all mass on the first largest logit. top_p keeps the smallest set of most probable tokens whose
    mass reaches top_p (the token that crosses it included) and renormalises.
    """
    values = np.asarray(logits, dtype=np.float64)
    if temperature == 0.0:
        greedy = np.zeros_like(values)
        greedy[int(values.argmax())] = 1.0
        return greedy
    probabilities: Float64 = np.exp(log_softmax(values, temperature))
    if top_p >= 1.0:
        return probabilities
    order = np.argsort(-probabilities, kind="stable")
    before = np.cumsum(probabilities[order]) - probabilities[order]
    nucleus = np.zeros_like(probabilities)
    nucleus[order[before < top_p]] = probabilities[order[before < top_p]]
    result: Float64 = nucleus / nucleus.sum()
    return result


@dataclass(frozen=True, slots=True)
class SampleTerm:
    """One sample's part of the objective, over its L tokens that carry loss.

    value: the unnormalised objective per token (L,). grad: d sum(value)/d logprob (L,), before token weights.
    """

    value: Float64
    grad: Float64
    clipped: NDArray[np.bool_]
    ratio: Float64


def importance_weight(sample: TrainSample, old: Float64, policy: PolicyUpdate) -> Float64:
    """Truncated weight pi_old / pi_behaviour (L,): per token, or its geometric mean over the sequence for a sequence
    ratio."""
    if sample.behaviour_logprobs is None:
        return np.ones_like(old)
    log_ratio = old - np.asarray(sample.masked(sample.behaviour_logprobs), dtype=np.float64)
    if policy.ratio_level == "sequence":
        log_ratio = np.full_like(log_ratio, log_ratio.mean())
    result: Float64 = np.minimum(np.exp(log_ratio), policy.tis_cap)
    return result


def sample_term(sample: TrainSample, logprobs: Float64, policy: PolicyUpdate) -> SampleTerm:
    """min(r A, clip(r) A) for the L tokens of one completion that carry loss, and its derivative by their
    log-probabilities."""
    known = sample.old_logprobs
    old = logprobs if known is None else np.asarray(sample.masked(known), dtype=np.float64)
    difference = logprobs - old
    if policy.ratio_level == "sequence":
        difference = np.full_like(difference, difference.mean())
    ratio = np.exp(difference)
    advantage = sample.advantage
    limited = np.clip(ratio, 1.0 - policy.clip_low, 1.0 + policy.clip_high)
    clipped = ratio * advantage > limited * advantage
    weight = importance_weight(sample, old, policy)
    value = np.where(clipped, limited, ratio) * advantage * weight
    grad = np.where(clipped, 0.0, ratio) * advantage * weight
    if policy.ratio_level == "sequence":
        grad = np.full_like(grad, grad.mean())
    return SampleTerm(value, grad, clipped, ratio)


@dataclass(frozen=True, slots=True)
class SurrogateLoss:
    """loss: the scalar to minimise. gradients[i]: d loss / d logits of sample i (T_i, V), 0 where a token carries no
    loss.
    logprobs[i]: of the tokens that carry loss. The other fields are as in UpdateStats."""

    loss: float
    gradients: list[Float64]
    logprobs: list[Float64]
    clip_fraction: float
    entropy: float
    ratio_max: float


def surrogate_loss(logits: Sequence[ArrayLike], batch: Sequence[TrainSample], policy: PolicyUpdate) -> SurrogateLoss:
    """Loss and analytic gradient of one minibatch. logits[i] (T_i, V) predict sample i's completion tokens."""
    loss = 0.0
    gradients, token_logprobs, entropies, clipped, ratios = [], [], [], [], [1.0]
    for sample, raw in zip(batch, logits, strict=True):
        logprobs = log_softmax(raw, policy.temperature)  # (T, V)
        rows = np.asarray(sample.masked(range(len(sample.completion))), dtype=np.int64)  # (L,) of T
        tokens = np.asarray(sample.masked(sample.completion), dtype=np.int64)
        chosen = logprobs[rows, tokens]  # (L,)
        weight = token_weight(sample, batch, policy) if sample.learned else 0.0
        gradient = np.zeros_like(logprobs)
        logprobs = logprobs[rows]  # (L, V)
        probabilities = np.exp(logprobs)
        entropies.append(-(probabilities * logprobs).sum(axis=-1))
        token_logprobs.append(chosen)
        if sample.advantage != 0.0 and sample.learned:
            term = sample_term(sample, chosen, policy)
            loss -= weight * float(term.value.sum())
            probabilities[np.arange(len(rows)), tokens] -= 1.0  # p - onehot = -d logprob / d logits
            gradient[rows] = probabilities * (weight * term.grad / policy.temperature)[:, None]
            clipped.append(term.clipped)
            ratios.append(float(term.ratio.max()))
        gradients.append(gradient)
    return SurrogateLoss(
        loss=loss,
        gradients=gradients,
        logprobs=token_logprobs,
        clip_fraction=float(np.concatenate(clipped).mean()) if clipped else float("nan"),
        entropy=float(np.concatenate(entropies).mean()) if entropies else float("nan"),
        ratio_max=max(ratios),
    )
