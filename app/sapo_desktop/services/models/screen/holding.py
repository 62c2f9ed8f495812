"""A node that works waits while the dashboard needs the processor and the memory for something else."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.node.control.api import ControlClient, NodeError

_AT_WORK = ("running", "starting", "finishing")


@asynccontextmanager
async def node_held(home: Home) -> AsyncIterator[None]:
    """A node that works waits in the block and goes on after it, unless it was asked to pause meanwhile or before; one that is
    paused, or none, stays as it is."""
    held = await _hold(home)
    try:
        yield
    finally:
        if held:
            with contextlib.suppress(NodeError):
                async with ControlClient(home.socket) as node:
                    await node.post("release")


async def _hold(home: Home) -> bool:
    try:
        status = await supervisor.running(home)
        if status is None or status.state not in _AT_WORK:
            return False
        async with ControlClient(home.socket) as node:
            await node.post("hold")
    except NodeError:
        return False
    return True
