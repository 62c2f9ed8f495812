"""Where a node's metrics for Prometheus are served: the typed port, or the one in the settings."""

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
    """A loopback socket, or None where metrics are off or the port cannot be used: then the error stream says so. typed: from
    --metrics, None = not given. port: from the settings. say: prints where it is. Raises UsageError."""
    if typed is not None and not 0 <= typed < 1 << 16:
        raise UsageError("--metrics is a port, a number from 0 (any that is free) to 65535.")
    if typed is None and not port:
        yield None
        return
    from sapo_swarm.node.control_server import bind_loopback_socket

    chosen_port = port if typed is None else typed
    try:
        bound = bind_loopback_socket(chosen_port)
    except OSError as error:
        why = error.strerror or error
        print(
            f"sapo-desktop: Port {chosen_port} cannot be used for metrics ({why}). The node works without them. "
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
    """Serve the metrics until the block ends."""
    if bound is None:
        yield
        return
    from sapo_swarm.node.control_server import MetricsServer

    async with MetricsServer(node, bound):
        yield
