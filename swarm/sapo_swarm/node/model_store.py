"""A model on disk, as the node works with it: opened and continued, saved when due, its finished rounds logged.

A kill can lose only the round in flight: every finished round is in the update log before it is published. Opening restores
the newest intact checkpoint, repeats the logged updates, and makes the journal agree with the result.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sapo_backends.base import Engine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import CheckpointSaved, Event, LogLine, decode_event, encode_event
from sapo_swarm.node import going_back, resume_log
from sapo_swarm.node.checkpoints import (
    CheckpointInfo,
    CheckpointState,
    SavedCheckpoint,
    has_optimizer,
    read_state,
    rounds_of,
)
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.resume_log import (
    LoggedUpdate,
    ResumeHeader,
    UpdateLog,
    in_flight,
    make_logged_update,
    restore_round,
)
from sapo_swarm.node.round_phases import RoundContext, RoundWork

DAY_S = 86400.0
BYTES_A_DAY = 10 * 10**9
"""Checkpoints that are due by time alone write at most this much; the update log and the journal come on top."""


def checkpoint_due(config: RunConfig, size: int, since_s: float, rounds_since: int) -> bool:
    """size: bytes of the next checkpoint; seconds and rounds since the last one."""
    apart_s = max(60.0 * config.checkpoint_minutes, size * DAY_S / BYTES_A_DAY)
    return rounds_since >= max(config.checkpoint_every, 1) and since_s >= apart_s


Tell = Callable[[float, str], None]
"""Takes the fraction done and one sentence about it, from the engine's thread. May raise Cancelled."""
Found = tuple[Path, CheckpointState]
"""A checkpoint's folder and its state."""


