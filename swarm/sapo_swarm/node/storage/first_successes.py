"""What a node tells of first successes at a task, its own and the first of others that came in: each once a model."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from sapo_swarm.events import Event, FirstSuccess, GroupRecorded, RoundFinished
from sapo_swarm.node.storage.aha import AhaTrail, Trails, followed, trails_of
from sapo_swarm.node.storage.journal import Journal
from sapo_swarm.types import Group

KINDS = ("run_started", "first_success", "round")
"""Stored events that the trails follow from (names of nodes, which a node does not need, come with "swarm")."""


class FirstSuccesses:
    """Knows the trails of the journal, so that nothing is told twice, whatever was taken back."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._trails: Trails = {}

    def open(self) -> None:
        """Read the journal as it is now. Raises JournalError."""
        self._trails = trails_of(self._journal.read(kinds=KINDS))

    def told(self, events: Sequence[GroupRecorded | RoundFinished], received: Sequence[Group]) -> list[Event]:
        """The events of one round (stamped, its RoundFinished among them) behind the first successes in it.

        received: groups of others that the round could train on, oldest first.
        """
        (done,) = (event for event in events if isinstance(event, RoundFinished))
        found: list[Event] = []
        for event in events:
            if isinstance(event, GroupRecorded) and event.first_solved:
                task = event.group.question.ref.dataset
                trail = self._trails.get(task, AhaTrail(task))
                first = FirstSuccess(time=done.time, round=done.round, task=task)
                before = {"taught": trail.taught, "since": trail.since, "until": trail.until}
                found.append(msgspec.structs.replace(first, **before))
        known = {trail.task for trail in self._trails.values() if trail.received}
        for group in received:
            task = group.question.ref.dataset
            if group.solved and task not in known:
                known.add(task)
                found.append(
                    FirstSuccess(time=done.time, round=done.round, task=task, node=group.node, step=group.step)
                )
        return [*found, *events]

    def published(self, events: Sequence[Event]) -> None:
        """They are in the journal."""
        for event in events:
            self._trails = followed(self._trails, event)
