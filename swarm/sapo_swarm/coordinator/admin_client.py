"""The host's own line to a running coordinator: the messages of /admin, and the client that the CLI and the dashboard use."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Annotated, TypeVar

import aiohttp
import msgspec
from msgspec import Meta

from sapo_swarm.protocol.client import (
    TIMEOUT_S,
    CoordinatorError,
    Unreachable,
    open_session,
    parse_reply,
    require_success,
)
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.wire import Count, DisplayName, Label, TaskUpload, UnixTime
from sapo_swarm.types import UNREADABLE, Name, NodeId, Sha256
from sapo_swarm.whole_file import write_atomically

# What the host and its coordinator say to each other: JSON bodies of /admin.


class NewInvite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """label: what the host calls it. hours, uses: 0 = unlimited."""

    label: Annotated[str, Meta(max_length=80)] = ""
    hours: Annotated[float, Meta(ge=0, le=87_600)] = 168.0
    uses: Annotated[int, Meta(ge=0, le=2**31)] = 10


class InviteView(msgspec.Struct, frozen=True, kw_only=True):
    """token: only in the answer that made it. hash: names it afterwards. verdict: why it admits nobody any more, or ""."""

    hash: Sha256
    label: Annotated[str, Meta(max_length=80)]
    expires: UnixTime
    max_uses: Count
    uses: Count
    revoked: bool
    verdict: Annotated[str, Meta(max_length=40)] = ""
    token: Annotated[str, Meta(max_length=64)] = ""


class Ban(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """reason "" lifts the ban. with_invite: revoke the invite that admitted the node, with everybody it let in."""

    node: NodeId
    reason: Annotated[str, Meta(max_length=200)] = "banned by the host"
    with_invite: bool = False


class Approve(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """node "": everybody who waits."""

    node: Annotated[str, Meta(pattern=r"^([a-z2-7]{26})?\Z")] = ""


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A node that the host has not let in yet. name, model: peer text, show through safe_text. joined: Unix time."""

    node: NodeId
    name: DisplayName
    model: Label
    joined: UnixTime


class Revoke(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """hash: of the invite's token, as InviteView names it."""

    hash: Sha256


class DropTask(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The swarm trains on this task no more."""

    name: Name


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are out now."""

    nodes: Annotated[tuple[NodeId, ...], Meta(max_length=1_000_000)]


# The host's connection to a running coordinator: invites, bans, export, stop. Used by the CLI and the dashboard.
#
# The coordinator leaves its address and admin key in a file that only its owner can read; whoever can read it is the
# host.

T = TypeVar("T")


class AdminAccess(msgspec.Struct, frozen=True, kw_only=True):
    """url: on loopback if the coordinator listens there. fingerprint: "" for plain HTTP. addresses: where members reach the
    host. store: digest of the store's address."""

    key: str
    url: str = ""
    fingerprint: str = ""
    swarm: str = ""
    port: int = 0
    addresses: tuple[str, ...] = ()
    store: str = ""


def read_access(path: Path) -> AdminAccess:
    """Raises CoordinatorError with a sentence if no coordinator was started there."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=AdminAccess)
    except (OSError, *UNREADABLE) as error:
        raise CoordinatorError(
            f"{path} tells of no coordinator: start one first (sapo-desktop coordinator)."
        ) from error


def write_access(path: Path, access: AdminAccess) -> None:
    """Written atomically with mode 0600."""
    write_atomically(path, msgspec.json.encode(access), private=True)


class AdminClient:
    """Use as `async with AdminClient(read_access(path)) as host`. Every method raises Unreachable, Refused."""

    def __init__(self, access: AdminAccess) -> None:
        self.access = access
        self._session: aiohttp.ClientSession | None = None

    async def __aenter__(self) -> AdminClient:
        key = {"Authorization": f"Bearer {self.access.key}"}
        self._session = open_session(self.access.fingerprint, TIMEOUT_S, key, self.access.url)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._session is not None:
            await self._session.close()

    async def new_invite(self, label: str = "", hours: float = 168.0, uses: int = 10) -> list[Invite]:
        """The same new invite at every address of the host."""
        body = NewInvite(label=label, hours=hours, uses=uses)
        view = parse_reply(await self._call("POST", "/admin/invites", body), InviteView)
        access = self.access
        return [
            Invite(address, access.port, access.swarm, access.fingerprint, view.token) for address in access.addresses
        ]

    async def invites(self) -> list[InviteView]:
        """Every invite of the swarm, oldest first."""
        return parse_reply(await self._call("GET", "/admin/invites"), list[InviteView])

    async def revoke(self, hash: str) -> tuple[str, ...]:
        """Revoke an invite; returns the nodes that are out with it."""
        return parse_reply(await self._call("POST", "/admin/revoke", Revoke(hash=hash)), Removed).nodes

    async def ban(self, node: str, reason: str = "banned by the host", with_invite: bool = False) -> tuple[str, ...]:
        """Ban a node; returns the nodes that are out. reason "" lifts the ban. with_invite: also everybody whom the node's
        invite let in."""
        body = Ban(node=node, reason=reason, with_invite=with_invite)
        return parse_reply(await self._call("POST", "/admin/ban", body), Removed).nodes

    async def waiting(self) -> list[Waiting]:
        """Nodes waiting for the host's approval."""
        return parse_reply(await self._call("GET", "/admin/waiting"), list[Waiting])

    async def approve(self, node: str = "") -> tuple[str, ...]:
        """Let a node in ("": all that wait); returns the nodes that are in now."""
        return parse_reply(await self._call("POST", "/admin/approve", Approve(node=node)), Removed).nodes

    async def share(self, task: TaskUpload) -> None:
        """Add the host's own task to the swarm, replacing its earlier version."""
        await self._call("POST", "/admin/tasks", msgspec.msgpack.encode(task))

    async def unshare(self, name: str) -> None:
        """Take a task out of the swarm."""
        await self._call("POST", "/admin/untask", DropTask(name=name))

    async def export(self) -> bytes:
        """The swarm with its private key: see admin.import_swarm."""
        return await self._call("GET", "/admin/export")

    async def stop(self) -> None:
        """Have it finish its requests, close its store and exit."""
        await self._call("POST", "/admin/stop")

    async def _call(self, method: str, path: str, body: msgspec.Struct | bytes | None = None) -> bytes:
        if self._session is None:
            raise Unreachable("The client is closed.")
        data = msgspec.json.encode(body) if isinstance(body, msgspec.Struct) else body
        try:
            async with self._session.request(method, path, data=data) as response:
                content = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"No coordinator answers at {self.access.url}. Is it running?") from error
        return require_success(response.status, content)
