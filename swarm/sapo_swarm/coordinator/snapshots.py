"""The read path that scales: a sealed snapshot of the pool every so many seconds, made when somebody asks for it.

Members are told of the newest one; its bytes never change.
"""

from __future__ import annotations

from collections import OrderedDict

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.http.cached import Cached
from sapo_swarm.coordinator.http.problems import Refusal
from sapo_swarm.coordinator.http.requests import check_protocol
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.protocol.snapshot import SNAPSHOT_GROUPS, SnapshotNews, seal

KEPT = 4
"""Newest snapshots that are still handed out: a node may be a little behind."""


def add_snapshots(app: web.Application, coordinator: Coordinator) -> None:
    """Routes /v1/snapshots/newest and /v1/snapshots/{id}."""
    snapshots = Snapshots(coordinator)

    async def get_newest(request: web.Request) -> web.Response:
        """GET /v1/snapshots/newest: SnapshotNews, for members. Raises Refusal."""
        check_protocol(request)
        await coordinator.authenticated(request, b"")
        news = await snapshots.newest()
        return web.Response(body=msgspec.json.encode(news), content_type="application/json")

    async def get_snapshot(request: web.Request) -> web.Response:
        """GET /v1/snapshots/{id}: bytes that are the same for ever. Raises Refusal."""
        data = snapshots.body(request.match_info["id"])
        coordinator.metrics.bytes_out += len(data)
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return web.Response(body=data, content_type="application/octet-stream", headers=headers)

    app.router.add_get("/v1/snapshots/newest", get_newest)
    app.router.add_get("/v1/snapshots/{id}", get_snapshot)


class Snapshots:
    """The newest KEPT of one process."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._newest = Cached(self._made, coordinator.settings.snapshot_s, lambda: coordinator.clock())
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    async def newest(self) -> SnapshotNews:
        """At most settings.snapshot_s old. Raises Refusal where there are none, StoreUnavailable."""
        if not self._coordinator.settings.snapshot_s:
            raise Refusal("not_found", "This coordinator makes no snapshots.")
        return await self._newest()

    async def _made(self) -> SnapshotNews:
        swarm, now = self._coordinator.swarm, self._coordinator.clock()
        groups = await self._coordinator.store.snapshot(now, SNAPSHOT_GROUPS)
        every_s = self._coordinator.settings.snapshot_s
        news, self._bodies[news.id] = seal(swarm.swarm, swarm.certificate, swarm.key, groups, now, every_s)
        while len(self._bodies) > KEPT:
            self._bodies.popitem(last=False)
        return news

    def body(self, id: str) -> bytes:
        """Raises Refusal for one that is not kept."""
        data = self._bodies.get(id)
        if data is None:
            raise Refusal("not_found", "This snapshot is not kept any more: ask for the newest.")
        return data
