"""What only the host may do while the coordinator runs: invites, bans, moving the swarm, stop. Requires loopback and the
admin key."""

from __future__ import annotations

import asyncio
import hmac
import time

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.admin_client import Approve, Ban, DropTask, InviteView, NewInvite, Removed, Revoke, Waiting
from sapo_swarm.coordinator.records import InviteRecord, Member, SwarmRecord
from sapo_swarm.coordinator.requests import Refusal, json_reply, read_body
from sapo_swarm.coordinator.server import MAX_JSON, Coordinator, Handler
from sapo_swarm.coordinator.store.base import Store, StoreFormat, invite_verdict
from sapo_swarm.protocol.invite import new_token, token_hash
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import (
    MAX_PACKED,
    MAX_TASKS,
    TaskOffers,
    TaskUpload,
    WireError,
    unpack_json,
    unpack_msgpack,
    unpack_task,
)
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import UNREADABLE

# Creating invites: the token leaves this process once, its hash stays in the store.


async def new_invite(store: Store, label: str, hours: float, uses: int) -> tuple[InviteRecord, str]:
    """The stored record and the token, of which only the hash is stored. hours, uses: 0 = unlimited."""
    token, now = new_token(), time.time()
    expires = now + hours * 3600 if hours else 0.0
    record = InviteRecord(hash=token_hash(token), label=label, created=now, expires=expires, max_uses=uses)
    await store.add_invite(record)
    return record, token


# Moving a swarm to another host: its identity, key, members and invites in one file.
#
# Whoever imports it answers under the same fingerprint, so members' invites stay valid once the address points there.
# The file holds the swarm's private key: guard it like a password. The pool is not in it; it refills within a round.

FORMAT = "sapo-swarm-export"


class SwarmExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The file's content. version: of this format. tasks: members' custom tasks (left out if there are none: earlier versions
    do not know the field)."""

    format: str
    version: int
    swarm: SwarmRecord
    members: tuple[Member, ...]
    invites: tuple[InviteRecord, ...]
    tasks: tuple[TaskUpload, ...] = ()


async def export_swarm(store: Store) -> bytes:
    """The swarm as one file. Raises StoreFormat if the store holds none."""
    swarm = await store.swarm()
    if swarm is None:
        raise StoreFormat("There is no swarm in this store yet.")
    members, invites = await store.members(), await store.invites()
    tasks = [await store.task(offer.hash) for offer in await store.tasks()]
    export = SwarmExport(
        format=FORMAT,
        version=1,
        swarm=swarm,
        members=tuple(members),
        invites=tuple(invites),
        tasks=tuple(task for task in tasks if task is not None),
    )
    return msgspec.msgpack.encode(export)


async def import_swarm(store: Store, data: bytes) -> SwarmRecord:
    """Load an export into an empty store: the swarm's record last, so that a half-finished import can be repeated.

    Raises StoreFormat if the store holds a swarm or the file is something else, StoreUnavailable.
    """
    try:
        export = msgspec.msgpack.decode(data, type=SwarmExport)
    except UNREADABLE as error:
        raise StoreFormat(f"The file is not an exported swarm: {str(error)[:200]}") from error
    if export.format != FORMAT or export.version != 1:
        raise StoreFormat("The file was exported by another version: use that version to import it.")
    if await store.swarm() is not None:
        raise StoreFormat("This store holds a swarm already: import into a new one.")
    if {member.node for member in await store.members()} - {member.node for member in export.members}:
        raise StoreFormat(
            "This store holds a part of another swarm, whose import failed half way: import into a new one."
        )
    await store.restore(export.members, export.invites)
    for task in export.tasks:
        await store.put_task(task)
    return await store.found(export.swarm)


# What the host may do while the coordinator runs: invites, bans, export, stop. Requires loopback and the admin key.


def add_admin(app: web.Application, coordinator: Coordinator, key: str) -> None:
    """Routes under /admin; every request must come from the host itself and carry `Authorization: Bearer KEY`."""
    admin = _Admin(coordinator)

    def guarded(handler: Handler) -> Handler:
        async def checked(request: web.Request) -> web.StreamResponse:
            coordinator.admission.host_only(request)
            token = request.headers.get("Authorization", "").removeprefix("Bearer ")
            if not hmac.compare_digest(token.encode("utf-8", "replace"), key.encode()):
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
        """Take in a task, replacing its earlier version. A task that members could not read is refused."""
        swarm, store = self.coordinator.swarm, self.store
        if swarm.open:
            raise Refusal(
                "open_swarm", "Anyone may join this swarm, so nothing private is shared in it. Host one by invite."
            )
        body = await read_body(request, self.coordinator.settings.body_s, MAX_PACKED + MAX_JSON)
        task = unpack_msgpack(body, TaskUpload)
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
