"""A new model: everything is checked, and the base is there, before a folder is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from sapo_desktop.paths import Home
from sapo_desktop.services.machine import engines
from sapo_desktop.services.models.shelf import names, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig

if TYPE_CHECKING:
    from sapo_backends.base import Progress

_READS_FOLDERS = frozenset({"torch", "mlx", "llamacpp"})
"""Engines whose base is a bundled model, a folder or a hub id; another one knows its own."""


def new(home: Home, name: str, config: RunConfig, progress: Progress | None = None) -> Model:
    """A model of that name that starts from config.model. progress: of the download, where the base is on the hub.

    Raises UsageError, UnknownTask, BackendUnavailable, ModelNotFound, AppError; then nothing is left behind.
    """
    names.check(name, [model.name for model in store.all_models(home)])
    require(config, progress)
    return store.create(home, name, config)


def require(config: RunConfig, progress: Progress | None = None) -> None:
    """The settings make sense, their engine is installed, their base is on this disk (downloaded now if it was not).

    Raises UsageError, UnknownTask, BackendUnavailable, ModelNotFound.
    """
    from sapo_backends.checkpoints import locate

    flags.check(config)
    if _READS_FOLDERS & set(engines.choose_trainer(config).split("+")):
        locate.resolve(config.model, progress)


def bases() -> list[tuple[str, Path]]:
    """The bundled models: name and folder."""
    import sapo_assets

    return sorted(sapo_assets.models().items())
