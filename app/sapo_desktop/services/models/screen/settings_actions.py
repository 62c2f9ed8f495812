"""F2's actions over this home: the settings file, the model that is shown and, where one runs, the node."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sapo_desktop import settings
from sapo_desktop.paths import Home
from sapo_desktop.services.models import control
from sapo_desktop.services.models.screen import model_settings
from sapo_desktop.services.models.shelf import store
from sapo_desktop.settings import editing
from sapo_desktop.settings.rows import SettingRow
from sapo_swarm.node.control_api import ControlClient, NodeError


class HomeSettings:
    """Every method raises known(); a refused change leaves the file as it was. The disk is read and written in threads."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def describe(self) -> str:
        """Where the settings lie."""
        return str(self._home.settings)

    async def rows(self) -> tuple[SettingRow, ...]:
        """Every setting."""
        model = await control.shown(self._home)
        if model is None:
            found = await asyncio.to_thread(editing.rows, self._home.settings)
        else:
            found = await asyncio.to_thread(model_settings.rows, self._home, model)
        running = await self._running()
        return tuple(replace(row, running=_other(row, running)) for row in found)

    async def _running(self) -> dict[str, str]:
        """Key -> value of the node that runs; empty without one."""
        if not self._home.socket.exists():
            return {}
        try:
            async with ControlClient(self._home.socket) as node:
                config = await node.config()
                alone = (await node.status()).mode == "silo"
        except NodeError:
            return {}
        chosen = {"run.rounds"} | ({"run.external_groups"} if alone else {"run.local_groups", "run.external_groups"})
        values = {f"run.{name}": settings.text(getattr(config, name)) for name in config.__struct_fields__}
        return {key: value for key, value in values.items() if key not in chosen}

    async def change(self, key: str, value: str, owner: str = "") -> None:
        """Write one setting of the model that the row names, whichever is shown by now."""
        await asyncio.to_thread(self._put, key, value, owner)

    async def reset(self, key: str, owner: str = "") -> None:
        """Back to the default, as `change`."""
        await asyncio.to_thread(self._put, key, None, owner)

    def _put(self, key: str, value: str | None, owner: str) -> None:
        """value: None = back to the default."""
        home = self._home
        if not owner:
            editing.reset(home.settings, key) if value is None else editing.change(home.settings, key, value)
        elif value is None:
            model_settings.reset(home, store.find(home, owner), key)
        else:
            model_settings.change(store.find(home, owner), key, value)

    async def restart(self) -> str:
        """The node finishes its round and starts again with what was changed here. A sentence."""
        await control.restart(self._home, keep_mode=True)
        return "The node goes on with these settings now, from the same weights"


def _other(row: SettingRow, running: dict[str, str]) -> str:
    """What the node works with, "" where it is the same or its own choice ("auto", and 0 where 0 is automatic)."""
    value = running.get(row.key, row.value)
    own_choice = row.value == "auto" or (row.key in ("run.local_groups", "run.threads") and row.value == "0")
    return "" if value == row.value or own_choice else value
