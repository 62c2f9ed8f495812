"""The settings of one model: its model.json holds them, and every change is checked like a new model's."""

from __future__ import annotations

from dataclasses import replace

from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.models import training
from sapo_desktop.services.models.shelf import changes, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import editing, flags
from sapo_desktop.settings.rows import NEVER, SettingRow
from sapo_swarm.config import RunConfig

COUNTS = "when the node starts again; the model goes on from its weights"


def rows(home: Home, model: Model) -> tuple[SettingRow, ...]:
    """Every setting: those of a run as this model has them, the others as the file has them. Raises UsageError, AppError.

    The default of a model's setting is what a new model would get.
    """
    defaults = settings.load(home.settings).run
    found = editing.rows(home.settings)
    return tuple(_row(row, model, defaults) if row.key.startswith("run.") else row for row in found)


def _row(row: SettingRow, model: Model, defaults: RunConfig) -> SettingRow:
    name = row.key.removeprefix("run.")
    value, default = settings.text(getattr(model.config, name)), settings.text(getattr(defaults, name))
    return replace(
        row,
        value=value,
        default=default,
        saved=value != default,
        counts=NEVER if name in changes.IDENTITY else COUNTS,
        owner=model.name,
    )


def change(model: Model, key: str, typed: str) -> str:
    """Set one setting of the model's run; the value as it was understood. The weights stay what they are.

    Raises UsageError (another identity, a value that is not allowed), UnknownTask, AppError; then nothing was changed.
    """
    name = editing.known(key).removeprefix("run.")
    typed = flags.absolute(typed) if name == "model" else typed
    config = settings.edited(model.config, key, typed)
    flags.check(config)
    config = flags.with_room(config) if flags.asks_for_room(model.config, config) else config
    model = store.read(model.folder)  # a node may have written it meanwhile
    changes.refuse_other_identity(model, config, training.meant(model))
    store.write(model.folder, store.with_config(model.record, changes.kept_identity(model, config)))
    return settings.text(getattr(config, name))


def reset(home: Home, model: Model, key: str) -> str:
    """Back to what a new model would get, which it returns. Raises UsageError, UnknownTask, AppError."""
    name = editing.known(key).removeprefix("run.")
    return change(model, key, settings.text(getattr(settings.load(home.settings).run, name)))
