"""F2's actions on this home: the settings file, the settings of the model shown, and a running node."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.models import control, training
from sapo_desktop.services.models.shelf import changes, store
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.settings import editing, flags
from sapo_desktop.settings.editing import NEVER, SettingRow
from sapo_swarm.config import RunConfig
from sapo_swarm.node.control_api import ControlClient, NodeError
from sapo_swarm.resolve_run import resolve_run_config

# The settings of one model: its model.json holds them, and every change is checked like a new model's.

COUNTS = "when the node starts again; the model goes on from its weights"


def model_setting_rows(home: Home, model: Model) -> tuple[SettingRow, ...]:
    """Every setting: a run's settings as this model has them, the others as the file has them. Raises UsageError, AppError.

    The default of a model's setting is what a new model would get.
    """
    defaults = settings.load_settings(home.settings).run
    rows = editing.setting_rows(home.settings)
    return tuple(_row(row, model, defaults) if row.key.startswith("run.") else row for row in rows)


def _row(row: SettingRow, model: Model, defaults: RunConfig) -> SettingRow:
    name = row.key.removeprefix("run.")
    value, default = settings.format_value(getattr(model.config, name)), settings.format_value(getattr(defaults, name))
    return replace(
        row,
        value=value,
        default=default,
        saved=value != default,
        counts=NEVER if name in changes.IDENTITY else COUNTS,
        owner=model.name,
    )


def change_model_setting(model: Model, key: str, typed: str) -> str:
    """Change one setting of the model's run; returns the value as it was understood. The weights do not change.

    Raises UsageError (another identity, a value that is not allowed), UnknownTask, AppError; then nothing was changed.
    """
    name = editing.require_setting(key).removeprefix("run.")
    typed = flags.absolute_model(typed) if name == "model" else typed
    config = settings.config_with_setting(model.config, key, typed)
    flags.check_config(config)
    model = store.read_model(model.folder)  # a node may have written it meanwhile
    changes.refuse_other_identity(model, config, training.resolved_config(model))
    chosen = {name: getattr(config, name)}
    facts = flags.answer_facts(config, chosen, model=model.config)
    config, _ = resolve_run_config(model.config, model.config, chosen, facts=facts)
    store.write_model_record(model.folder, store.with_config(model.record, config))
    return settings.format_value(getattr(config, name))


def reset_model_setting(home: Home, model: Model, key: str) -> str:
    """Reset it to what a new model would get, and return that. Raises UsageError, UnknownTask, AppError."""
    name = editing.require_setting(key).removeprefix("run.")
    return change_model_setting(
        model, key, settings.format_value(getattr(settings.load_settings(home.settings).run, name))
    )


# F2's actions on this home: the settings file, the model shown and, where one runs, the node.


class HomeSettings:
    """Every method raises USER_ERRORS; a refused change leaves the file as it was. Disk access happens in threads."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def describe(self) -> str:
        """Where the settings file is."""
        return str(self._home.settings)

    async def rows(self) -> tuple[SettingRow, ...]:
        """Every setting."""
        model = await control.current_model(self._home)
        if model is None:
            all_rows = await asyncio.to_thread(editing.setting_rows, self._home.settings)
        else:
            all_rows = await asyncio.to_thread(model_setting_rows, self._home, model)
        running = await self._running()
        return tuple(replace(row, running=_other(row, running)) for row in all_rows)

    async def _running(self) -> dict[str, str]:
        """Key -> value in use by the running node; empty without one."""
        if not self._home.socket.exists():
            return {}
        try:
            async with ControlClient(self._home.socket) as node:
                config = await node.config()
                alone = (await node.status()).mode == "silo"
        except NodeError:
            return {}
        settable = {"run.rounds"} | ({"run.external_groups"} if alone else {"run.local_groups", "run.external_groups"})
        values = {f"run.{name}": settings.format_value(getattr(config, name)) for name in config.__struct_fields__}
        return {key: value for key, value in values.items() if key not in settable}

    async def change(self, key: str, value: str, owner: str = "") -> None:
        """Write one setting of the model that the row names, even if another model is shown by now."""
        await asyncio.to_thread(self._put, key, value, owner)

    async def reset(self, key: str, owner: str = "") -> None:
        """Reset it to the default, with `owner` as in `change`."""
        await asyncio.to_thread(self._put, key, None, owner)

    def _put(self, key: str, value: str | None, owner: str) -> None:
        """value: None = back to the default."""
        home = self._home
        if not owner:
            editing.reset_setting(home.settings, key) if value is None else editing.change_setting(
                home.settings, key, value
            )
        elif value is None:
            reset_model_setting(home, store.find_model(home, owner), key)
        else:
            change_model_setting(store.find_model(home, owner), key, value)

    async def restart(self) -> str:
        """Let the node finish its round and restart with the changes made here. Returns a sentence."""
        await control.restart_node(self._home, keep_mode=True)
        return "The node goes on with these settings now, from the same weights"


def _other(row: SettingRow, running: dict[str, str]) -> str:
    """The value that the node uses, "" where it is the same or the node's own choice ("auto", and 0 where 0 is automatic)."""
    value = running.get(row.key, row.value)
    own_choice = row.value == "auto" or (row.key in ("run.local_groups", "run.threads") and row.value == "0")
    return "" if value == row.value or own_choice else value
