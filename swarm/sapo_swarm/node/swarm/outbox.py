"""SelectSubset: which of a round's groups go to the swarm, and which never leave this machine. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sapo_swarm.protocol.wire import MAX_GROUPS, GroupBody, SharedCompletion
from sapo_swarm.sapo.training_batch import has_advantage
from sapo_swarm.tasks.own.library import is_own
from sapo_swarm.types import MAX_COMPLETION_BYTES, Group, Rollout

Together = frozenset[tuple[str, str]]
"""(name, generator) of the tasks of people's own that the members of the swarm train on together."""

MAX_COMPLETIONS = 16
LATE_ROUNDS = 3
"""Groups of so many rounds before the newest may go out with it: an upload comes every 5 s, a tiny model's round every 2."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """What the next upload may carry: a round's groups, the external groups that its batch wants, and late: non-zero-advantage
    groups of rounds before it that no upload has carried, with their rounds, the newest first."""

    round_number: int
    local: Sequence[Group]
    wanted: int
    late: tuple[tuple[int, Group], ...] = ()

    def after(self, before: Outbox | None) -> Outbox:
        """The outbox of a round, where that of an earlier one has not gone out yet."""
        if before is None:
            return self
        late = (*((before.round_number, group) for group in before.local if has_advantage(group)), *before.late)
        recent = tuple((number, group) for number, group in late if self.round_number - number <= LATE_ROUNDS)
        return Outbox(self.round_number, self.local, self.wanted, recent[:MAX_GROUPS])

    def selected(self, share_fraction: float, together: Together) -> list[tuple[int, Group]]:
        """The part that the swarm asks for, with the rounds: non-zero-advantage groups first, as receivers leave the others out,
        and the newest of these.

        Without a group that the protocol does not take: it would have the whole upload refused.
        """
        made = [(self.round_number, group) for group in self.local]
        made = [(number, group) for number, group in (*made, *self.late) if may_leave(group, together)]
        most = min(MAX_GROUPS, math.ceil(share_fraction * len(made)))
        ranked = sorted(made, key=lambda one: has_advantage(one[1]), reverse=True)
        return [one for one in ranked[:most] if _fits(one[1])]


def may_leave(group: Group, together: Together) -> bool:
    """A task of the person's own is private, unless this version of it is one that the members train on together. Episodes in an
    environment never leave."""
    if any(rollout.turns for rollout in group.rollouts):
        return False
    ref = group.question.ref
    return not is_own(ref) or (ref.dataset, ref.generator) in together


def _fits(group: Group) -> bool:
    longest = max((len(r.text.encode()) for r in group.rollouts), default=0)
    return len(group.rollouts) >= 2 and longest <= MAX_COMPLETION_BYTES


def body_of(group: Group, round_number: int, node: str, model: str, ts: int) -> GroupBody:
    """What is signed of a group. ts: milliseconds since the Unix epoch."""
    return GroupBody(
        ref=group.question.ref,
        prompt_sha256=group.question.prompt_sha256,
        completions=tuple(SharedCompletion(text=r.text, finish=r.finish) for r in group.rollouts[:MAX_COMPLETIONS]),
        node=node,
        model=model,
        policy_step=round_number,
        ts=ts,
    )


def interleaved(groups: Sequence[Group]) -> Iterator[tuple[Rollout, Group]]:
    """Rollouts with their groups: the first of every group, then the second, and so on."""
    for place in range(max((len(group.rollouts) for group in groups), default=0)):
        yield from ((group.rollouts[place], group) for group in groups if place < len(group.rollouts))
