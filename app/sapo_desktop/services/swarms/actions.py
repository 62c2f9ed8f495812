"""Screen 2's actions over this home: invites, the node's restart, the coordinator in the background."""

from __future__ import annotations

import asyncio

from sapo_desktop import settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms.interface import ActionFailed, Hosted

INVITE_HOURS, INVITE_USES = 168.0, 10


class HomeActions:
    """Implements SwarmActions. What it needs of the network is imported when it is needed."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def hosting(self) -> bool:
        """See SwarmActions."""
        from sapo_desktop.services.swarms import hosting

        return hosting.find(self._home) is not None

    async def join(self, invite: str) -> str:
        """See SwarmActions."""
        from sapo_desktop.services.models import control
        from sapo_desktop.services.swarms import membership

        home = self._home
        try:
            await asyncio.to_thread(membership.save, invite, home.invite)
            await asyncio.to_thread(settings.change, home.settings, "swarm.join", "true")
            await control.restart(home)
        except (AppError, OSError) as error:
            raise ActionFailed(str(error)) from error
        return "The node goes on in the swarm, with the same model and its weights"

    async def host(self, everybody: bool) -> Hosted:
        """See SwarmActions."""
        from sapo_desktop.services.swarms import hosting
        from sapo_swarm.protocol.client import CoordinatorError
        from sapo_swarm.protocol.invite import is_loopback

        try:
            state = await hosting.start(self._home, ["--host", "0.0.0.0"] if everybody else [])
            async with state.client() as admin:
                invites = await admin.new_invite("from the dashboard", INVITE_HOURS, INVITE_USES)
        except (AppError, CoordinatorError, OSError) as error:
            raise ActionFailed(str(error)) from error
        ordered = sorted(invites, key=lambda invite: is_loopback(invite.host))
        return Hosted(state.name, tuple(map(str, ordered)), f"{state.access().url}/")

    async def stop_hosting(self) -> str:
        """See SwarmActions."""
        from sapo_desktop.services.swarms import hosting

        try:
            await hosting.stop(self._home)
        except (AppError, OSError) as error:
            raise ActionFailed(str(error)) from error
        return "The coordinator has stopped; members train on alone until it is back"

    async def leave(self) -> str:
        """See SwarmActions."""
        from sapo_desktop.services.swarms.leaving import leave

        try:
            return await leave(self._home)
        except (AppError, OSError) as error:
            raise ActionFailed(str(error)) from error

    async def nearby(self) -> tuple[str, ...]:
        """See SwarmActions."""
        from sapo_desktop.services.swarms import lan

        return await lan.look()
