"""Which old records of a journal stay: dense for the recent past, sparse for long ago, bounded whatever the length. Pure rules
first, then the journal that is thinned by them."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
import time
from collections import Counter
from collections.abc import Callable, Sequence
from itertools import groupby

import msgspec

from sapo_swarm.events import Evaluated, RoundFinished, encode_event
from sapo_swarm.node.journal import Journal, JournalError, decode_event_row
from sapo_swarm.sapo.held_out_tripwire import KINDS, TripwireState, update_tripwire

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


# Keeps a journal small: old groups leave, old rounds are merged into blocks, other kinds of events grow sparse with
# age.
#
# Each call does a small step in one transaction, so that a writer waits for milliseconds at most. The file does not
# shrink; later events reuse the space.

PRUNED_ROWS = 512
"""Groups dropped in one step."""
MERGED_BLOCKS = 64
"""Blocks of rounds made in one step."""
GROUP_STRIDE = 10
"""Of old rounds, every tenth keeps its groups, fewer in a long run:"""
OLD_GROUPS = 6400
"""at most this many groups of old rounds stay."""
LEVELS = 32
_FIRST = '%"first_solved":true%'
_STAYING = "SELECT count(*) FROM events INDEXED BY groups_by_round WHERE kind = 'group' AND round < ? AND round % ? = 0"
_OLD = "kind = 'group' AND seq > ? AND round < ? AND round % ? != 0 AND CAST(body AS TEXT) NOT LIKE ?"


class JournalDownsampler:
    """Thins one journal. Progress is noted in the journal, so that the next process continues there."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._checked: dict[str, int] = {}
        self._stride = GROUP_STRIDE
        self._pruned = 0

    def groups(self, before: int) -> int:
        """Drop the oldest PRUNED_ROWS groups of rounds before `before`; returns how many were dropped.

        First successes stay, as do the groups of every GROUP_STRIDE-th round, or as many as OLD_GROUPS allows. Raises
        JournalError.
        """
        with self._journal.writing() as db:
            while self._stride < before and db.execute(_STAYING, (before, self._stride)).fetchone()[0] > OLD_GROUPS:
                self._stride, self._pruned = 2 * self._stride, 0
            values = (self._pruned, before, self._stride, _FIRST, PRUNED_ROWS)
            rows = db.execute(f"SELECT seq FROM events WHERE {_OLD} ORDER BY seq LIMIT ?", values).fetchall()
            if rows:
                db.executemany("DELETE FROM events WHERE seq = ?", rows)
                self._pruned = rows[-1][0]
        return len(rows)

    def rounds(self, newest: int) -> int:
        """Merge old rounds into blocks, at most MERGED_BLOCKS; returns how many were made. Raises JournalError."""
        with self._journal.writing() as db:
            done = 0
            for level in range(1, LEVELS):
                before = merge_boundary(level, newest)
                if before <= 0:
                    break
                done += _merge_level(db, level, before, MERGED_BLOCKS - done)
                if done >= MERGED_BLOCKS:
                    break
        return done

    def others(self) -> int:
        """Thin the event kinds other than rounds and groups if they have grown; returns how many events were dropped.

        Raises JournalError.
        """
        gone = 0
        for kind, room in SPARSE_ROOM.items():
            with self._journal.writing() as db:
                gone += self._sparse_kind(db, kind, room)
        return gone

    def _sparse_kind(self, db: sqlite3.Connection, kind: str, room: int) -> int:
        count = db.execute("SELECT count(*) FROM events WHERE kind = ?", (kind,)).fetchone()[0]
        if count <= max(2 * room, self._checked.get(kind, 0)):
            return 0
        seqs = [row[0] for row in db.execute("SELECT seq FROM events WHERE kind = ? ORDER BY seq", (kind,))]
        gone = sequences_to_drop(seqs, self._journal.last_seq, room)
        if kind == "evaluation":
            gone -= _best_so_far(db)
        db.executemany("DELETE FROM events WHERE seq = ?", [(seq,) for seq in gone])
        self._checked[kind] = count - len(gone) + room
        return len(gone)


