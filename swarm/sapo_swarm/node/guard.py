"""A node's guard against harmful external text: it keeps the best checkpoint, looks closer when held-out results fall, and
when the wire trips, rolls back and stops taking external groups (the rules: sapo_swarm.sapo.held_out_tripwire).

Its whole state is in the journal, and the number of rollbacks behind the weights is in their checkpoint: a node killed at any
point comes back, finds what is left to do, and does it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import msgspec

from sapo_backends.errors import CheckpointCorrupt
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import ItemResult, regular_items
from sapo_swarm.events import Evaluated, Event, ExternalSwitched, LogLine
from sapo_swarm.node.checkpoints import CheckpointStore, rounds_of
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import Ask, Evaluator, Unanswered
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.node.round_phases import GroupExchange
from sapo_swarm.sapo import held_out_tripwire
from sapo_swarm.sapo.held_out_tripwire import TripwireState

T = TypeVar("T")
AGAIN = "sapo-desktop external on"
Save = Callable[[int, int], Path]
"""Write a checkpoint of the engine as it is: rounds done, rollbacks -> its folder. Called in the engine's thread."""


def evaluated_after(config: RunConfig, practised: int) -> bool:
    """Whether an evaluation follows this many rounds of practice: every `eval_every`, and the last planned one."""
    return config.eval_every > 0 and (practised % config.eval_every == 0 or practised == config.rounds)