@dataclass
class ModelStore:
    """folder: the model's own. weights: digest of those in memory when they were last on disk, with their rounds and
    rollbacks: the newest link of the chain. restored: a person went back to the weights after this many rounds, and nothing
    was trained since; else -1. disk: bytes of the folder after the last save, without exports. clock: monotonic seconds."""

    folder: Path
    config: RunConfig
    host: EngineThread
    journal: Journal
    bus: EventBus
    clock: Callable[[], float] = time.monotonic
    rounds_done: int = 0
    solved: frozenset[str] = frozenset()
    rollbacks: int = 0
    weights: str = ""
    saved_rounds: int = -1
    restored: int = -1
    disk: int = 0
    _saved_at: float = 0.0
    _next_size: int = 0
    """Expected bytes of the next checkpoint."""
    _untold: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checkpoints = going_back.checkpoints_of(self.folder, self.config)
        self.rounds_done = max(map(rounds_of, self.checkpoints.complete()), default=0)  # until it is opened
        self.log = UpdateLog(self.checkpoints.folder)

    # -- opening ---------------------------------------------------------------------------------------------------

    async def find(self) -> Found | None:
        """The checkpoint to continue from, None for a fresh model. The engine is not changed.

        Raises CheckpointCorrupt if nothing on disk is intact, NoRoom if the disk budget is too small for the model.
        """
        newest, warnings = await asyncio.to_thread(self.checkpoints.newest_intact)
        await self.bus.publish(*[LogLine(level="warning", text=w) for w in warnings])
        await asyncio.to_thread(self.checkpoints.require_room, self.host.engine)
        return newest

    async def open(self, found: Found | None, tell: Tell) -> None:
        """Continue from a checkpoint; a fresh model is saved as it is. Call self.tell() once the opening is announced.

        Raises CheckpointCorrupt, NoRoom, OSError, and whatever `tell` raises; the disk is unchanged then.
        """
        engine = self.host.engine
        if found is None:
            await self.host.call(self.save, "start")
            return
        redone = await self.host.call(self._restore, engine, *found, tell)
        for name in await asyncio.to_thread(self.checkpoints.set_aside, found[0]):
            text = f"The damaged checkpoint is set aside as {self.checkpoints.folder / name}; delete it when you like."
            await self.bus.publish(LogLine(level="warning", text=text))
        await self._agree(found[0], found[1], redone)
        if redone and engine.optimizer_files and found[1].restored < 0 and not has_optimizer(*found):
            text = (
                f"Checkpoint {found[0].name} has no optimizer state, for lack of room when it was written: the updates after it "
                "were redone with new moments, so the weights differ from before the stop."
            )
            await self.bus.publish(LogLine(level="warning", text=text))
        if redone:
            await self.host.call(self.save, "redone")
        else:
            self._continue_log(found[1])

    async def mend(self, work: RoundWork) -> RoundWork:
        """Restore the weights from before a round whose update was interrupted; returns the round to continue with. Raises
        what find() and open() raise."""
        await self.open(await self.find(), lambda *_: None)
        work.call = None
        return work if work.round == self.rounds_done else RoundWork(self.rounds_done)

    def _restore(self, engine: Engine, path: Path, state: CheckpointState, tell: Tell) -> list[LoggedUpdate]:
        """Load the weights of a checkpoint, then repeat the updates that followed it. In the engine's thread."""
        if engine.info.trainable:
            engine.restore(path / "engine")
        self.weights = state.weights
        self.rollbacks, self.saved_rounds, self._saved_at = state.rollbacks, state.rounds_done, self.clock()
        self.rounds_done, self.solved, self.restored = state.rounds_done, frozenset(state.solved), state.restored
        self.disk, self._next_size = self.checkpoints.used(), self.checkpoints.next_size(self.host.engine)
        updates = self.log.read(self._header())
        for number, update in enumerate(updates, 1):
            tell(number / len(updates), f"Redoing update {number} of {len(updates)} after the last checkpoint")
            if update.policy is not None:
                engine.update(update.batch(), update.policy, update.seed)
            self.rounds_done, self.solved, self.restored = update.round + 1, frozenset(update.solved), -1
        return updates

    async def _agree(self, path: Path, state: CheckpointState, redone: Sequence[LoggedUpdate]) -> None:
        """Add to the journal what is in the weights but not in it, and roll back what is in it but not in the weights."""
        last = await asyncio.to_thread(self.journal.last_round)
        events = [decode_event(line) for update in redone if update.round > last for line in update.events]
        newest = await asyncio.to_thread(self.journal.newest, "checkpoint")
        told = (newest.weights, newest.restored) if isinstance(newest, CheckpointSaved) else ("", -1)
        if state.weights and told != (state.weights, state.restored):
            self._untold += await asyncio.to_thread(self._news_of, going_back.as_saved(path, state))
            await self.tell()
        await self.bus.publish(*events)
        again = f", and {len(redone)} after it redone from kept rollouts" if redone else ""
        await self.bus.publish(LogLine(level="info", text=f"Resumed from checkpoint {state.rounds_done}{again}."))
        lost = await asyncio.to_thread(self.journal.roll_back, self.rounds_done)
        if lost:
            resume_log.delete_in_flight(self.folder)
            sentence = (
                f"The last {f'{lost} rounds' if lost > 1 else 'round'} of training had not reached the disk when the node ended: "
                "taken back in the history, training goes on from there."
            )
            await self.bus.publish(LogLine(level="warning", text=sentence))

    def _continue_log(self, state: CheckpointState) -> None:
        self.log.start(ResumeHeader(state.rounds_done, self.weights, state.rollbacks))

    def _header(self) -> ResumeHeader:
        return ResumeHeader(self.saved_rounds, self.weights, self.rollbacks)

    # -- rounds ----------------------------------------------------------------------------------------------------

    def finished(self, work: RoundWork, events: Sequence[Event], solved: set[str]) -> None:
        """Log a finished round before anybody hears of it. Raises OSError."""
        call, lines = work.call, [encode_event(event) for event in events]
        batch, policy, seed = ([], None, 0) if call is None else (call.batch, call.policy, call.seed)
        self.log.append(make_logged_update(work.round, seed, policy, batch, lines, sorted(solved)))
        self.rounds_done, self.solved, self.restored = work.round + 1, frozenset(solved), -1
        with contextlib.suppress(OSError):
            resume_log.delete_in_flight(self.folder)

    def keep_in_flight(self, context: RoundContext, work: RoundWork) -> None:
        """Save the rollouts that the round has so far. Raises OSError."""
        rollouts = in_flight(context, work) if work.round == self.rounds_done else None
        if rollouts is not None:
            resume_log.save_in_flight(self.folder, rollouts)

    async def in_flight(self, context: RoundContext) -> RoundWork:
        """The next round with its saved rollouts; those from other settings are dropped with a log line."""
        saved = await asyncio.to_thread(resume_log.load_in_flight, self.folder)
        work = await restore_round(context, saved) if saved is not None and saved.round == self.rounds_done else None
        if saved is None:
            return RoundWork(self.rounds_done)
        count = sum(bool(c.tokens) for question in saved.questions for c in question.completions)
        if work is None:
            await asyncio.to_thread(resume_log.delete_in_flight, self.folder)
            text = f"{count} begun rollouts of the last round do not fit the settings of now and are left out."
            await self.bus.publish(LogLine(level="info", text=text))
            return RoundWork(self.rounds_done)
        text = f"{count} rollouts of the unfinished round were kept and are used."
        await self.bus.publish(LogLine(level="info", text=text))
        return work

    # -- saving ----------------------------------------------------------------------------------------------------

    def save(self, reason: str, parent: str | None = None) -> SavedCheckpoint:
        """A checkpoint of the engine as it is. Call in the engine's thread. Raises NoRoom, OSError."""
        before = self.weights if parent is None else parent
        moment = CheckpointInfo(self.rounds_done, reason, tuple(sorted(self.solved)), self.rollbacks, before)
        saved = self.checkpoints.write(self.host.engine, moment)
        self._untold += self._news_of(saved)
        self._follow(saved)
        return saved

    def _follow(self, saved: SavedCheckpoint) -> None:
        """Note that the weights in memory are those of this checkpoint. Raises OSError."""
        self.weights, self.saved_rounds, self._saved_at = saved.state.weights, self.rounds_done, self.clock()
        self.disk, self._next_size = self.checkpoints.used(), self.checkpoints.next_size(self.host.engine)
        self.log.start(self._header())

    def _news_of(self, saved: SavedCheckpoint) -> list[Event]:
        """The journal's events for a checkpoint. Raises JournalError."""
        if saved.state.restored < 0:
            return [going_back.told_of(saved)]
        return going_back.told_afterwards(
            saved, self.journal.read(kinds=going_back.KINDS), going_back.items_of(self.config)
        )

    def go_back(self, target: int) -> None:
        """Replace the current weights, which are saved first, by those after `target` rounds (see going_back). Call in the
        engine's thread; tell() publishes it.

        Raises CannotGoBack, NoRoom, OSError, JournalError, BackendError; the weights are unchanged then.
        """
        if self.unsaved:
            self.save(going_back.BEFORE)
        present = self.checkpoints.complete()[-1]
        saved = going_back.copy_state(self.checkpoints, target, present, read_state(present), sorted(self.solved))
        try:
            events = self._news_of(saved)
            self.host.engine.restore(saved.path / "engine")
        except BaseException:
            shutil.rmtree(saved.path, ignore_errors=True)
            self.host.engine.restore(present / "engine")
            raise
        self.rounds_done, self.restored = saved.state.rounds_done, target
        self._untold += events
        with contextlib.suppress(OSError):
            resume_log.delete_in_flight(self.folder)
        self._follow(saved)

    def for_guard(self, _rounds_done: int, rollbacks: int) -> Path:
        """Save on the guard's request: a new best, or restored older weights (one more rollback)."""
        before = self.rollbacks
        if rollbacks == before:
            return self.save("evaluation").path
        self.rollbacks = rollbacks
        try:
            return self.save("rollback", self._of_pinned()).path
        except BaseException:  # such as a full disk: it is retried, and must not pass for an evaluation then
            self.rollbacks = before
            raise

    def _of_pinned(self) -> str:
        """The digest of the best checkpoint's weights, or of the newest one before it."""
        best = self.checkpoints.pinned[:1]
        checkpoint = self.checkpoints.intact(best[0]) if best else None
        if checkpoint is None:
            return self.weights
        return checkpoint[1].weights

    def due(self) -> bool:
        """Whether enough time and rounds passed since the last checkpoint for another."""
        since_s, rounds_since = self.clock() - self._saved_at, self.rounds_done - self.saved_rounds
        return checkpoint_due(self.config, self._next_size, since_s, rounds_since)

    @property
    def unsaved(self) -> bool:
        """There are rounds since the last checkpoint."""
        return self.rounds_done > self.saved_rounds

    async def tell(self) -> None:
        """Publish the checkpoints that were written. Raises JournalError; they are published later then."""
        events = tuple(self._untold)
        await self.bus.publish(*events)
        del self._untold[: len(events)]

    def close(self) -> None:
        """Close the update log."""
        self.log.close()
