"""SelectSubset: which of a round's groups go to the swarm, and which never leave this machine. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from sapo_swarm.protocol.wire import MAX_GROUPS
from sapo_swarm.sapo.sample_external import has_advantage
from sapo_swarm.tasks.own.library import is_own
from sapo_swarm.types import MAX_COMPLETION_BYTES, Group, Rollout

Together = frozenset[tuple[str, str]]
"""(name, generator) of the tasks of people's own that the members of the swarm train on together."""


def may_leave(group: Group, together: Together) -> bool:
    """A task of the person's own is private, unless this version of it is one that the members train on together. Episodes in an
    environment never leave."""
    if any(rollout.turns for rollout in group.rollouts):
        return False
    ref = group.question.ref
    return not is_own(ref) or (ref.dataset, ref.generator) in together


def selected(local: Sequence[Group], share_fraction: float, together: Together) -> list[Group]:
    """The part of the groups that the swarm asks for, those with signal first: receivers leave the others out.

    Without a group that the protocol does not take: it would have the whole upload refused.
    """
    local = [group for group in local if may_leave(group, together)]
    most = min(MAX_GROUPS, math.ceil(share_fraction * len(local)))
    return [group for group in sorted(local, key=has_advantage, reverse=True)[:most] if _fits(group)]


def _fits(group: Group) -> bool:
    longest = max((len(r.text.encode()) for r in group.rollouts), default=0)
    return len(group.rollouts) >= 2 and longest <= MAX_COMPLETION_BYTES


def interleaved(groups: Sequence[Group]) -> Iterator[tuple[Rollout, Group]]:
    """Rollouts with their groups: the first of every group, then the second, and so on."""
    for place in range(max((len(group.rollouts) for group in groups), default=0)):
        yield from ((group.rollouts[place], group) for group in groups if place < len(group.rollouts))
