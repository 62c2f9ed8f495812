"""SampleExternal: which external groups enter the batch. Strategies are found by name.

================  ====================================================================================================
uniform_nonzero   the paper's controlled experiment: drop groups whose advantages are all zero, sample uniformly
uniform           the paper's open demo: sample uniformly, no filter
reward_guided     as uniform_nonzero, with weight p (1 - p) of the group's mean reward p: half-solved questions have
                  the largest policy gradient
novelty           as uniform_nonzero, with more weight on what this node has rarely trained on
none              no external groups
================  ===================================================================================================="""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from sapo_swarm.registry import UnknownName
from sapo_swarm.sapo.advantage import MIN_SPREAD, as_rewards, spread
from sapo_swarm.tasks.prompts import extract_answer
from sapo_swarm.types import Group

ENDING = 64
"""Characters of a text that stand for its answer where it has no answer tags."""
SEEN_KEPT = 16_384
"""Keys whose times are remembered: a week of fresh answers is without bound."""
Seen = Mapping[str, int]
"""Key of keys(group) -> times trained on."""


def keys(group: Group) -> list[str]:
    """The task, and each distinct correct answer to it: questions are always fresh, what they teach is not."""
    task = group.question.ref.dataset
    answers = {extract_answer(r.text) or r.text[-ENDING:] for r in group.rollouts if r.reward >= 1.0}
    return [task, *(f"{task}={answer}" for answer in sorted(answers))]


def observe_trained(seen: Counter[str], groups: Iterable[Group]) -> None:
    """Count groups that went into an update. Of SEEN_KEPT keys at most: what was not trained on for longest is forgotten."""
    for group in groups:
        for key in keys(group):
            seen[key] = seen.pop(key, 0) + 1  # the newest last
    for key in list(islice(seen, max(0, len(seen) - SEEN_KEPT))):
        del seen[key]


def novelty(groups: Sequence[Group], seen: Seen) -> NDArray[np.float64]:
    """(N,) in (0, 1]: 1 for a task and answers never trained on, less the more often they were.

    The geometric mean of 1 / sqrt(1 + count) over the task and its answers, as a count-based bonus of exploration
    (arXiv 1606.01868, section 2).
    """
    return np.array([np.exp(np.mean([-0.5 * np.log1p(seen.get(key, 0)) for key in keys(g)])) for g in groups])


Strategy = Callable[[Sequence[Group], Seen], NDArray[np.float64]]
"""(N,) non-negative weights of N groups, given what the node has trained on; 0 leaves a group out."""
NOTHING: Seen = {}


def has_advantage(group: Group) -> bool:
    """The group's advantages are not all zero: the spread of its rewards reaches MIN_SPREAD."""
    return spread(as_rewards(group.rewards)) >= MIN_SPREAD


def _uniform(groups: Sequence[Group], _seen: Seen = NOTHING) -> NDArray[np.float64]:
    return np.ones(len(groups))


def _uniform_nonzero(groups: Sequence[Group], _seen: Seen = NOTHING) -> NDArray[np.float64]:
    return np.array([float(has_advantage(g)) for g in groups])


def _reward_guided(groups: Sequence[Group], _seen: Seen = NOTHING) -> NDArray[np.float64]:
    means = np.array([np.mean(g.rewards) for g in groups])
    floor = 1e-3  # a group with a mean of (almost) 0 or 1 stays possible
    return _uniform_nonzero(groups) * np.maximum(means * (1.0 - means), floor)


def _novelty(groups: Sequence[Group], seen: Seen = NOTHING) -> NDArray[np.float64]:
    weights: NDArray[np.float64] = _uniform_nonzero(groups) * novelty(groups, seen)
    return weights


def _none(groups: Sequence[Group], _seen: Seen = NOTHING) -> NDArray[np.float64]:
    return np.zeros(len(groups))


STRATEGIES: dict[str, Strategy] = {
    "uniform_nonzero": _uniform_nonzero,
    "uniform": _uniform,
    "reward_guided": _reward_guided,
    "novelty": _novelty,
    "none": _none,
}


def strategy(name: str) -> Strategy:
    """Raises UnknownName, which names the nearest."""
    found = STRATEGIES.get(name)
    if found is None:
        raise UnknownName("sampling strategy", name, STRATEGIES)
    return found


def sample_external(
    pool: Sequence[Group],
    wanted: int,
    random: np.random.Generator,
    sampling: str = "uniform_nonzero",
    per_source: int | None = 1,
    seen: Seen = NOTHING,
) -> list[Group]:
    """Up to `wanted` groups of the pool, without replacement, at most per_source of one node (None: no cap).

    One draw after another with probability proportional to the strategy's weights; a node whose cap is reached leaves
    the pool. Fewer come back where fewer survive the filter and the cap. Raises UnknownName.
    """
    if wanted < 0 or (per_source is not None and per_source < 1):
        raise ValueError(f"Cannot sample {wanted} groups with at most {per_source} a source.")
    if not pool or wanted == 0:
        strategy(sampling)
        return []
    weights = np.array(strategy(sampling)(pool, seen), dtype=np.float64)
    taken: dict[str, int] = {}
    chosen: list[Group] = []
    while len(chosen) < wanted and weights.sum() > 0:
        index = int(random.choice(len(pool), p=weights / weights.sum()))
        group = pool[index]
        chosen.append(group)
        weights[index] = 0.0
        taken[group.node] = taken.get(group.node, 0) + 1
        if taken[group.node] == per_source:
            weights[[i for i, other in enumerate(pool) if other.node == group.node]] = 0.0
    return chosen
