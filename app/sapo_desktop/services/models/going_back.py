"""Going back to a kept state of a model: listing the states, resolving the one the person names, and restoring it, with or
without a running node."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home, quote_command
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_swarm.events import CheckpointSaved
from sapo_swarm.node.clock import format_age
from sapo_swarm.node.control_api import ControlClient
from sapo_swarm.node.going_back import (
    BEFORE,
    KINDS,
    REASON,
    CannotGoBack,
    KeptState,
    go_back_on_disk,
    items_of,
    kept_states,
)
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.training_count import LINEAGE, TrainingCounts

BEST = {"best": "best", "best-greedy": "best_greedy"}
"""Words accepted instead of a round -> the kept state that they mean."""
LEGEND = "steps: of examples; rounds: of practice. Held-out pass@1: sampled at temperature 1, greedy at 0 as chat does; * best"
_REASONS = {
    "start": "before training",
    "time": "at an interval",
    "pause": "at a pause",
    "stop": "at a stop",
    "evaluation": "at an evaluation",
    "redone": "after a kill",
    BEFORE: "before going back",
}


def load_kept_states(model: Model) -> list[KeptState]:
    """The kept states of a model, oldest first. Reads the whole journal. Raises UsageError where there are none,
    JournalError."""
    if not model.checkpoints:
        raise UsageError(f"{model.name} has not been trained yet. Train it: sapo-desktop node {model.name}")
    journal = model.folder / "journal.db"
    events = read_only(journal, kinds=KINDS) if journal.exists() else []
    return kept_states(model.checkpoints, events, items_of(model.config))


def resolve_kept_state(model: Model, states: list[KeptState], word: str) -> KeptState:
    """The kept state of a checkpoint, such as 12, or round-000012; or the best one. Raises UsageError that lists them."""
    if word in BEST:
        chosen = next((state for state in states if getattr(state, BEST[word])), None)
        if chosen is None:
            raise UsageError(
                f"No kept state of {model.name} was measured on the held-out questions of today. Name a checkpoint instead: "
                f"{_rounds(states)}."
            )
        return chosen
    number = word.removeprefix("round-").lstrip("0") or "0"
    chosen = next((state for state in states if str(state.round) == number), None)
    if chosen is None:
        raise UsageError(
            f"{model.name} has no checkpoint {word[:40]!r}. It has these: {_rounds(states)}; or say best or "
            "best-greedy."
        )
    return chosen


def _rounds(states: list[KeptState]) -> str:
    return ", ".join(str(state.round) for state in states)


async def go_back(home: Home, model: Model, target: int) -> str:
    """Replace the present weights with those of a kept state; returns a sentence. A node that trains the model does it
    itself.

    Raises AppError, NodeError, JournalError, OSError, BackendError; then the model is unchanged.
    """
    status = await supervisor.wait_for_status(home)
    if status is not None and Path(status.folder) == model.folder:
        async with ControlClient(home.socket) as node:
            await node.post("rollback", round=target)
    elif status is not None:  # the node trains another model
        await asyncio.to_thread(_on_disk, model, target)
    else:
        await asyncio.to_thread(_locked, home, model, target)
    return await asyncio.to_thread(_done, model)


def _locked(home: Home, model: Model, target: int) -> None:
    with NodeLock(home.lock, names_node=False):  # no node starts meanwhile, and the dashboard is none
        _on_disk(model, target)


def _on_disk(model: Model, target: int) -> None:
    try:
        go_back_on_disk(model.folder, model.config, target, model.name)
    except CannotGoBack as error:
        raise AppError(str(error)) from error


def _done(model: Model) -> str:
    """What the journal says was restored last."""
    events = read_only(model.folder / "journal.db", kinds=LINEAGE)
    restored = next(e for e in reversed(events) if isinstance(e, CheckpointSaved) and e.restored >= 0)
    undo = quote_command("sapo-desktop", "rollback", model.name, "--to", str(restored.round - 1))
    return (
        f"{model.name} has the weights of checkpoint {restored.restored} again ({TrainingCounts.of(events).now}); they are "
        f"checkpoint {restored.round} now. The state before is kept: {undo}"
    )


def kept_state_line(state: KeptState, now: float) -> str:
    """One table line for a kept state, under kept_state_header(). now: Unix time."""
    event = state.evaluated
    at_0 = event.greedy if event else None
    sampled = _share(event.pass_at_1 if event else None, state.best)
    greedy = _share(at_0.pass_at_1 if at_0 else None, state.best_greedy)
    ago = format_age(now - state.time) if state.time else "?"
    done = f"{state.trained.steps:>6,}  {state.trained.rounds:>6,}"
    return f"{state.round:>10}  {done}  {ago:>6}  {sampled:>8} {greedy:>8}  {saved_reason(state)}"


def kept_state_header() -> str:
    """The column headings for kept_state_line()."""
    return f"{'checkpoint':>10}  {'steps':>6}  {'rounds':>6}  {'ago':>6}  {'sampled':>7}  {'greedy':>7}   saved"


def _share(share: float | None, best: bool) -> str:
    return f"{'–' if share is None else f'{100 * share:.1f} %'}{'*' if best else ' '}"


def saved_reason(state: KeptState) -> str:
    """When in a model's life a state was saved, and whether the model has these weights now."""
    moment = f"going back to {state.restored}" if state.restored >= 0 else _REASONS.get(state.reason, "")
    if state.reason == REASON and state.restored < 0:
        moment = "by the tripwire"
    return ", ".join(filter(None, (moment, "now" if state.current else "")))


def kept_state_table(states: list[KeptState]) -> list[str]:
    """Every kept state, oldest first, under the column headings."""
    now = time.time()
    return [kept_state_header(), *(kept_state_line(state, now) for state in states)]
