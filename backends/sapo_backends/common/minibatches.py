"""How every trainer cuts a batch into minibatches: the order, the frozen old log-probabilities, the means."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from sapo_backends.base import PolicyUpdate, TokenSequence, TrainSample

LogprobFn = Callable[[Sequence[TokenSequence], float], list[list[float]]]


def with_old_logprobs(batch: Sequence[TrainSample], policy: PolicyUpdate, logprob_fn: LogprobFn) -> list[TrainSample]:
    """The batch with old_logprobs filled in where they will be needed.

    With one optimizer step the ratio is 1 and nothing is computed; with more, the policy before the first step is
    scored once.
    """
    missing = [i for i, s in enumerate(batch) if s.old_logprobs is None and s.advantage != 0.0]
    filled = list(batch)
    if policy.epochs * policy.minibatches > 1 and missing:
        scored = logprob_fn([TokenSequence(batch[i].prompt, batch[i].completion) for i in missing], policy.temperature)
        for i, logprobs in zip(missing, scored, strict=True):
            filled[i] = replace(batch[i], old_logprobs=tuple(logprobs))
    return filled


def minibatches(
    batch: Sequence[TrainSample], policy: PolicyUpdate, seed: int, logprob_fn: LogprobFn
) -> list[list[TrainSample]]:
    """epochs x minibatches lists of samples, each epoch in its own seeded order; empty lists are left out."""
    filled = with_old_logprobs(batch, policy, logprob_fn)
    if policy.epochs * policy.minibatches == 1:
        return [filled] if filled else []
    rng = np.random.default_rng(seed)
    parts: list[list[TrainSample]] = []
    for _ in range(policy.epochs):
        order = rng.permutation(len(filled))
        parts += [[filled[int(i)] for i in part] for part in np.array_split(order, policy.minibatches) if len(part)]
    return parts


def token_mean(samples: Sequence[TrainSample], logprobs: Sequence[ArrayLike], *, external: bool) -> float:
    """Mean log-probability over the completion tokens of local or external samples; NaN when there are none."""
    chosen = [np.asarray(lp) for s, lp in zip(samples, logprobs, strict=True) if s.external == external]
    tokens = np.concatenate(chosen) if chosen else np.empty(0)
    return float(tokens.mean()) if tokens.size else float("nan")
