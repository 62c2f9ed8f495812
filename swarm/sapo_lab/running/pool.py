"""What the nodes of a lab swarm have shared, and which of it a node may draw from in a round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from sapo_backends.base import Completion
from sapo_lab.conditions import arrives, node_key
from sapo_lab.schema import Conditions
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.swarm.exchange import Received
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group


class Shared(msgspec.Struct, frozen=True):
    """A group as others see it, when it was drawn, and what one delivery of it weighs.

    logprobs: of each completion's tokens under the sender's policy, kept only where a correction asks for them; the
    wire carries none.
    """

    group: Group
    round: int
    size: int
    logprobs: tuple[tuple[float, ...], ...] = ()

    @property
    def key(self) -> str:
        return key_of(self.group)


def key_of(group: Group) -> str:
    """Names a shared group."""
    return f"{group.node}|{group.question.ref.label}"


def shared(
    groups: Sequence[Group],
    completions: Sequence[Sequence[Completion]],
    node: str,
    round_number: int,
    upload: int,
    keep_logprobs: bool,
) -> list[Shared]:
    """A node's groups of a round; upload: bytes that all of them weigh together. completions[i]: of groups[i]."""
    size = -(-upload // max(len(groups), 1))
    out: list[Shared] = []
    for group, drawn in zip(groups, completions, strict=True):
        logprobs = tuple(c.logprobs for c in drawn) if keep_logprobs else ()
        seen_by_others = msgspec.structs.replace(group, source="external", node=node, advantages=())
        out.append(Shared(seen_by_others, round_number, size, logprobs))
    return out


class History:
    """Everything shared that a later round may still draw from."""

    def __init__(self, conditions: Conditions, seed: int, kept: Sequence[Shared] = ()) -> None:
        self._conditions, self._seed = conditions, seed
        self._kept = list(kept)

    @property
    def kept(self) -> tuple[Shared, ...]:
        return tuple(self._kept)

    def add(self, groups: Sequence[Shared], round_number: int) -> None:
        """Take in what was shared in a round; what is too old for the next one is forgotten."""
        oldest = round_number - self._conditions.staleness - self._conditions.pool_rounds - 1
        self._kept = [s for s in self._kept if s.round > oldest] + list(groups)

    def pool(self, receiver: int, round_number: int, used: set[str]) -> list[Shared]:
        """What a node may draw from in this round: old enough, not too old, arrived, not used before (or reused).

        Own groups count from the round after the one they were drawn in.
        """
        terms = self._conditions
        newest = round_number - terms.staleness
        me = node_key(receiver)
        found: list[Shared] = []
        for item in self._kept:
            mine = item.group.node == me
            if mine and (terms.pool_from == "others" or item.round >= round_number):
                continue
            if not mine and terms.pool_from == "own":
                continue
            last = round_number - 1 if mine else newest
            if not last - terms.pool_rounds < item.round <= last or (item.key in used and not terms.reuse):
                continue
            if mine or arrives(terms, self._seed, receiver, item.group):
                found.append(item)
        return found


@dataclass
class Mailbox:
    """Implements node.exchange.Exchange for a node of the lab: the runner fills it before the node's exchange."""

    groups: tuple[Group, ...] = ()
    sent: int = 0
    received: int = 0

    def attach(self, host: EngineHost, scorer: Scorer, apart: frozenset[str]) -> None:
        return None

    def prompts_to_sample(self, own: int, external: int) -> int:
        """A synchronous node asks I questions and sees what the others shared afterwards."""
        return own

    def take(self, taking: bool) -> None:
        return None

    async def exchange(self, round_number: int, own: Sequence[Group], wanted: int) -> Received:
        return Received(self.groups, self.sent, self.received)

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        return None

    async def close(self) -> None:
        return None
