"""The groups that the nodes of a lab swarm have shared, and which of them a node may sample in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sapo_lab.conditions import is_delivered, node_key
from sapo_lab.schema import ArmConditions
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.round_phases import ReceivedGroups
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group


class SharedGroup(msgspec.Struct, frozen=True):
    """A group as the other nodes see it, the round it was generated in, and the bytes of one delivery."""

    group: Group
    round: int
    size: int

    @property
    def key(self) -> str:
        """Identifies the group among all shared ones."""
        return key_of(self.group)


def key_of(group: Group) -> str:
    """Identifies a shared group."""
    return f"{group.node}|{group.question.ref.label}"


def as_shared_groups(groups: Sequence[Group], node: str, round_number: int, upload: int) -> list[SharedGroup]:
    """A node's groups of a round as the others see them; upload: bytes of all of them together."""
    size = -(-upload // max(len(groups), 1))
    received = (msgspec.structs.replace(group, source="external", node=node, advantages=()) for group in groups)
    return [SharedGroup(group, round_number, size) for group in received]


class GroupHistory:
    """Everything shared that a later round may still sample from."""

    def __init__(self, conditions: ArmConditions, seed: int, groups: Sequence[SharedGroup] = ()) -> None:
        self._conditions, self._seed = conditions, seed
        self._groups = list(groups)

    @property
    def groups(self) -> tuple[SharedGroup, ...]:
        """For a checkpoint."""
        return tuple(self._groups)

    def add(self, groups: Sequence[SharedGroup], round_number: int) -> None:
        """Add what was shared in a round; what is too old for the next round is forgotten."""
        oldest = round_number - self._conditions.staleness - self._conditions.pool_rounds - 1
        self._groups = [s for s in self._groups if s.round > oldest] + list(groups)

    def pool(self, receiver: int, round_number: int, used: set[str]) -> list[SharedGroup]:
        """What a node may sample in this round: old enough, not too old, arrived, not used before (or reused).

        Its local groups are available from the round after the one they were generated in.
        """
        terms = self._conditions
        newest = round_number - terms.staleness
        me = node_key(receiver)
        groups: list[SharedGroup] = []
        for item in self._groups:
            mine = item.group.node == me
            if mine and (terms.pool_from == "others" or item.round >= round_number):
                continue
            if not mine and terms.pool_from == "own":
                continue
            last = round_number - 1 if mine else newest
            if not last - terms.pool_rounds < item.round <= last or (item.key in used and not terms.reuse):
                continue
            if mine or is_delivered(terms, self._seed, receiver, item.group):
                groups.append(item)
        return groups


@dataclass
class Mailbox:
    """Implements round_phases.GroupExchange for a node of the lab: the runner fills it before the node's exchange, and
    nothing goes over a network."""

    groups: tuple[Group, ...] = ()
    sent: int = 0
    received: int = 0

    def attach(self, host: EngineThread, scorer: Scorer, excluded: frozenset[str]) -> None:
        """Nothing to verify: the runner has checked what it delivers."""
        del host, scorer, excluded

    def prompts_to_sample(self, own: int, external: int) -> int:
        """A synchronous node samples I questions and sees what the others shared afterwards."""
        del external
        return own

    def take(self, taking: bool) -> None:
        """The lab has no tripwire."""
        del taking

    async def exchange(self, round_number: int, own: Sequence[Group], wanted: int) -> ReceivedGroups:
        """What the runner delivered."""
        del round_number, own, wanted
        return ReceivedGroups(self.groups, self.sent, self.received)

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        """No swarm statistics."""
        del groups, batch
        return None

    async def close(self) -> None:
        """Nothing is open."""
