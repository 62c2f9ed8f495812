"""Selecting weights for eval, chat, compare and export: "base", a model's newest checkpoint, or one of the others."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sapo_backends.base import Engine, Progress
from sapo_backends.errors import CheckpointCorrupt
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines
from sapo_desktop.services.models.shelf import history, mending, store
from sapo_desktop.services.models.shelf.store import Model, rounds_of
from sapo_swarm.config import RunConfig
from sapo_swarm.node.checkpoints import read_state


@dataclass(frozen=True)
class SelectedWeights:
    """Weights to load. checkpoint: None for the base in the config. label: for people; model: the name of the model.

    newest: use whichever checkpoint is the newest at loading time.
    """

    label: str
    config: RunConfig
    checkpoint: Path | None
    model: str = ""
    newest: bool = False

    def load(self, progress: Progress) -> Engine:
        """Build the engine and restore the checkpoint. Raises BackendError, CheckpointCorrupt."""
        engine = engines.engine_builder(self.config)(progress)
        path = self.checkpoint
        while path is not None:
            try:
                read_state(path)
                engine.restore(path / "engine")
            except CheckpointCorrupt:
                newer = store.read_model(path.parent.parent).checkpoints if self.newest else ()
                if path.exists() or not newer or newer[-1] == path:
                    engine.close()
                    raise
                path = newer[-1]  # a node in training replaced it meanwhile
            else:
                break
        return engine


def select_weights(home: Home, name: str, checkpoint: str) -> SelectedWeights:
    """Weights of the model with that name ("" = the one trained last): "base", "latest", a checkpoint such as "120",
    or "round-000120".

    Raises UsageError that lists the checkpoints, ModelNotFound where the model's base is missing.
    """
    return weights_of_model(store.find_model(home, name, trained=checkpoint != "base"), checkpoint)


def weights_of_model(model: Model, checkpoint: str = "latest") -> SelectedWeights:
    """The same for a model at hand. Raises UsageError, ModelNotFound where its base is missing."""
    mending.require_base_folder(model)
    config = history.with_room(engines.stored_config(model.config, model.folder), model.folder)
    if checkpoint == "base":
        return SelectedWeights(f"base {config.model}", config, None, model.name)
    if not model.checkpoints:
        raise UsageError(f"{model.name} has not been trained yet. Train it: sapo-desktop node {model.name}")
    if checkpoint == "latest":
        path = model.checkpoints[-1]
    else:
        by_round = {rounds_of(p): p for p in model.checkpoints}
        number = checkpoint.removeprefix("round-").lstrip("0") or "0"
        if not number.isdigit() or int(number) not in by_round:
            have = ", ".join(str(r) for r in by_round)
            raise UsageError(
                f"{model.name} has no checkpoint {checkpoint!r}. It has these: {have}; or say base or latest."
            )
        path = by_round[int(number)]
    label = f"{model.name} after {history.training_counts(model.folder).at(rounds_of(path))}"
    return SelectedWeights(label, config, path, model.name, checkpoint == "latest")
