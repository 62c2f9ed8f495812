"""What the host and its coordinator say to each other: JSON bodies of /admin."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.protocol.wire import Count, UnixTime
from sapo_swarm.types import NodeId, Sha256


class NewInvite(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """label: what the host calls it. hours, uses: 0 = unlimited."""

    label: Annotated[str, Meta(max_length=80)] = ""
    hours: Annotated[float, Meta(ge=0, le=87_600)] = 168.0
    uses: Annotated[int, Meta(ge=0, le=2**31)] = 0


class InviteView(msgspec.Struct, frozen=True, kw_only=True):
    """token: only in the answer that made it. hash: names it afterwards."""

    hash: Sha256
    label: Annotated[str, Meta(max_length=80)]
    expires: UnixTime
    max_uses: Count
    uses: Count
    revoked: bool
    token: Annotated[str, Meta(max_length=64)] = ""


class Ban(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """reason "" lifts the ban."""

    node: NodeId
    reason: Annotated[str, Meta(max_length=200)] = "banned by the host"


class Revoke(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """hash: of the invite's token, as InviteView names it."""

    hash: Sha256


class Removed(msgspec.Struct, frozen=True, kw_only=True):
    """Nodes that are out now."""

    nodes: Annotated[tuple[NodeId, ...], Meta(max_length=1_000_000)]
