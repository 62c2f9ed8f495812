"""F2's actions over this home: the settings file and, where one runs, the node."""

from __future__ import annotations

import asyncio
from dataclasses import replace

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.settings import editing
from sapo_desktop.settings.rows import SettingRefused, SettingRow
from sapo_swarm.node.control.api import ControlClient, ControlError, NodeNotRunning
from sapo_swarm.tasks.catalogue import UnknownTask


class HomeSettings:
    """Implements SettingsActions. The disk is read and written in threads."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._changed: set[str] = set()

    def describe(self) -> str:
        """Where the settings are."""
        return str(self._home.settings)

    async def rows(self) -> tuple[SettingRow, ...]:
        """Every setting, with what a running node works with where that is something else. Raises SettingRefused."""
        try:
            found = await asyncio.to_thread(editing.rows, self._home.settings)
        except AppError as error:
            raise SettingRefused(str(error)) from error
        running = await self._running()
        return tuple(replace(row, running=_other(row, running)) for row in found)

    async def _running(self) -> dict[str, str]:
        """Key -> value of the node that runs; empty without one."""
        if not self._home.socket.exists():
            return {}
        try:
            async with ControlClient(self._home.socket) as node:
                config = await node.config()
        except (NodeNotRunning, ControlError):
            return {}
        return {f"run.{name}": settings.text(getattr(config, name)) for name in config.__struct_fields__}

    async def change(self, key: str, value: str) -> None:
        """Write one setting. Raises SettingRefused."""
        try:
            await asyncio.to_thread(editing.change, self._home.settings, key, value)
        except (AppError, UnknownTask) as error:
            raise SettingRefused(str(error)) from error
        self._changed.add(key)

    async def reset(self, key: str) -> None:
        """Back to the default. Raises SettingRefused."""
        try:
            await asyncio.to_thread(editing.reset, self._home.settings, key)
        except AppError as error:
            raise SettingRefused(str(error)) from error
        self._changed.add(key)

    async def restart(self) -> str:
        """Have the node work with what was changed; what was done. Raises SettingRefused."""
        from sapo_desktop.services.nodes import supervisor

        names = {key.partition(".")[2] for key in self._changed if key.startswith("run.")}
        try:
            await supervisor.restart(self._home, names)
        except (AppError, OSError) as error:
            raise SettingRefused(str(error)) from error
        self._changed.clear()
        return "The node works with these settings now"


def _other(row: SettingRow, running: dict[str, str]) -> str:
    """What the node works with, "" where it is the same or the node's own choice (0 own groups = it decides)."""
    value = running.get(row.key, row.value)
    return "" if value == row.value or (row.key == "run.local_groups" and row.value == "0") else value
