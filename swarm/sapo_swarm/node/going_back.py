"""Going back to a kept checkpoint: a separate step in a model's history that trains nothing.

With N rounds done, the weights of round K are copied into a checkpoint of N + 1 rounds, without an optimizer. The replaced
state stays an ordinary kept checkpoint, so going back can be undone the same way. The journal records the step as
CheckpointSaved (`restored`), and repeats the held-out result of round K for round N + 1: same weights, same questions.

A model that no node trains is changed here, on disk and without an engine; a running node does the same between two rounds
(node.model_store) and loads the copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from sapo_backends.errors import CheckpointCorrupt
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import regular_items
from sapo_swarm.events import CheckpointSaved, Evaluated, Event, LogLine
from sapo_swarm.node import resume_log
from sapo_swarm.node.checkpoints import (
    CheckpointInfo,
    CheckpointState,
    CheckpointStore,
    SavedCheckpoint,
    folder_bytes,
    has_optimizer,
    read_state,
    rounds_of,
)
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.resume_log import ResumeHeader, UpdateLog
from sapo_swarm.node.training_count import LINEAGE, TrainingCount, TrainingCounts
from sapo_swarm.sapo import held_out_tripwire
from sapo_swarm.tasks.catalogue import UnknownTask
from sapo_swarm.tasks.own.spec import BadTask

REASON = "rollback"
BEFORE = "before rollback"
"""Reasons a checkpoint was saved: it holds restored weights; or it keeps those they replaced."""
EXPORTS = "exports"
"""Folder for what a person exported from the model; not part of the disk budget."""
KINDS = tuple(dict.fromkeys((*held_out_tripwire.KINDS, *LINEAGE)))
"""Kinds of events that kept_states() and told_afterwards() read."""


class CannotGoBack(Exception):
    """The message says why, and what to do. Nothing was changed."""


@dataclass(frozen=True)
class KeptState:
    """A kept checkpoint, for people. time: when it was saved, Unix. reason: why (events.CheckpointSaved); restored: see
    there.

    trained: what led to its weights. evaluated: its newest held-out result. best, best_greedy: no other kept checkpoint did
    better on the current questions, at the training temperature and at 0. current: these are the model's weights.
    """

    round: int
    time: float
    reason: str
    restored: int
    evaluated: Evaluated | None
    best: bool
    best_greedy: bool
    current: bool
    trained: TrainingCount


def checkpoints_of(model: Path, config: RunConfig) -> CheckpointStore:
    """The checkpoints of the model in that folder, with its settings."""
    return CheckpointStore(
        model / "checkpoints", config.keep_checkpoints, int(config.disk_budget_gb * 1e9), bytes_without_exports
    )


def bytes_without_exports(checkpoints: Path) -> int:
    """Bytes of the model's folder without exports. checkpoints: the model's folder of checkpoints."""
    return folder_bytes(checkpoints.parent) - folder_bytes(checkpoints.parent / EXPORTS)


def told_of(saved: SavedCheckpoint) -> CheckpointSaved:
    """The event for a saved checkpoint."""
    state = saved.state
    return CheckpointSaved(
        round=state.rounds_done,
        weights=state.weights,
        parent=state.parent,
        optimizer=saved.optimizer,
        bytes=saved.bytes,
        reason=state.reason,
        restored=state.restored,
    )


def as_saved(path: Path, state: CheckpointState) -> SavedCheckpoint:
    """An existing checkpoint in the form it had when it was written."""
    return SavedCheckpoint(path, state, folder_bytes(path), has_optimizer(path, state))


# -- looking -----------------------------------------------------------------------------------------------------------


def kept_states(paths: Sequence[Path], events: Sequence[Event], items: int | None) -> list[KeptState]:
    """The states one can go back to. paths: checkpoints, oldest first; events: of the journal; items: see
    comparable_evaluations()."""
    saved = {event.round: event for event in events if isinstance(event, CheckpointSaved)}
    evaluated = {event.round: event for event in events if isinstance(event, Evaluated)}
    fair = comparable_evaluations(events, items)
    path_by_round = {rounds_of(path): path for path in paths}
    sampled = {number: fair[number].pass_at_1 for number in path_by_round if number in fair}
    greedy = {
        number: at_0.pass_at_1
        for number in path_by_round
        if number in fair and (at_0 := fair[number].greedy) is not None
    }
    best, best_greedy = (_newest_best(results) for results in (sampled, greedy))
    states, counts = [], TrainingCounts.of(events)
    for number, path in path_by_round.items():
        event = saved.get(number)
        states.append(
            KeptState(
                number,
                event.time if event else _written(path),
                event.reason if event else "",
                event.restored if event else -1,
                fair.get(number) or evaluated.get(number),
                number == best,
                number == best_greedy,
                path == paths[-1],
                counts.at(number),
            )
        )
    return states


def comparable_evaluations(events: Iterable[Event], items: int | None) -> dict[int, Evaluated]:
    """See held_out_tripwire.regular_results. items: number of questions in a regular evaluation; None: unknown, and nothing is
    comparable."""
    return {} if items is None else held_out_tripwire.regular_results(events, items)


def items_of(config: RunConfig) -> int | None:
    """Questions of a regular evaluation; None if a task of the settings no longer exists."""
    try:
        return regular_items(config)
    except (UnknownTask, BadTask):
        return None


def _newest_best(results: dict[int, float]) -> int | None:
    """Of equally good ones the newest: after going back that is the model's state."""
    return max(results, key=lambda number: (results[number], number), default=None)


