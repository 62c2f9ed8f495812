"""The keys of screen 2 that change something: join, host, leave. Each asks first and reports the outcome."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType

from sapo_desktop.dashboard.look import plain_text
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.swarm.dialogs import (
    FOR_WHOM,
    RUNNING,
    HostChoice,
    HostedDialog,
    JoinDialog,
    TaskDialog,
)
from sapo_desktop.dashboard.screens.swarm.find import FindDialog
from sapo_desktop.dashboard.screens.swarm.trail import TrailDialog
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_desktop.services.swarms.interface import PendingNode

if TYPE_CHECKING:
    from sapo_desktop.services.swarms.actions import HomeActions

LOOK_S = 3.0
"""Seconds between checks who is waiting for approval."""


class SwarmControls(BaseScreen):
    """Base of the swarm screen. Without actions (over a recording) these keys do not exist."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "join", "join", show=False),
        Binding("f", "find", "find", show=False),
        Binding("s", "stay", "stay", show=False),
        Binding("h", "host", "host", show=False),
        Binding("l", "leave_swarm", "leave", show=False),
        Binding("t", "tasks", "tasks", show=False),
        Binding("x", "take_external", "take again", show=False),
        Binding("a", "let_in", "let in", show=False),
        Binding("w", "trail", "first solved", show=False),
    ]
    guests: tuple[PendingNode, ...] = ()
    """Nodes waiting for this host's approval, longest first."""
    hosts = False
    """Whether a swarm is hosted on this machine."""

    def on_mount(self) -> None:
        """Check periodically who is waiting for approval."""
        if self.actions is not None:
            self.set_interval(LOOK_S, self._look)
            self._look()

    def _look(self) -> None:
        self.run_worker(self._see_guests(), group="guests", exclusive=True, exit_on_error=True)

    async def _see_guests(self) -> None:
        assert self.actions is not None
        known, self.guests = {guest.node for guest in self.guests}, await self.actions.waiting()
        self.hosts = await asyncio.to_thread(self.actions.hosting)
        new = [guest for guest in self.guests if guest.node not in known]
        if new:
            self.dashboard.say(f"{name_of(new[0])} waits to be let into your swarm: a on the swarm screen")
        self.dashboard.redraw()

    def action_let_in(self) -> None:
        """Where you host with approval: let in the node that waits longest."""
        if self.actions is None or not self.guests:
            return
        guest, self.guests = self.guests[0], self.guests[1:]
        self._do(self.actions.let_in(guest), f"Letting {name_of(guest)} in")

    @property
    def actions(self) -> HomeActions | None:
        """The available actions; None over a recording."""
        return self.dashboard.swarm_actions

    def swarm_keys(self, state: DashboardState) -> list[Key]:
        """Join or leave, host, and after the tripwire: take external groups again."""
        if self.actions is None:
            return []
        member: Key = ("j", "join", "screen.join") if state.silo else ("l", "leave", "screen.leave_swarm")
        again: list[Key] = [("x", "take again", "screen.take_external")] if state.external_off else []
        guest: list[Key] = [("a", f"let {name_of(one)} in", "screen.let_in") for one in self.guests[:1]]
        tasks: list[Key] = [] if state.silo else [("t", "tasks", "screen.tasks")]
        stay: list[Key] = [("s", "stay", "screen.stay")] if not state.silo and state.trial.name else []
        find: list[Key] = [("f", "find", "screen.find")] if state.silo else []
        return [*guest, *again, *stay, *find, member, ("h", "host", "screen.host"), *tasks]

    def action_find(self) -> None:
        """Find a swarm in a directory; one that is chosen there is joined for trial."""
        actions = self.actions
        if actions is None:
            return

        def chosen(invite: str | None) -> None:
            if invite and not self.dashboard.state.silo:
                self.dashboard.say("This node is in a swarm. Leave it first: l", error=True)
            elif invite:
                self._join(invite, listed=True)

        self.app.push_screen(FindDialog(actions), chosen)

    def action_stay(self) -> None:
        """Stay in an open swarm after its trial."""
        if self.actions is not None and not self.dashboard.state.silo and self.dashboard.state.trial.name:
            self._do(self.actions.stay(), "Finishing the round, then staying with normal settings")

    def action_join(self) -> None:
        """Join a swarm with an invite."""
        actions = self.actions
        if actions is None:
            return

        def typed(invite: str | None) -> None:
            if invite:
                self._join(invite)

        self.app.push_screen(JoinDialog(), typed)

    def _join(self, invite: str, listed: bool = False) -> None:
        assert self.actions is not None
        self.dashboard.say("Finishing the round, then joining" + (" for trial" if listed else ""))
        self.run_worker(self._joined(self.actions.join(invite, listed)), exit_on_error=True)

    async def _joined(self, joining: Awaitable[str]) -> None:
        if await self.dashboard.told(joining):
            await self._look_at_tasks()

    def action_trail(self) -> None:
        """Every task's Aha trail in full."""
        self.app.push_screen(TrailDialog(self.dashboard.state))

    def action_tasks(self) -> None:
        """Look at the tasks of its host's own that this swarm trains on."""
        if self.actions is not None:
            nothing = "This swarm has no task that waits for your yes"
            self.run_worker(self._look_at_tasks(nothing), group="tasks", exclusive=True, exit_on_error=True)

    async def _look_at_tasks(self, nothing: str = "") -> None:
        """Ask about each task that the person has not accepted yet. nothing: the message if there are none."""
        assert self.actions is not None
        if (waiting := await self.dashboard.outcome(self.actions.offered())) is None:
            return
        if not waiting and nothing:
            self.dashboard.say(nothing)
        for task in waiting:
            if task.dropped:
                self.dashboard.say(task.dropped, error=True)
            elif await self.app.push_screen_wait(TaskDialog(task)):
                self.dashboard.say("Finishing the round, then training on it too")
                await self.dashboard.told(self.actions.accept(task))

    def action_leave_swarm(self) -> None:
        """Leave the swarm, after a yes."""
        actions = self.actions
        if actions is None or self.dashboard.state.silo:
            return

        def chosen(yes: bool | None) -> None:
            if yes:
                self._do(actions.leave(), "Finishing the round, then leaving")

        detail = "after its round the node trains alone, without the invite"
        self.app.push_screen(ChoiceDialog("Leave the swarm?", [("Leave", detail, True)]), chosen)

    def action_take_external(self) -> None:
        """Take external groups again after the held-out tripwire stopped them."""
        if self.dashboard.state.external_off:
            self.dashboard.command("external_on", "External groups are taken again")

    def action_host(self) -> None:
        """Host a swarm: ask for whom, then show the invite."""
        actions = self.actions
        if actions is None:
            return

        def chosen(choice: HostChoice | None) -> None:
            if choice == "stop":
                self._do(actions.stop_hosting(), "Stopping the coordinator")
            elif choice is not None:
                self.run_worker(self._host(choice != "here", choice == "approve"), exit_on_error=True)

        answers = RUNNING if actions.hosting() else FOR_WHOM
        self.app.push_screen(ChoiceDialog[HostChoice]("A swarm on this machine", answers), chosen)

    async def _host(self, everybody: bool, approve: bool) -> None:
        assert self.actions is not None
        if (hosted := await self.dashboard.outcome(self.actions.host(everybody, approve))) is None:
            return

        def closed(take_part: bool | None) -> None:
            if take_part:
                self._join(hosted.invites[-1])  # this machine's own address, if there is one

        self.app.push_screen(HostedDialog(hosted, self.dashboard.state.silo), closed)

    def _do(self, work: Awaitable[str], meanwhile: str) -> None:
        self.dashboard.say(meanwhile)
        self.run_worker(self.dashboard.told(work), exit_on_error=True)


def name_of(guest: PendingNode) -> str:
    """The name of a waiting node: peer text, shortened and sanitised."""
    return plain_text(guest.name, 16) or guest.node[:8]
