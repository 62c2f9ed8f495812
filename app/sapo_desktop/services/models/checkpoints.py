"""Naming a model for eval, chat and export: "base", a run's checkpoint, a run, or a folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sapo_backends.base import Engine, Progress
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines
from sapo_desktop.services.models import runs
from sapo_swarm.config import RunConfig
from sapo_swarm.node.storage.checkpoints import read_state, rounds_of


@dataclass(frozen=True)
class Chosen:
    """A model to load. checkpoint: None is the base model of the config."""

    label: str
    config: RunConfig
    checkpoint: Path | None

    def load(self, progress: Progress) -> Engine:
        """Build the engine and restore the checkpoint. Raises BackendError, CheckpointCorrupt."""
        engine = engines.builder(self.config)(progress)
        if self.checkpoint is not None:
            read_state(self.checkpoint)
            engine.restore(self.checkpoint / "engine")
        return engine


def choose(home: Home, run_id: str, name: str) -> Chosen:
    """name: "base", "latest", a round number such as "120", or "round-000120". Raises UsageError."""
    run = runs.find(home.runs, run_id)
    config = engines.stored_config(run.config, run.folder)
    if name == "base":
        return Chosen(f"base {config.model}", config, None)
    found = sorted((run.folder / "checkpoints").glob("round-*"), key=rounds_of)
    if not found:
        raise UsageError(f"Run {run.run_id} has no checkpoint yet.")
    if name == "latest":
        path = found[-1]
    else:
        by_round = {rounds_of(p): p for p in found}
        wanted = name.removeprefix("round-").lstrip("0") or "0"
        if not wanted.isdigit() or int(wanted) not in by_round:
            have = ", ".join(str(r) for r in by_round)
            raise UsageError(
                f"Run {run.run_id} has no checkpoint {name!r}. It has rounds {have}; or say base or latest."
            )
        path = by_round[int(wanted)]
    return Chosen(f"{run.run_id} after {rounds_of(path)} rounds", config, path)
