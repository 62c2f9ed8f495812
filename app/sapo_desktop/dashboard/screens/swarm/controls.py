"""The keys of screen 2 that change something: join, host, leave. Each asks first and says what came of it."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import ClassVar

from textual.binding import Binding, BindingType

from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.swarm.dialogs import HostChoice, HostDialog, HostedDialog, JoinDialog, LeaveDialog
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.services.swarms.interface import ActionFailed, SwarmActions


class SwarmControls(BaseScreen):
    """Mixed into the swarm screen. Without actions (a recording) there are no such keys."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "join", "join", show=False),
        Binding("h", "host", "host", show=False),
        Binding("l", "leave_swarm", "leave", show=False),
        Binding("x", "take_external", "take again", show=False),
    ]

    @property
    def actions(self) -> SwarmActions | None:
        """What can be done here; None over a recording."""
        return self.dashboard.swarm_actions

    def swarm_keys(self, state: DashboardState) -> list[Key]:
        """Join or leave, host, and after the tripwire: take external groups again."""
        if self.actions is None:
            return []
        member: Key = ("j", "join", "screen.join") if state.silo else ("l", "leave", "screen.leave_swarm")
        again: list[Key] = [("x", "take again", "screen.take_external")] if state.external_off else []
        return [*again, member, ("h", "host", "screen.host")]

    def action_join(self) -> None:
        """Ask for an invite, then join."""
        actions = self.actions
        if actions is None:
            return

        def typed(invite: str | None) -> None:
            if invite:
                self._join(invite)

        self.app.push_screen(JoinDialog(actions.nearby), typed)

    def _join(self, invite: str) -> None:
        assert self.actions is not None
        self._do(self.actions.join(invite), "Finishing the round, then joining")

    def action_leave_swarm(self) -> None:
        """Ask, then leave."""
        actions = self.actions
        if actions is None or self.dashboard.state.silo:
            return

        def chosen(yes: bool | None) -> None:
            if yes:
                self._do(actions.leave(), "Finishing the round, then leaving")

        self.app.push_screen(LeaveDialog(), chosen)

    def action_take_external(self) -> None:
        """After the held-out tripwire stopped external groups."""
        if self.dashboard.state.external_off:
            self.dashboard.command("external_on", "External groups are taken again")

    def action_host(self) -> None:
        """Ask for whom, then host and show the invite."""
        actions = self.actions
        if actions is None:
            return

        def chosen(choice: HostChoice | None) -> None:
            if choice == "stop":
                self._do(actions.stop_hosting(), "Stopping the coordinator")
            elif choice is not None:
                self.run_worker(self._host(choice == "everybody"), exit_on_error=True)

        self.app.push_screen(HostDialog(actions.hosting()), chosen)

    async def _host(self, everybody: bool) -> None:
        assert self.actions is not None
        try:
            hosted = await self.actions.host(everybody)
        except ActionFailed as error:
            self.dashboard.say(str(error), error=True)
            return

        def closed(take_part: bool | None) -> None:
            if take_part:
                self._join(hosted.invites[-1])  # this machine's own address, where there is one

        self.app.push_screen(HostedDialog(hosted, self.dashboard.state.silo), closed)

    def _do(self, work: Awaitable[str], meanwhile: str) -> None:
        self.dashboard.say(meanwhile)
        self.run_worker(self._finish(work), exit_on_error=True)

    async def _finish(self, work: Awaitable[str]) -> None:
        try:
            self.dashboard.say(await work)
        except ActionFailed as error:
            self.dashboard.say(str(error), error=True)
