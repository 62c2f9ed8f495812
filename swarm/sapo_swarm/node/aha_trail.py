"""What a node remembers of the swarm beside its journal: who solved a task first, the phrases other nodes introduced, and
how far each of them is trusted with this machine's time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import zstandard

from sapo_swarm.events import Event, FirstSuccess, GroupRecorded, RoundFinished, RunStarted, SwarmUpdated
from sapo_swarm.protocol.phrase_watch import KeptPhrases, PhraseWatch
from sapo_swarm.protocol.time_quota import KeptSource, KeptSources
from sapo_swarm.types import UNREADABLE, Group, Peer
from sapo_swarm.whole_file import write_atomically

# A model's phrase memory (protocol.phrase_watch) and its trust in sources (protocol.time_quota) on disk, so that a restart
# neither whitewashes what others taught it nor forgives what they cost.
#
# phrases.msgpack in the model's folder: one zstd frame, written beside its name and renamed. An unreadable file counts
# as missing: whatever the model writes first then counts as its own again, and the log says so. Hence no file is
# written that would be too large to read. Files from before the trust was kept hold none.

NAME = "phrases.msgpack"
LARGEST = 96 * 2**20
"""Limit on the decompressed file, in bytes."""


class _SwarmMemory(KeptPhrases, frozen=True, kw_only=True):
    sources: KeptSources = msgspec.field(default_factory=dict)


def save_swarm_memory(folder: Path, watch: KeptPhrases, sources: Mapping[str, KeptSource] = {}) -> None:
    """Write it whole or not at all. If more groups were taken than fit into the file, the newest are written. Raises
    OSError."""
    memory = _SwarmMemory(**msgspec.structs.asdict(watch), sources=dict(sources))
    while len(plain := msgspec.msgpack.encode(memory)) > LARGEST and memory.taken:
        memory = msgspec.structs.replace(memory, taken=memory.taken[(len(memory.taken) + 3) // 4 :])
    write_atomically(folder / NAME, zstandard.compress(plain, 1), private=True)


def load_swarm_memory(folder: Path) -> tuple[PhraseWatch, Mapping[str, KeptSource], str]:
    """The saved phrases and sources, or new ones; and a sentence if there is a file that cannot be read, else ""."""
    path = folder / NAME
    try:
        packed = path.read_bytes() if path.stat().st_size <= LARGEST else b""
        if zstandard.get_frame_parameters(packed).content_size > LARGEST:
            raise zstandard.ZstdError("too large")
        plain = zstandard.decompress(packed, max_output_size=LARGEST)
        memory = msgspec.msgpack.decode(plain, type=_SwarmMemory)
        return PhraseWatch.unpacked(memory), memory.sources, ""
    except FileNotFoundError:
        return PhraseWatch(), {}, ""
    except (OSError, zstandard.ZstdError, *UNREADABLE):
        sentence = f"{path} cannot be read: phrases that others taught this model before count as its own from now on."
        return PhraseWatch(), {}, sentence


# The Aha trail of a task: who solved it first as far as this node saw, when it was trained on, when it was solved here.
#
# A pure function of the journal's events. It shows the order of events, never their cause.

UNKNOWN = -1
"""The round of a success that is known to have happened, but not when: the journal is older than this record."""


@dataclass(frozen=True, slots=True)
class AhaTrail:
    """Rounds are this node's, the first is 0.

    received: another node's first success that arrived here. name: of that node, peer text. solved: the first success here.
    taught: external groups that were trained on for a success before `solved`, in rounds `since` to `until` (none: UNKNOWN).
    """

    task: str
    received: FirstSuccess | None = None
    solved: FirstSuccess | None = None
    name: str = ""
    taught: int = 0
    since: int = UNKNOWN
    until: int = UNKNOWN

    @property
    def first_here(self) -> bool:
        """It was solved here before another node's success arrived (a round's local groups come before it takes
        external ones)."""
        if self.solved is None or self.solved.round == UNKNOWN:
            return False
        return self.received is None or self.solved.round <= self.received.round

    def within(self, rounds: int) -> AhaTrail:
        """The trail cut back to this many rounds: what came later was rolled back. If the stretch reaches beyond, its
        groups stay counted."""
        trail = self if self.since < rounds else replace(self, taught=0, since=UNKNOWN, until=UNKNOWN)
        if trail.received is not None and trail.received.round >= rounds:
            trail = replace(trail, received=None, name="")
        if trail.solved is not None and trail.solved.round >= rounds:
            trail = replace(trail, solved=None)
        return trail if trail.until < rounds else replace(trail, until=rounds - 1)


Trails = Mapping[str, AhaTrail]
"""By task, in the order in which anything about them became known."""


def update_trails(trails: Trails, event: Event) -> Trails:
    """The trails with this event added; the same object if it adds nothing."""
    changed: list[AhaTrail] = []
    match event:
        case FirstSuccess():
            changed = [_told(trails.get(event.task, AhaTrail(event.task)), event)]
        case RoundFinished():
            changed = _trained(trails, event)
        case SwarmUpdated():
            changed = _named(trails, event.peers)
        case RunStarted():
            return _opened(trails, event)
    return {**trails, **{trail.task: trail for trail in changed}} if changed else trails


def trails_of(events: Iterable[Event]) -> Trails:
    """The trails after these events (oldest first)."""
    trails: Trails = {}
    for event in events:
        trails = update_trails(trails, event)
    return trails


def _told(trail: AhaTrail, event: FirstSuccess) -> AhaTrail:
    if event.node:
        return replace(trail, received=event, name="")
    return replace(trail, solved=event, taught=event.taught, since=event.since, until=event.until)


def _opened(trails: Trails, event: RunStarted) -> Trails:
    trails_within = {task: trail.within(event.round) for task, trail in trails.items()}
    for task in event.solved:
        trail = trails_within.get(task, AhaTrail(task))
        earlier = FirstSuccess(time=event.time, round=UNKNOWN, task=task)
        trails_within[task] = trail if trail.solved else replace(trail, solved=earlier)
    return {task: trail for task, trail in trails_within.items() if trail != AhaTrail(task)}


def _trained(trails: Trails, event: RoundFinished) -> list[AhaTrail]:
    """Tasks not yet solved here, with what the round (or block of rounds) trained on."""
    changed = []
    for task, groups in event.taught.items():
        trail = trails.get(task, AhaTrail(task))
        if trail.solved is not None:
            continue
        first_round = event.round - event.covers + 1
        began = max(first_round, trail.received.round if trail.received else first_round)
        since = began if trail.since == UNKNOWN else trail.since
        changed.append(replace(trail, taught=trail.taught + groups, since=since, until=event.round))
    return changed


def _named(trails: Trails, peers: Sequence[Peer]) -> list[AhaTrail]:
    nameless = [(trail, trail.received.node) for trail in trails.values() if trail.received and not trail.name]
    names = {peer.node: peer.name for peer in peers} if nameless else {}
    return [replace(trail, name=names[node]) for trail, node in nameless if names.get(node)]


KINDS = ("run_started", "first_success", "round")
"""Stored events that the trails follow from (node names, which a node does not need, come with "swarm")."""


class FirstSuccesses:
    """Knows the trails in the journal, so that no first success is published twice, whatever was rolled back."""

    def __init__(self) -> None:
        self._trails: Trails = {}

    def open(self, stored: Iterable[Event]) -> None:
        """Read the trails from the journal. stored: its events of KINDS."""
        self._trails = trails_of(stored)

    def told(self, events: Sequence[GroupRecorded | RoundFinished], received: Sequence[Group]) -> list[Event]:
        """One round's events (stamped, including its RoundFinished), followed by the first successes in it.

        received: other nodes' groups that the round could train on, oldest first.
        """
        (done,) = (event for event in events if isinstance(event, RoundFinished))
        new_events: list[Event] = []
        for event in events:
            if isinstance(event, GroupRecorded) and event.first_solved:
                task = event.group.question.ref.dataset
                trail = self._trails.get(task, AhaTrail(task))
                first = FirstSuccess(time=done.time, round=done.round, task=task)
                before = {"taught": trail.taught, "since": trail.since, "until": trail.until}
                new_events.append(msgspec.structs.replace(first, **before))
        received_tasks = {trail.task for trail in self._trails.values() if trail.received}
        for group in received:
            task = group.question.ref.dataset
            if group.solved and task not in received_tasks:
                received_tasks.add(task)
                new_events.append(
                    FirstSuccess(time=done.time, round=done.round, task=task, node=group.node, step=group.step)
                )
        return [*new_events, *events]

    def published(self, events: Sequence[Event]) -> None:
        """These events are now in the journal."""
        for event in events:
            self._trails = update_trails(self._trails, event)
