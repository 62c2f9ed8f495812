"""A node that works waits while the dashboard needs the processor and the memory for something else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.node.control.api import ControlClient, ControlError, NodeNotRunning

_AT_WORK = ("running", "starting", "finishing")


@asynccontextmanager
async def node_held(home: Home) -> AsyncIterator[None]:
    """A node that works is paused in the block and goes on after it; one that is paused, or none, stays as it is."""
    held = await _pause(home)
    try:
        yield
    finally:
        if held:
            with contextlib.suppress(NodeNotRunning, ControlError):
                async with ControlClient(home.socket) as node:
                    await node.post("resume")


async def _pause(home: Home) -> bool:
    try:
        status = await supervisor.running(home)
        if status is None or status.state not in _AT_WORK:
            return False
        async with ControlClient(home.socket) as node:
            await node.post("pause")
    except (NodeNotRunning, ControlError):
        return False
    return True
