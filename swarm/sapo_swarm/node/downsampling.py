"""Which old records stay, as pure rules: dense for the recent past, sparse for long ago, bounded whatever the length."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import msgspec

from sapo_backends.errors import size_text
from sapo_swarm.events import RoundFinished

DENSE = 2048
"""The newest rounds keep their figures one by one; of every doubling of the age beyond, a quarter as many stay."""
_SUMS = (
    "local_groups",
    "external_groups",
    "external_wanted",
    "nonzero_groups",
    "truncated",
    "well_formed",
    "completions",
    "tokens_generated",
    "tokens_trained",
    "bytes_sent",
    "bytes_received",
    "examples",
)
_MEANS = (
    "reward_local",
    "reward_external",
    "reward_batch",
    "loss",
    "grad_norm",
    "entropy",
    "clip_fraction",
    "logprob_local",
    "logprob_external",
)
_RANGED = ("reward_local", "reward_external", "loss", "grad_norm", "entropy")
"""Figures whose smallest and largest value in a round are kept."""


def merge_boundary(level: int, newest: int) -> int:
    """Rounds before this one are stored in blocks of 2**level when the newest round is `newest`; 0 or less: none yet."""
    return newest - (DENSE << max(level - 2, 0))


def merge_rounds(rounds: Sequence[RoundFinished]) -> RoundFinished:
    """One record for consecutive rounds (at least one): counts and seconds are sums, figures are means over rounds,
    some with their range; its round is the last one."""
    total = sum(r.covers for r in rounds)
    changes: dict[str, object] = {name: sum(getattr(r, name) for r in rounds) for name in _SUMS}
    changes |= {name: _mean([(getattr(r, name), r.covers) for r in rounds]) for name in _MEANS}
    ratios = [r.ratio_max for r in rounds if r.ratio_max is not None]
    changes |= {"ratio_max": max(ratios) if ratios else None, "covers": total, "figures": {}}
    tasks = sorted({task for r in rounds for task in r.task_rewards})
    rewards = {task: _mean([(r.task_rewards.get(task), r.covers) for r in rounds]) for task in tasks}
    changes["task_rewards"] = {task: value for task, value in rewards.items() if value is not None}
    changes["taught"] = dict(sum((Counter(r.taught) for r in rounds), Counter[str]()))
    phases = sorted({phase for r in rounds for phase in r.seconds})
    changes["seconds"] = {phase: sum(r.seconds.get(phase, 0.0) for r in rounds) for phase in phases}
    changes["lowest"] = _extremes(rounds, "lowest", lambda values: min(values))
    changes["highest"] = _extremes(rounds, "highest", lambda values: max(values))
    return msgspec.structs.replace(rounds[-1], **changes)


def _mean(values: Sequence[tuple[float | None, int]]) -> float | None:
    pairs = [(value, weight) for value, weight in values if value is not None]
    return sum(v * w for v, w in pairs) / sum(w for _, w in pairs) if pairs else None


def _extremes(rounds: Sequence[RoundFinished], field: str, pick: Callable[[list[float]], float]) -> dict[str, float]:
    extremes: dict[str, float] = {}
    for name in _RANGED:
        values = [getattr(r, field).get(name, getattr(r, name)) for r in rounds]
        known = [value for value in values if value is not None]
        if known:
            extremes[name] = pick(known)
    return extremes


SPARSE_ROOM = {"log": 2000, "state": 2000, "run_started": 1000, "swarm": 800, "evaluation": 400, "checkpoint": 100_000}
"""For these kinds this many of the newest stay, and older ones grow sparser with age. All events of other kinds stay.
"""


def sequences_to_drop(seqs: Sequence[int], newest: int, room: int) -> set[int]:
    """Which of the ascending sequence numbers to drop: those that stay are at least age / room apart, and the first
    stays."""
    gone: set[int] = set()
    last: int | None = None
    for seq in seqs[: max(0, len(seqs) - room)]:
        if last is not None and (seq - last) * room < newest - seq:
            gone.add(seq)
        else:
            last = seq
    return gone


def pinned_ones(rounds: Iterable[int], pinned: Iterable[int]) -> list[int]:
    """For each pinned number the checkpoint (by rounds) of exactly that many rounds, or else (the disk was full) the
    newest before it; in the order of `pinned`, each once."""
    there = list(rounds)
    nearest = (max((number for number in there if number <= wanted), default=None) for wanted in pinned)
    return list(dict.fromkeys(number for number in nearest if number is not None))


def checkpoints_to_drop(rounds: Sequence[int], keep: int, pinned: Iterable[int]) -> list[int]:
    """Checkpoints (by rounds, ascending) that may go: all but the newest `keep`, the pinned ones, the first one, and
    the oldest of every doubling of the age."""
    if not rounds:
        return []
    newest = rounds[-1]
    stays = {*rounds[-keep:], rounds[0], *pinned_ones(rounds, pinned)}
    ages: dict[int, int] = {}
    for number in rounds:
        ages.setdefault((newest - number).bit_length(), number)
    return [number for number in rounds if number not in stays and number not in ages.values()]


def over_budget(weights: int, budget: int) -> str:
    """Why checkpoints of this size never fit that disk budget (0: none), and what to do; "" if they do."""
    needed = 2 * weights
    if not budget or needed <= budget:
        return ""
    return (
        f"2 checkpoints of this model's weights take {size_text(needed)} (one is written before the other goes), and its disk "
        f"budget is {size_text(budget)}. Take --method lora, or --disk-budget-gb {needed / 1e9 + 0.1:.1f}"
    )