def _written(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:  # deleted meanwhile
        return 0.0


# -- doing -------------------------------------------------------------------------------------------------------------


def copy_state(
    checkpoints: CheckpointStore, target: int, now: Path, now_state: CheckpointState, solved: Sequence[str]
) -> SavedCheckpoint:
    """The checkpoint that restores the weights after `target` rounds. now, now_state: the newest checkpoint.

    Raises CannotGoBack, NoRoom, OSError, CheckpointCorrupt; nothing is changed then.
    """
    source = next((path for path in checkpoints.complete() if rounds_of(path) == target), None)
    if source is None:
        available = ", ".join(str(rounds_of(path)) for path in checkpoints.complete())
        raise CannotGoBack(f"There is no checkpoint {target}. Kept are these: {available}.")
    try:
        state = read_state(source)
    except CheckpointCorrupt as error:
        raise CannotGoBack(
            f"Checkpoint {source.name} is damaged and cannot be gone back to. Choose another one."
        ) from error
    if not now_state.weights:
        raise CannotGoBack("This model has no trained weights of its own: there is nothing to go back to.")
    if state.weights == now_state.weights:
        raise CannotGoBack(
            f"Checkpoint {target} has the weights that the model has now (checkpoint {rounds_of(now)}). Nothing was done."
        )
    moment = CheckpointInfo(
        now_state.rounds_done + 1, REASON, tuple(solved), now_state.rollbacks, parent=state.weights, restored=target
    )
    return checkpoints.write_copy(source, state, moment)


def told_afterwards(saved: SavedCheckpoint, events: Iterable[Event], items: int | None) -> list[Event]:
    """What the journal records of going back: the checkpoint, the figures of the weights if known, and a sentence. events: of
    the journal; items: see comparable_evaluations()."""
    events = list(events)
    back, before = saved.state.restored, saved.state.rounds_done - 1
    trained = TrainingCounts.of(events).at(back)
    sentence = (
        f"Back at the weights of checkpoint {back} ({trained}); they are checkpoint {before + 1} now. "
        f"The state before is kept as checkpoint {before}."
    )
    evaluation = comparable_evaluations(events, items).get(back)
    again = [msgspec.structs.replace(evaluation, seq=0, time=0.0, round=before + 1, seconds=0.0)] if evaluation else []
    return [told_of(saved), *again, LogLine(level="info", text=sentence)]


def go_back_on_disk(model: Path, config: RunConfig, target: int, name: str) -> SavedCheckpoint:
    """Change a model that no node works with; the caller makes sure of that. name: of the model, for the messages.

    A kill leaves the model either unchanged or fully changed; in the latter case the next start updates the journal. Raises
    CannotGoBack, NoRoom, OSError, CheckpointCorrupt, JournalError.
    """
    checkpoints = checkpoints_of(model, config)
    newest, _ = checkpoints.newest_intact()
    if newest is None:
        raise CannotGoBack(f"{name} has not been trained yet. Train it: sapo-desktop node {name}")
    path, state = newest
    journal = Journal(model / "journal.db")
    log = UpdateLog(checkpoints.folder)
    try:
        logged = log.read(ResumeHeader(state.rounds_done, state.weights, state.rollbacks))
        if logged or path != checkpoints.complete()[-1] or journal.last_round() >= state.rounds_done:
            raise CannotGoBack(
                f"The node of {name} was killed, and what it did last is not in a checkpoint yet. Start it once "
                f"(sapo-desktop node {name}), so that nothing is lost, then go back."
            )
        events, items = journal.read(kinds=KINDS), items_of(config)
        if items is None:  # the best ones are unknown: all stay
            checkpoints.pinned = tuple(map(rounds_of, checkpoints.complete()))
        else:
            checkpoints.pinned = held_out_tripwire.checkpoints_to_keep(
                held_out_tripwire.watch_of(events, items, 0.0), state.rollbacks
            )
        saved = copy_state(checkpoints, target, path, state, state.solved)
        resume_log.delete_in_flight(model)  # rollouts of a round that will not come
        log.start(ResumeHeader(saved.state.rounds_done, saved.state.weights, saved.state.rollbacks))
        now = time.time()
        events_after = told_afterwards(saved, events, items)
        journal.append([msgspec.structs.replace(event, time=now) for event in events_after])
        return saved
    finally:
        log.close()
        journal.close()
