"""What a coordinator keeps, and the one interface both stores implement.

A store is the only state there is: handlers are stateless, several coordinators may share one Redis. `exchange` is
the hot path: it stores groups once, draws a sample and counts, in one step. All methods raise StoreUnavailable when
the store cannot answer; nothing blocks the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

MINUTE = 60
WINDOW_MINUTES = 60
"""Counters are kept by the minute, for an hour."""
ACTIVE_S = 300.0
"""A node counts as present for so long after its last exchange."""
SAMPLE_BYTES = 200 * 1024
"""Of raw groups in one reply: fits the protocol's body limit however badly it compresses."""


class StoreError(Exception):
    """Base of what a store raises on purpose."""


class StoreUnavailable(StoreError):
    """The store does not answer now; the request may be tried again."""


class StoreFormat(StoreError):
    """The store holds something that this version does not read; the message says what to do."""


class SwarmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A swarm's own identity. certificate, key: PEM, empty on plain HTTP. Whoever holds the key can host the swarm."""

    swarm: str
    name: str
    open: bool
    certificate: bytes
    key: bytes
    created: float


class InviteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """An invite at rest: only the hash of its token. max_uses 0: unlimited. expires 0: never."""

    hash: str
    label: str
    created: float
    expires: float
    max_uses: int
    uses: int = 0
    revoked: bool = False


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node that joined. invite: hash of the invite that admitted it ("" in an open swarm). banned: the reason."""

    node: str
    key: bytes
    name: str
    model: str
    joined: float
    invite: str
    banned: str = ""


class Entry(msgspec.Struct, frozen=True):
    """A group in the pool. blob: its SignedGroup as msgpack. content: digest that finds copies. id: 8 bytes."""

    id: bytes
    content: str
    node: str
    blob: bytes


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one node. round_id: digest of the body, so that a repeated upload is stored once.

    counts: what else to add to this minute's counters, such as {"t/bf": 2, "reward_n": 1}.
    """

    node: str
    nonce: str
    round_id: str
    entries: tuple[Entry, ...]
    want: int
    have: frozenset[bytes]
    now: float
    counts: dict[str, float]


class Exchanged(msgspec.Struct, frozen=True, kw_only=True):
    """stored: for each entry of the exchange, False when the pool has its content already.

    replayed: the nonce was used before; nothing else was done. receipts: who drew since the last exchange.
    mine / total: groups accepted in the last hour, of this node and of all. nodes: seen in the last ACTIVE_S.
    """

    replayed: bool = False
    stored: tuple[bool, ...] = ()
    sample: tuple[bytes, ...] = ()
    uptake: int = 0
    receipts: dict[str, int] = msgspec.field(default_factory=dict)
    mine: int = 0
    total: int = 0
    nodes: int = 0
    pool: int = 0


class StandingRow(msgspec.Struct, frozen=True, kw_only=True):
    """One node in the window: groups accepted, times its groups were drawn by others, Unix time last seen."""

    member: Member
    groups: int
    drawn: int
    seen: float


class Standing(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour. rows: the nodes with most groups first. total: accepted groups of all. nodes: seen lately.

    minutes: Unix time // 60 -> counters "t/DATASET" accepted groups, "x/REASON" refused groups, "rounds",
    "reward_sum", "reward_n".
    """

    rows: tuple[StandingRow, ...]
    total: int
    nodes: int
    members: int
    pool: int
    minutes: dict[int, dict[str, float]]


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """per_node: live groups of one source; its newest replaces its oldest, so a flooder only displaces itself.

    rounds_kept_s: an upload repeated within it meets its first verdicts. members: a swarm admits no more.
    """

    capacity: int = 65_536
    capacity_bytes: int = 256 * 2**20
    per_node: int = 8
    lifetime_s: float = 900.0
    rounds_kept_s: float = 600.0
    nonces_kept_s: float = 600.0
    members: int = 200_000


SWARM_FULL = "full"
INVITE_OK, INVITE_UNKNOWN, INVITE_EXPIRED, INVITE_USED_UP, INVITE_REVOKED = (
    "",
    "unknown",
    "expired",
    "used_up",
    "revoked",
)


def invite_verdict(invite: InviteRecord | None, now: float) -> str:
    """INVITE_OK, or why the invite admits nobody any more."""
    if invite is None:
        return INVITE_UNKNOWN
    if invite.revoked:
        return INVITE_REVOKED
    if invite.expires and now > invite.expires:
        return INVITE_EXPIRED
    return INVITE_USED_UP if invite.max_uses and invite.uses >= invite.max_uses else INVITE_OK


class Store(Protocol):
    """See the module. Every method is atomic; `durable` writes survive a power cut where the store can promise it."""

    async def open(self) -> None: ...
    async def close(self) -> None: ...
    async def ping(self) -> None:
        """Returns when the store answers. Raises StoreUnavailable."""
        ...

    async def swarm(self) -> SwarmRecord | None: ...
    async def found(self, record: SwarmRecord) -> SwarmRecord:
        """Keep the record unless there is one; the one that is kept. Durable."""
        ...

    async def rename(self, record: SwarmRecord) -> None:
        """Replace the swarm's record. Durable."""
        ...

    async def add_invite(self, invite: InviteRecord) -> None: ...
    async def invites(self) -> list[InviteRecord]: ...
    async def revoke_invite(self, hash: str) -> list[str]:
        """Revoke, and ban every node that it admitted ("invite revoked"): their ids. Durable."""
        ...

    async def admit(self, member: Member, now: float) -> str:
        """Enter a member by member.invite ("" only where the swarm is open), using it once.

        INVITE_OK, why the invite does not admit it, or SWARM_FULL.

        A node that is a member already uses nothing up; its name and model are updated, its ban stays. Durable.
        """
        ...

    async def member(self, node: str) -> Member | None: ...
    async def members(self) -> list[Member]: ...
    async def ban(self, node: str, reason: str) -> bool:
        """Ban ("" lifts it) and drop the node's groups. False for an unknown node. Durable."""
        ...

    async def use_nonce(self, nonce: str, now: float) -> bool:
        """True the first time within the lifetime of nonces."""
        ...

    async def exchange(self, exchange: Exchange) -> Exchanged: ...
    async def leave(self, node: str) -> int:
        """Drop the node's groups from the pool: how many. It stays a member."""
        ...

    async def standing(self, now: float, limit: int) -> Standing: ...
    async def restore(self, members: Sequence[Member], invites: Sequence[InviteRecord]) -> None:
        """Enter exported members and invites as they are. Durable."""
        ...