def _merge_level(db: sqlite3.Connection, level: int, before: int, most: int) -> int:
    """Make blocks of 2**level rounds that end before `before`, from where the last call stopped. Round 0 stays single."""
    name, width, done = f"rounds/{level}", 1 << level, 0
    noted = db.execute("SELECT upto FROM thinned WHERE what = ?", (name,)).fetchone()
    start = noted[0] if noted else 0
    end = min(before, start + most * width) // width * width
    if end <= start:
        return 0
    query = "SELECT seq, round, body FROM events WHERE kind = 'round' AND round >= ? AND round < ? ORDER BY round, seq"
    rows = db.execute(query, (max(start, 1), end)).fetchall()
    for _, block in groupby(rows, key=lambda row: row[1] // width):
        done += _merge_block(db, list(block))
    db.execute("INSERT OR REPLACE INTO thinned VALUES (?, ?)", (name, end))
    return done


def _merge_block(db: sqlite3.Connection, rows: list[tuple[int, int, bytes]]) -> int:
    """Merge the rows into one in place of the last; rows that cannot be read stay as they are, and so do limits between
    examples and practice and gaps in the numbers: what led to the weights is counted from these records."""
    rounds = [(seq, event) for seq, _, body in rows if isinstance(event := decode_event_row(body), RoundFinished)]
    pieces: list[list[tuple[int, RoundFinished]]] = []
    for seq, event in rounds:
        before = pieces[-1][-1][1] if pieces else None
        joins = before is not None and before.round == event.round - event.covers
        if before is not None and joins and bool(before.examples) == bool(event.examples):
            pieces[-1].append((seq, event))
        else:
            pieces.append([(seq, event)])
    merged = 0
    for piece in pieces:
        if len(piece) > 1:
            event = merge_rounds([event for _, event in piece])
            *others, last = [seq for seq, _ in piece]
            db.executemany("DELETE FROM events WHERE seq = ?", [(seq,) for seq in others])
            db.execute("UPDATE events SET round = ?, body = ? WHERE seq = ?", (event.round, encode_event(event), last))
            merged += 1
    return merged


def _best_so_far(db: sqlite3.Connection) -> set[int]:
    """Evaluations that were better than all before, and the base model's: the chart is built on them. Also those that changed
    the tripwire's mark or the best at temperature 0, whatever the regular number of questions: the guard is built on these."""
    kept: set[int] = set()
    best, unmarked, marks = -1.0, TripwireState(), dict[int, TripwireState]()
    for seq, body in db.execute("SELECT seq, body FROM events WHERE kind IN (?, ?, ?) ORDER BY seq", KINDS):
        event = decode_event_row(body)
        if not isinstance(event, Evaluated):
            unmarked = update_tripwire(unmarked, event, 0, 0.0)
            marks = {items: update_tripwire(watch, event, items, 0.0) for items, watch in marks.items()}
            continue
        items = event.asked or event.items
        before = marks.get(items, unmarked)
        marks[items] = after = update_tripwire(before, event, items, 0.0)
        marked = (after.best, after.best_greedy) != (before.best, before.best_greedy)
        if marked or event.pass_at_1 > best or event.round == 0:
            kept.add(seq)
        best = max(best, event.pass_at_1)
    return kept


# Old records leave the journal in the background, so that a run of any length does not fill a disk.

EVERY = 64
"""Rounds between two passes: dropping rows together frees whole pages, which writes less than dropping them one by one."""


class JournalRetention:
    """keep: newest rounds whose groups all stay; 0 = groups are never dropped. Rounds never wait: it works in small steps."""

    def __init__(self, journal: Journal, keep: int) -> None:
        self._thinning, self._keep = JournalDownsampler(journal), keep
        self._rounds = 0
        self._due = 0
        self._task: asyncio.Task[None] | None = None
        self._closed = False

    def round_done(self, rounds_done: int) -> None:
        """The model has this many rounds now. Returns at once."""
        self._rounds = rounds_done
        self._due -= 1
        if self._due <= 0 and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._work())

    @property
    def _before(self) -> int:
        return self._rounds - self._keep if self._keep else 0

    async def settled(self) -> None:
        """Returns once nothing is left to drop."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        """Finish the current step, and do a last one."""
        self._closed = True
        await self.settled()
        await self._step()

    async def _work(self) -> None:
        """Work as long as there is something to drop; at most half of the time."""
        while not self._closed:
            began = time.monotonic()
            if not await self._step():
                return
            await asyncio.sleep(time.monotonic() - began)

    async def _step(self) -> int:
        with contextlib.suppress(JournalError):  # a full disk is reported where it loses something
            return await asyncio.to_thread(self._drop)
        return 0

    def _drop(self) -> int:
        gone = self._thinning.groups(self._before) if self._before > 0 else 0
        gone += self._thinning.rounds(self._rounds - 1)
        if not gone:
            self._due = EVERY
            gone = self._thinning.others()
        return gone
