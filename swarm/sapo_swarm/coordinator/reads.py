"""What can be read from a coordinator besides rounds: sealed snapshots of the pool, and members' custom tasks."""

from __future__ import annotations

import re
from collections import OrderedDict

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.metrics import CachedValue
from sapo_swarm.coordinator.records import Member
from sapo_swarm.coordinator.requests import Refusal, check_protocol, json_reply
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.protocol.snapshot import SNAPSHOT_GROUPS, SnapshotNews, seal_snapshot
from sapo_swarm.protocol.wire import TaskOffers

# The read path that scales: a sealed snapshot of the pool every few seconds, made when somebody asks for it.
#
# Members are told of the newest one; its bytes never change.

KEPT = 4
"""Newest snapshots that are still served: a node may be a little behind."""


def add_snapshots(app: web.Application, coordinator: Coordinator) -> None:
    """Routes /v1/snapshots/newest and /v1/snapshots/{id}."""
    snapshots = SnapshotCache(coordinator)

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


class SnapshotCache:
    """The newest KEPT of one process."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._newest = CachedValue(self._made, coordinator.settings.snapshot_s, lambda: coordinator.clock())
        self._bodies: OrderedDict[str, bytes] = OrderedDict()

    async def newest(self) -> SnapshotNews:
        """At most settings.snapshot_s old. Raises Refusal if snapshots are off, StoreUnavailable."""
        if not self._coordinator.settings.snapshot_s:
            raise Refusal("not_found", "This coordinator makes no snapshots.")
        return await self._newest()

    async def _made(self) -> SnapshotNews:
        swarm, now = self._coordinator.swarm, self._coordinator.clock()
        groups = await self._coordinator.store.snapshot(now, SNAPSHOT_GROUPS)
        every_s = self._coordinator.settings.snapshot_s
        news, self._bodies[news.id] = seal_snapshot(swarm.swarm, swarm.certificate, swarm.key, groups, now, every_s)
        while len(self._bodies) > KEPT:
            self._bodies.popitem(last=False)
        return news

    def body(self, id: str) -> bytes:
        """Raises Refusal for one that is no longer kept."""
        data = self._bodies.get(id)
        if data is None:
            raise Refusal("not_found", "This snapshot is not kept any more: ask for the newest.")
        return data


# Members fetch the custom tasks that the swarm trains on: signed requests, invite holders only.


def add_tasks(app: web.Application, coordinator: Coordinator) -> None:
    """Routes under /v1/tasks."""
    tasks = _Tasks(coordinator)
    app.router.add_get("/v1/tasks", tasks.offered)
    app.router.add_get("/v1/tasks/{hash}", tasks.content)


class _Tasks:
    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator

    async def offered(self, request: web.Request) -> web.Response:
        """GET /v1/tasks: TaskOffers. Raises Refusal."""
        member = await self._member(request)
        return json_reply(TaskOffers(tasks=tuple(await self.coordinator.offered_to(member))))

    async def content(self, request: web.Request) -> web.Response:
        """GET /v1/tasks/{hash}: the task's canonical bytes in one zstd frame. Raises Refusal."""
        member = await self._member(request)
        digest = request.match_info["hash"]
        offers = await self.coordinator.offered_to(member)
        task = None
        if re.fullmatch(r"[0-9a-f]{64}", digest) and any(offer.hash == digest for offer in offers):
            task = await self.coordinator.store.task(digest)
        if task is None:
            raise Refusal("not_found", "The swarm has no task of this hash (any more): look at what it offers now.")
        self.coordinator.metrics.bytes_out += len(task.packed)
        return web.Response(body=task.packed, content_type="application/zstd")

    async def _member(self, request: web.Request) -> Member:
        check_protocol(request)
        signed, member = await self.coordinator.authenticated(request, b"", self.coordinator.admission.task)
        if not await self.coordinator.store.use_nonce(signed.nonce, self.coordinator.clock()):
            raise Refusal("replayed", "This request was seen before.")
        return member
