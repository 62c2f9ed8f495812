"""Rewards of a group to advantages of its completions. float64 throughout."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

EPSILON = 1e-6
MIN_SPREAD = 0.05
"""Standard deviation under which a group gives zero advantages: eight strict 0/1 rewards have 0 or at least 0.33, partial
credit of 0.01 against 0.05 has 0.02 and must not become plus and minus one sigma."""

Rewards = NDArray[np.float64]
Advantages = NDArray[np.float64]
AdvantageRule = Callable[[Rewards], Advantages]
"""(G,) rewards -> (G,) advantages of one group; all zero where its rewards are (nearly) equal."""


def as_rewards(rewards: Sequence[float] | Rewards) -> Rewards:
    """(G,) float64. Raises ValueError on NaN, infinity or an empty group."""
    values = np.asarray(rewards, dtype=np.float64)
    if values.ndim != 1 or values.size == 0 or not np.isfinite(values).all():
        raise ValueError(f"A group needs finite rewards, not {rewards!r}.")
    return values


def spread(rewards: Rewards) -> float:
    """Population standard deviation of a group's rewards."""
    return float(np.std(rewards))


def normalised(rewards: Rewards) -> Advantages:
    """(r - mean) / (std + EPSILON): GRPO (arXiv 2402.03300, section 4.1.2); zero where std < MIN_SPREAD."""
    deviation = spread(rewards)
    if deviation < MIN_SPREAD:
        return np.zeros_like(rewards)
    advantages: Advantages = (rewards - rewards.mean()) / (deviation + EPSILON)
    return advantages


def centred(rewards: Rewards) -> Advantages:
    """r - mean, not divided by the deviation: Dr. GRPO (arXiv 2503.20783, section 3.2)."""
    if spread(rewards) < MIN_SPREAD:
        return np.zeros_like(rewards)
    advantages: Advantages = rewards - rewards.mean()
    return advantages


def mean_normalised(rewards: Rewards) -> Advantages:
    """(r - mean) / mean: MaxRL (arXiv 2602.02710). Zero where std < MIN_SPREAD; rewards are not negative."""
    mean = float(rewards.mean())
    if spread(rewards) < MIN_SPREAD or mean <= 0.0:
        return np.zeros_like(rewards)
    advantages: Advantages = rewards / mean - 1.0
    return advantages


def leave_one_out(rewards: Rewards) -> Advantages:
    """r_i - mean of the others: RLOO (arXiv 2402.14740, section 2.2). Equals centred * G / (G - 1)."""
    size = rewards.size
    if size < 2 or spread(rewards) < MIN_SPREAD:
        return np.zeros_like(rewards)
    advantages: Advantages = (rewards - rewards.mean()) * (size / (size - 1))
    return advantages
