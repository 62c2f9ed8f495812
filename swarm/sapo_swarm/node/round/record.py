"""What a finished round leaves behind: its groups and its figures, as events."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sapo_swarm.events import GroupRecorded, RoundFinished, finite
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.types import Group

RoundEvents = list[GroupRecorded | RoundFinished]


def record(work: RoundWork, external_wanted: int, solved: set[str], checkpoint: str) -> RoundEvents:
    """The events that the finished round leaves; adds tasks solved for the first time to `solved`."""
    assert work.own is not None
    assert work.stats is not None
    assert work.completions is not None
    used = {g.question.ref: g for g in work.trained}
    events: RoundEvents = []
    for group in [*work.own, *(g for g in work.trained if g.source == "external")]:
        first = group.source == "own" and max(group.rewards) >= 1.0 and group.question.ref.dataset not in solved
        if first:
            solved.add(group.question.ref.dataset)
        kept = used.get(group.question.ref, group)
        events.append(GroupRecorded(round=work.round, group=kept, trained=any(kept.advantages), first_solved=first))
    stats, flat = work.stats, [c for group in work.completions for c in group]
    external = [g for g in work.trained if g.source == "external"]
    events.append(
        RoundFinished(
            round=work.round,
            reward_local=_mean(work.own),
            reward_external=_mean(external),
            reward_batch=_mean(work.trained),
            local_groups=len(work.trained) - len(external) if work.trained else len(work.own),
            external_groups=len(external),
            external_wanted=external_wanted,
            nonzero_groups=sum(g.nonzero_advantage for g in work.own),
            truncated=sum(c.finish == "length" for c in flat),
            well_formed=work.well_formed,
            completions=len(flat),
            tokens_generated=sum(len(c.tokens) for c in flat),
            tokens_trained=stats.tokens_local + stats.tokens_external,
            bytes_sent=work.bytes_sent,
            bytes_received=work.bytes_received,
            loss=finite(stats.loss),
            grad_norm=finite(stats.grad_norm),
            entropy=finite(stats.entropy),
            clip_fraction=finite(stats.clip_fraction),
            logprob_local=finite(stats.logprob_local),
            logprob_external=finite(stats.logprob_external),
            ratio_max=finite(stats.ratio_max),
            task_rewards=_by_task(work.own),
            seconds=dict(work.seconds),
            checkpoint=checkpoint,
            figures={"replayed": float(work.replayed)} if work.replayed else {},
        )
    )
    return events


def _mean(groups: Sequence[Group]) -> float | None:
    rewards = [r for g in groups for r in g.rewards]
    return sum(rewards) / len(rewards) if rewards else None


def _by_task(groups: Sequence[Group]) -> dict[str, float]:
    tasks = sorted({g.question.ref.dataset for g in groups})
    means = {t: _mean([g for g in groups if g.question.ref.dataset == t]) for t in tasks}
    return {t: m for t, m in means.items() if m is not None}


def stamp(events: Sequence[GroupRecorded | RoundFinished], now: float) -> RoundEvents:
    """The same events with their time set, so that a copy in a checkpoint and the journal agree."""
    return [msgspec.structs.replace(e, time=now) for e in events]
