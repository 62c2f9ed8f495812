"""Telling a node what to do, and waiting until it does it: what is printed afterwards is true."""

from __future__ import annotations

import asyncio
import time

from sapo_desktop.paths import Home
from sapo_swarm.node.control_api import ControlClient, NodeStatus

SETTLE_S = 20.0
"""A node that is not where it was sent after so long is reported as it is; what is pending says the rest."""
_POLL_S = 0.05
_FLOORS = ("memory", "disk")
"""What running anyway does not override."""
_UNTIL_RESUMED = ("person", "snooze", "held", "failure", "done")


async def tell(home: Home, verb: str, for_s: float = 0.0) -> NodeStatus:
    """Give the command (pause, resume, snooze, ...); the status once the node is in the state that it asks for.

    `finish` comes back at once: the status says what is pending. A node that is still loading its model keeps the command
    for later, and its status says so. Raises NodeNotRunning, NodeNotAnswering, ControlError.
    """
    async with ControlClient(home.socket) as node:
        body = {"for_s": for_s} if for_s else {}
        status = await node.post(verb, **body)
        deadline = time.monotonic() + SETTLE_S
        while not settled(verb, status) and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S)
            status = await node.status()
        return status


def settled(verb: str, status: NodeStatus) -> bool:
    """The node is where the command sends it, or where the command does not reach."""
    if status.state in ("starting", "stopped", "failed"):
        return True
    if verb in ("pause", "snooze"):
        return status.state == "paused" and status.reason in ("person", "snooze")
    if verb == "resume":
        held = status.state == "paused" and status.reason not in _UNTIL_RESUMED
        return held or status.state in ("running", "finishing")
    if verb == "run_anyway":
        return status.state in ("running", "finishing") or status.reason in _FLOORS
    return True
