"""Where a node's metrics for Prometheus are served: the typed port, or the one of the settings."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from socket import socket
from typing import TYPE_CHECKING

from sapo_desktop.errors import UsageError

if TYPE_CHECKING:
    from sapo_swarm.node.control_server import ControllableNode


@contextmanager
def metrics_socket(typed: int | None, port: int, say: Callable[[str], None]) -> Iterator[socket | None]:
    """A loopback socket, or None where there are to be no metrics, or the port cannot be used: the error stream says so then.
    typed: by --metrics, None = not. port: of the settings. say: where it is. Raises UsageError."""
    if typed is not None and not 0 <= typed < 1 << 16:
        raise UsageError("--metrics is a port, a number from 0 (any that is free) to 65535.")
    if typed is None and not port:
        yield None
        return
    from sapo_swarm.node.control_server import bind_loopback_socket

    wanted = port if typed is None else typed
    try:
        bound = bind_loopback_socket(wanted)
    except OSError as error:
        why = error.strerror or error
        print(
            f"sapo-desktop: Port {wanted} cannot be used for metrics ({why}). The node works without them. "
            "Another port: --metrics PORT",
            file=sys.stderr,
        )
        yield None
        return
    with contextlib.closing(bound):
        say(f"Metrics for Prometheus: http://127.0.0.1:{bound.getsockname()[1]}/metrics")
        yield bound


@asynccontextmanager
async def serve_metrics(node: ControllableNode, bound: socket | None) -> AsyncIterator[None]:
    """While the node lives."""
    if bound is None:
        yield
        return
    from sapo_swarm.node.control_server import MetricsServer

    async with MetricsServer(node, bound):
        yield
