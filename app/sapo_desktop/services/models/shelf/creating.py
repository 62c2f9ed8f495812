"""A new model: everything is checked before a folder is created, including what the hub says about a base that is not here
yet."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sapo_backends.checkpoints.local_models import is_named
from sapo_desktop.paths import Home
from sapo_desktop.services.bases import fetching
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig


def create_model(home: Home, name: str, config: RunConfig) -> Model:
    """A new model of that name that starts from config.model. A base on the hub is downloaded when training first starts.

    Raises UsageError, UnknownTask, BackendUnavailable, ModelNotFound, AppError; then nothing is left behind.
    """
    store.check_model_name(name, store.taken_model_names(home))
    base = config.model
    config = msgspec.structs.replace(config, model=flags.absolute_model(base))  # a node starts in another folder
    flags.check_config(config)
    fetching.require_usable_base(config)
    return store.create_model_folder(home, name, config, base if is_named(base) else config.model)


def bundled_bases() -> list[tuple[str, Path]]:
    """The bundled models: name and folder."""
    import sapo_assets

    return sorted(sapo_assets.models().items())
