"""What machines ask a coordinator about itself: whether it lives, whether it can work, its counters."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from sapo_swarm.coordinator.domain.records import WindowStats
from sapo_swarm.coordinator.http.admission import Admission
from sapo_swarm.coordinator.http.metrics import Metrics
from sapo_swarm.coordinator.store.base import Store, StoreUnavailable

READY_S = 10.0
"""A store that takes longer is not ready."""


def add_probes(
    app: web.Application,
    store: Store,
    metrics: Metrics,
    admission: Admission,
    stats: Callable[[], Awaitable[WindowStats]],
) -> None:
    """Routes /healthz, /readyz and /metrics."""

    async def get_healthz(_request: web.Request) -> web.Response:
        """200 while the process serves."""
        return web.Response(text="ok\n")

    async def get_readyz(_request: web.Request) -> web.Response:
        """200 while the store can be written. Raises StoreUnavailable."""
        try:
            async with asyncio.timeout(READY_S):
                await store.ping()
        except TimeoutError as error:
            raise StoreUnavailable(f"The store did not answer within {READY_S:g} s.") from error
        return web.Response(text="ready\n")

    async def get_metrics(request: web.Request) -> web.Response:
        """Prometheus text, for the host itself. Raises Refusal."""
        admission.host_only(request)
        found = await stats()
        return web.Response(text=metrics.text(found.pool, found.nodes))

    app.router.add_get("/healthz", get_healthz)
    app.router.add_get("/readyz", get_readyz)
    app.router.add_get("/metrics", get_metrics)
