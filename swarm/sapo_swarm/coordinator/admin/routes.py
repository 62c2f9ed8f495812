"""What the host may do while the coordinator runs: invites, bans, export, stop. Loopback and the admin key only."""

from __future__ import annotations

import asyncio
import hmac

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.admin.invites import new_invite
from sapo_swarm.coordinator.admin.messages import (
    Approve,
    Ban,
    DropTask,
    InviteView,
    NewInvite,
    Removed,
    Revoke,
    Waiting,
)
from sapo_swarm.coordinator.admin.transfer import export_swarm
from sapo_swarm.coordinator.domain.records import InviteRecord
from sapo_swarm.coordinator.http.problems import Refusal
from sapo_swarm.coordinator.http.requests import json_reply, read_body
from sapo_swarm.coordinator.server import MAX_JSON, Coordinator, Handler
from sapo_swarm.coordinator.store.base import invite_verdict
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.task_offer import MAX_PACKED, MAX_TASKS, TaskOffers, TaskUpload, unpack_task
from sapo_swarm.protocol.wire import WireError, unpack, unpack_json
from sapo_swarm.tasks.own.errors import BadTask


def add_admin(app: web.Application, coordinator: Coordinator, key: str) -> None:
    """Routes under /admin; every request is from the host itself and carries `Authorization: Bearer KEY`."""
    admin = _Admin(coordinator)

    def guarded(handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            coordinator.admission.host_only(request)
            given = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(given.encode("utf-8", "replace"), key.encode()):
                raise Refusal("bad_admin_key", "The admin key of this coordinator lies in its admin file.")
            try:
                return await handler(request)
            except WireError as error:
                raise Refusal(error.code, str(error)) from error

        return checked

    app.router.add_get("/admin/invites", guarded(admin.list_invites))
    app.router.add_post("/admin/invites", guarded(admin.create_invite))
    app.router.add_post("/admin/revoke", guarded(admin.revoke))
    app.router.add_post("/admin/ban", guarded(admin.ban))
    app.router.add_get("/admin/waiting", guarded(admin.waiting))
    app.router.add_post("/admin/approve", guarded(admin.approve))
    app.router.add_get("/admin/export", guarded(admin.export))
    app.router.add_post("/admin/stop", guarded(admin.stop))
    app.router.add_post("/admin/tasks", guarded(admin.share))
    app.router.add_post("/admin/untask", guarded(admin.unshare))


class _Admin:
    def __init__(self, coordinator: Coordinator) -> None:
        self.coordinator = coordinator
        self.store = coordinator.store

    async def list_invites(self, _request: web.Request) -> web.Response:
        views = [self._view(invite) for invite in await self.store.invites()]
        return web.Response(body=msgspec.json.encode(views), content_type="application/json")

    async def create_invite(self, request: web.Request) -> web.Response:
        body = unpack_json(await self._body(request), NewInvite)
        record, token = await new_invite(self.store, body.label, body.hours, body.uses)
        return web.Response(body=msgspec.json.encode(self._view(record, token)), content_type="application/json")

    async def revoke(self, request: web.Request) -> web.Response:
        body = unpack_json(await self._body(request), Revoke)
        return _removed(await self.store.revoke_invite(body.hash))

    async def ban(self, request: web.Request) -> web.Response:
        body = unpack_json(await self._body(request), Ban)
        member = await self.store.member(body.node)
        if member is None or not await self.store.ban(body.node, body.reason):
            raise Refusal("not_found", "No member has this id.")
        if body.reason and body.with_invite and member.invite:
            return _removed(sorted({body.node, *await self.store.revoke_invite(member.invite)}))
        return _removed([body.node] if body.reason else [])

    async def waiting(self, _request: web.Request) -> web.Response:
        rows = [
            Waiting(node=m.node, name=m.name, model=m.model, joined=m.joined)
            for m in await self.store.members()
            if m.waiting and not m.banned
        ]
        return web.Response(body=msgspec.json.encode(rows), content_type="application/json")

    async def approve(self, request: web.Request) -> web.Response:
        body = unpack_json(await self._body(request), Approve)
        nodes = [m.node for m in await self.store.members() if m.waiting and body.node in ("", m.node)]
        if body.node and not nodes:
            raise Refusal("not_found", "No node of this id waits.")
        for node in nodes:
            await self.store.approve(node)
        return _removed(nodes)

    async def share(self, request: web.Request) -> web.Response:
        """Take a task in, in the place of its earlier version. What members could not read is refused here."""
        swarm, store = self.coordinator.swarm, self.store
        if swarm.open:
            raise Refusal(
                "open_swarm", "Anyone may join this swarm, so nothing private is shared in it. Host one by invite."
            )
        body = await read_body(request, self.coordinator.settings.body_s, MAX_PACKED + MAX_JSON)
        task = unpack(body, TaskUpload)
        offers = await store.tasks()
        if len(offers) >= MAX_TASKS and task.offer.name not in {offer.name for offer in offers}:
            raise Refusal("malformed", f"A swarm has up to {MAX_TASKS} tasks of members' own. Take one out first.")
        try:
            await asyncio.to_thread(unpack_task, task.offer, task.packed)
        except BadTask as error:
            raise Refusal("malformed", safe_text(str(error), 500, lines=False)) from error
        await store.put_task(task)
        self.coordinator.own_tasks.forget()
        return json_reply(TaskOffers(tasks=tuple(await store.tasks())))

    async def unshare(self, request: web.Request) -> web.Response:
        body = unpack_json(await self._body(request), DropTask)
        if not await self.store.drop_task(body.name):
            raise Refusal("not_found", "The swarm has no task of this name.")
        self.coordinator.own_tasks.forget()
        return json_reply(TaskOffers(tasks=tuple(await self.store.tasks())))

    async def export(self, _request: web.Request) -> web.Response:
        body = await export_swarm(self.store)
        return web.Response(body=body, content_type="application/octet-stream")

    async def stop(self, _request: web.Request) -> web.Response:
        self.coordinator.ending.set()
        return _removed([])

    def _view(self, invite: InviteRecord, token: str = "") -> InviteView:
        verdict = invite_verdict(invite, self.coordinator.clock(), self.coordinator.settings.idle_days * 86_400.0)
        fields = {name: getattr(invite, name) for name in ("hash", "label", "expires", "max_uses", "uses", "revoked")}
        return InviteView(verdict=verdict, token=token, **fields)

    async def _body(self, request: web.Request) -> bytes:
        return await read_body(request, self.coordinator.settings.body_s, MAX_JSON)


def _removed(nodes: list[str]) -> web.Response:
    return web.Response(body=msgspec.json.encode(Removed(nodes=tuple(nodes))), content_type="application/json")
