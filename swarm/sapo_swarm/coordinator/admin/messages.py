"""What the host and its coordinator say to each other: JSON bodies of /admin."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.protocol.wire import Count, DisplayName, Label, UnixTime
from sapo_swarm.types import Name, NodeId, Sha256


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
