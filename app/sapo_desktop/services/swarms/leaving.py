"""Leaving a swarm: the node trains alone, the coordinator is told, the invite is forgotten. Or staying after a trial."""

from __future__ import annotations

import asyncio

from sapo_desktop import settings
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models import control
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.swarms import membership, trial


async def leave(home: Home, keep_invite: bool = False) -> str:
    """Take the node's groups out of the pool, train alone from the next round on. Raises AppError."""
    from sapo_swarm.protocol.client import CoordinatorError, NodeClient

    invite = membership.load(home.invite)
    settings.change(home.settings, "swarm.join", "false")
    status = await supervisor.found(home)
    if status is not None and status.mode == "swarm":
        await control.restart(home)
    told = "The coordinator knows."
    try:
        async with NodeClient(invite, (await asyncio.to_thread(membership.identity, home)).identity) as client:
            await client.leave()
    except (AppError, CoordinatorError) as error:  # AppError: the keyring is locked, so nothing can be signed
        told = f"The coordinator could not be told: {error} Its copies of your groups expire by themselves."
    if not keep_invite:
        membership.forget(home.invite)
    return f"Left the swarm. {told} {'The invite is kept.' if keep_invite else 'The invite is forgotten.'}"


async def stay(home: Home) -> str:
    """End the trial with a yes: normal settings from the next round on. Raises UsageError, AppError."""
    invite = await asyncio.to_thread(membership.load, home.invite)
    if await asyncio.to_thread(trial.find, home.invite, invite.swarm) is None:
        raise UsageError("This node is on no trial: it takes part with its normal settings already.")
    await asyncio.to_thread(trial.stay, home.invite, invite.swarm)
    status = await supervisor.found(home)
    if status is not None and status.mode == "swarm":
        await control.restart(home, keep_mode=True)
    return "The trial is over: the node stays in the swarm, with its normal settings"