@dataclass
class RollbackGuard:
    """save: see Save. A node that trains alone never suspects anything, but it still keeps its best checkpoints: at the
    training temperature and at 0."""

    config: RunConfig
    host: EngineThread
    checkpoints: CheckpointStore
    examiner: Evaluator
    exchange: GroupExchange | None
    journal: Journal
    bus: EventBus
    save: Save
    in_swarm: bool
    rollbacks: int = 0
    """Rollbacks that led to the engine's weights."""
    watch: TripwireState = field(default_factory=TripwireState)

    @property
    def tolerance(self) -> float:
        """Share of the best held-out result that may be lost; 0 outside a swarm."""
        return self.config.tripwire if self.in_swarm and self.config.external_groups else 0.0

    @property
    def taking(self) -> bool:
        """Whether external groups are taken."""
        return self.watch.taking

    @property
    def regular_items(self) -> int:
        """See sapo_swarm.evaluation.regular_items."""
        return regular_items(self.config)

    async def open(self, rollbacks: int) -> None:
        """Read the state from the journal; from now on the checkpoint that is needed stays. rollbacks: in the checkpoint that
        is restored."""
        self.rollbacks = rollbacks
        events = await asyncio.to_thread(self.journal.read, 0, held_out_tripwire.KINDS)
        self._become(held_out_tripwire.watch_of(events, self.regular_items, self.tolerance))

    async def due(self, rounds_done: int, practised: int) -> bool:
        """Whether these weights lack their regular evaluation, because a stop or a kill came first. practised: rounds of
        practice among those done; -1: an examples phase is running. Raises JournalError."""
        if not self.examiner.regular or (rounds_done and not evaluated_after(self.config, practised)):
            return False
        if not rounds_done:
            return not self.examiner.asks_base_beside and bool(await self.examiner.base_missing())
        evaluations = await asyncio.to_thread(self.journal.read, 0, ("evaluation",))
        return not any(isinstance(event, Evaluated) and event.round == rounds_done for event in evaluations)

    async def evaluated(self, event: Evaluated, rounds_done: int) -> None:
        """Publish an evaluation; if it is a new best, its weights are kept. Raises OSError if they cannot be saved, after
        publishing."""
        try:
            after = self._after(event)
            is_best = after.best != self.watch.best or after.best_greedy != self.watch.best_greedy
            if is_best and self.host.engine.info.trainable:
                await self.host.call(self._saved, rounds_done)
        finally:
            await self._publish(event)

    async def attempt(self, what: str, work: Awaitable[T]) -> T | None:
        """The result of the work; None if its questions got no answers. Then a log line says why, and training continues."""
        try:
            return await work
        except Unanswered as error:
            text = f"The {what} was given up and training goes on, because its questions got no answers: {error}"
            await self.bus.publish(LogLine(level="error", text=text))
            return None

    async def switch(self, taking: bool, rounds_done: int) -> None:
        """Follow the person's decision: take external groups, or none."""
        if taking == self.taking:
            return
        sentence = (
            "Groups of others are taken again." if taking else f"You switched groups of others off. On again: {AGAIN}"
        )
        await self._publish(ExternalSwitched(round=rounds_done, taking=taking, by="person", sentence=sentence))

    @property
    def busy(self) -> bool:
        """There is something to do before the next round: attend() does it."""
        suspects = self.watch.suspect is not None and self.host.engine.info.trainable > 0
        return suspects or self.rollbacks < self.watch.trips

    async def attend(self, rounds_done: int, on_progress: Ask) -> None:
        """Look closer, or roll back. An abandoned look is repeated after another evaluation that indicates a fall.

        Raises Cancelled, BackendError, CheckpointCorrupt.
        """
        if self.rollbacks < self.watch.trips:
            await self._roll_back(rounds_done)
        elif self.busy:
            suspect = self.watch.suspect
            await self.attempt("closer look", self._look_closer(rounds_done, on_progress))
            if self.watch.suspect is suspect:
                self._become(msgspec.structs.replace(self.watch, suspect=None))

    async def _look_closer(self, rounds_done: int, on_progress: Ask) -> None:
        best = self.watch.best
        assert best is not None
        checkpoint = await self.host.call(self.checkpoints.intact, best.round)
        if checkpoint is None or rounds_of(checkpoint[0]) == rounds_done:
            await self._publish(self._cleared(rounds_done, "open", "there is no older checkpoint to compare with"))
            return
        path, _ = checkpoint
        before, after, verdict = await self._compared(path, rounds_done, best.items if best.looked else 0, on_progress)
        was, now, count = held_out_tripwire.mean_pass_rate(before), held_out_tripwire.mean_pass_rate(after), len(after)
        figures = (
            f"{_percent(was)} with the weights of checkpoint {rounds_of(path)}, {_percent(now)} now, {count} questions"
        )
        if verdict != "harm":
            await self._publish(self._cleared(rounds_done, verdict, figures, was, now, count))
            return
        sentence = (
            f"Groups of others are not taken any more and the weights of checkpoint {rounds_of(path)} are back, because "
            f"held-out pass@1 fell ({figures}). Take them again: {AGAIN}"
        )
        await self._publish(
            ExternalSwitched(
                round=rounds_done,
                taking=False,
                by="tripwire",
                sentence=sentence,
                restored=rounds_of(path),
                best=was,
                now=now,
                items=count,
            )
        )
        await self._roll_back(rounds_done)

    @staticmethod
    def _cleared(
        rounds_done: int,
        verdict: held_out_tripwire.Verdict,
        figures: str,
        was: float = 0.0,
        now: float = 0.0,
        items: int = 0,
    ) -> ExternalSwitched:
        finding = (
            "no fall of a third or more was found"
            if verdict == "chance"
            else "a fall can neither be seen nor ruled out"
        )
        sentence = f"Low held-out results were looked at closer: {finding} ({figures})."
        return ExternalSwitched(
            round=rounds_done, taking=True, by="tripwire", sentence=sentence, best=was, now=now, items=items
        )

    async def _compared(
        self, path: Path, rounds_done: int, used: int, on_progress: Ask
    ) -> tuple[list[ItemResult], list[ItemResult], held_out_tripwire.Verdict]:
        """The answers of the checkpoint's and the current weights to fresh questions, and the verdict: more are asked until
        it is clear, or there are no more. used: fresh questions of earlier looks."""
        before: list[ItemResult] = []
        after: list[ItemResult] = []
        verdict: held_out_tripwire.Verdict = "open"
        for number, factor in enumerate(held_out_tripwire.STEPS):
            total_asked = used + len(self.examiner.fresh_questions(factor, used))
            if total_asked == used:
                break
            after += await self.examiner.fresh(factor, used, rounds_done, _half(on_progress, 2 * number))
            before += await self._of_another(path, rounds_done, factor, used, _half(on_progress, 2 * number + 1))
            before, after = held_out_tripwire.in_common(before, after)
            last = not self.examiner.fresh_questions(1, total_asked)
            verdict = held_out_tripwire.closer_look(before, after, self.tolerance, last)
            if verdict != "open":
                break
            used = total_asked
        self.examiner.forget()
        return before, after, verdict

    async def _of_another(
        self, path: Path, rounds_done: int, factor: int, used: int, on_progress: Ask
    ) -> list[ItemResult]:
        """The answers of a checkpoint's weights; the engine gets its own back afterwards, whatever happens."""
        if (results := self.examiner.answered(factor, used, path)) is not None:
            return results
        present = await self.host.call(self._saved, rounds_done)
        engine = self.host.engine
        try:
            await self.host.call(engine.restore, path / "engine")
            return await self.examiner.fresh(factor, used, path, on_progress)
        finally:
            await self.host.call(engine.restore, present / "engine")

    async def _roll_back(self, rounds_done: int) -> None:
        checkpoint = await self.host.call(self.checkpoints.intact, self.watch.restored)
        if checkpoint is None:
            raise CheckpointCorrupt(
                "No checkpoint to roll back to is intact. Make another model: sapo-desktop new NAME"
            )
        await self.host.call(self.host.engine.restore, checkpoint[0] / "engine")
        await self.host.call(self.save, rounds_done, self.watch.trips)
        await self.examiner.discard_newest()
        self.rollbacks = self.watch.trips
        self._pin()

    def _saved(self, rounds_done: int) -> Path:
        """The checkpoint of the current weights."""
        paths = [path for path in self.checkpoints.complete() if rounds_of(path) == rounds_done]
        return paths[0] if paths else self.save(rounds_done, self.rollbacks)

    async def _publish(self, event: Evaluated | ExternalSwitched) -> None:
        await self.bus.publish(event)
        self._become(self._after(event))  # not before: other events arrive while this one is being stored

    def _after(self, event: Event) -> TripwireState:
        return held_out_tripwire.update_tripwire(self.watch, event, self.regular_items, self.tolerance)

    def _become(self, watch: TripwireState) -> None:
        self.watch = watch
        self._pin()
        if self.exchange is not None:
            self.exchange.take(watch.taking)

    def _pin(self) -> None:
        self.checkpoints.pinned = held_out_tripwire.checkpoints_to_keep(self.watch, self.rollbacks)


def _half(show: Ask, place: int) -> Ask:
    """Maps progress of half a step of a closer look (the current weights answer, then the best checkpoint's) to progress of
    the whole step."""
    return lambda part: show((place + part) / (2 * len(held_out_tripwire.STEPS)))


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f} %"
