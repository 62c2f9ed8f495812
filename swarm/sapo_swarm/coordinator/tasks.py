"""Members fetch the tasks of their own that the swarm trains on: signed requests, invite holders only."""

from __future__ import annotations

import re

from aiohttp import web

from sapo_swarm.coordinator.domain.records import Member
from sapo_swarm.coordinator.http.problems import Refusal
from sapo_swarm.coordinator.http.requests import check_protocol, json_reply
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.protocol.task_offer import TaskOffers


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
        wanted = request.match_info["hash"]
        offers = await self.coordinator.offered_to(member)
        found = None
        if re.fullmatch(r"[0-9a-f]{64}", wanted) and any(offer.hash == wanted for offer in offers):
            found = await self.coordinator.store.task(wanted)
        if found is None:
            raise Refusal("not_found", "The swarm has no task of this hash (any more): look at what it offers now.")
        self.coordinator.metrics.bytes_out += len(found.packed)
        return web.Response(body=found.packed, content_type="application/zstd")

    async def _member(self, request: web.Request) -> Member:
        check_protocol(request)
        signed, member = await self.coordinator.authenticated(request, b"", self.coordinator.admission.task)
        if not await self.coordinator.store.use_nonce(signed.nonce, self.coordinator.clock()):
            raise Refusal("replayed", "This request was seen before.")
        return member
