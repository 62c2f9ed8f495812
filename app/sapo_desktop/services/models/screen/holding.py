"""A node that works waits while the dashboard needs the processor and the memory for something else.

It waits as long as it is told so: a dashboard that is killed, or whose last word gets lost, holds it for LEASE_S at most.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import supervisor
from sapo_swarm.node.control_api import ControlClient, NodeError

_AT_WORK = ("running", "starting", "finishing")
LEASE_S, RENEWED_S = 60.0, 20.0
"""A node waits for so long, and is told again so often."""


@asynccontextmanager
async def node_held(home: Home, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
    """A node that works waits in the block and goes on after it, unless it was asked to pause meanwhile or before, or another
    block has it wait; one that is paused, or none, stays as it is."""
    holder = 1 + secrets.randbelow(2**53 - 1)
    if not await _hold(home, holder):
        yield
        return
    renewing = asyncio.create_task(_renew(home, holder, sleep))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(NodeError):
            async with ControlClient(home.socket) as node:
                await node.post("release", holder=holder)


async def _hold(home: Home, holder: int) -> bool:
    try:
        status = await supervisor.running(home)
        if status is None or status.state not in _AT_WORK:
            return False
        async with ControlClient(home.socket) as node:
            await node.post("hold", for_s=LEASE_S, holder=holder)
    except NodeError:
        return False
    return True


async def _renew(home: Home, holder: int, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Until cancelled."""
    while True:
        await sleep(RENEWED_S)
        with contextlib.suppress(NodeError):
            async with ControlClient(home.socket) as node:
                await node.post("renew", for_s=LEASE_S, holder=holder)
