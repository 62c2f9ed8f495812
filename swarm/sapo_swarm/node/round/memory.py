"""What a node remembers of its local groups from round to round; rebuilt from the journal when a run goes on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sapo_swarm.config import RunConfig
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.storage.journal import Journal
from sapo_swarm.sapo import difficulty, replay
from sapo_swarm.sapo.difficulty import Posterior
from sapo_swarm.sapo.replay import Past
from sapo_swarm.types import Group


class Memory(msgspec.Struct):
    """Mutable. replay: successes that can be trained on again. difficulty: task/preset -> how often it is solved.

    Each is filled only where a setting uses it.
    """

    replay: list[Past] = []
    difficulty: dict[str, Posterior] = {}

    def observe(self, config: RunConfig, round_number: int, groups: Sequence[Group]) -> None:
        """Take in the local groups of a round, once."""
        if config.replay_groups:
            self.replay = replay.remember(self.replay, round_number, groups, config.replay_half_life)
        if config.curriculum != "uniform":
            difficulty.observe(self.difficulty, groups)


def recalled(config: RunConfig, journal: Journal, rounds_done: int) -> Memory:
    """The memory after so many rounds, from the groups that are still in the journal (keep_groups). Raises JournalError."""
    memory = Memory()
    if not config.replay_groups and config.curriculum == "uniform":
        return memory
    by_round: dict[int, dict[str, Group]] = {}
    for event in journal.read(kinds=("group",)):
        if isinstance(event, GroupRecorded) and event.group.source == "own" and event.round < rounds_done:
            by_round.setdefault(event.round, {})[event.group.question.ref.label] = event.group
    for round_number, groups in sorted(by_round.items()):
        memory.observe(config, round_number, tuple(groups.values()))
    return memory
