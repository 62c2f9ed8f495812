"""What a coordinator stores, and the one interface that both stores implement.

A store holds the only state: handlers are stateless, and several coordinators may share one Redis. `exchange` is the hot
path: it stores groups once, samples and counts, in one step. All methods raise StoreUnavailable if the store cannot answer;
nothing blocks the event loop.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sapo_swarm.coordinator.records import (
    INVITE_EXPIRED,
    INVITE_OK,
    INVITE_REVOKED,
    INVITE_UNKNOWN,
    INVITE_USED_UP,
    ExchangeOutcome,
    InviteRecord,
    Member,
    RoundExchange,
    SwarmRecord,
    WindowStats,
)
from sapo_swarm.errors import SwarmError
from sapo_swarm.protocol.wire import TaskOffer, TaskUpload


class StoreError(SwarmError):
    """Base of what a store raises on purpose."""


class StoreUnavailable(StoreError):
    """The store does not answer now; the request may be retried."""


class StoreFormat(StoreError):
    """The store holds something that this version cannot read; the message says what to do."""


def invite_verdict(invite: InviteRecord | None, now: float, idle_s: float = 0.0) -> str:
    """INVITE_OK, or why the invite no longer admits anybody. idle_s: see PoolLimits."""
    if invite is None:
        return INVITE_UNKNOWN
    if invite.revoked:
        return INVITE_REVOKED
    if invite.expires and now > invite.expires:
        return INVITE_EXPIRED
    if idle_s and now - max(invite.created, invite.used) > idle_s:
        return INVITE_EXPIRED
    return INVITE_USED_UP if invite.max_uses and invite.uses >= invite.max_uses else INVITE_OK


class Store(Protocol):
    """See the module. Every method is atomic; durable writes survive a power cut if the store can promise that."""

    async def open(self) -> None:
        """Connect and read what is needed. Raises StoreUnavailable, StoreFormat."""
        ...

    async def close(self) -> None:
        """Write what is pending and release the store."""
        ...

    async def ping(self) -> None:
        """Returns once the store accepts a write. Raises StoreUnavailable."""
        ...

    async def swarm(self) -> SwarmRecord | None:
        """The swarm's record, None before found()."""
        ...

    async def found(self, record: SwarmRecord) -> SwarmRecord:
        """Store the record unless there is one; returns the stored one. Durable."""
        ...

    async def rename(self, record: SwarmRecord) -> None:
        """Replace the swarm's record. Durable."""
        ...

    async def add_invite(self, invite: InviteRecord) -> None:
        """Store a new invite. Durable."""
        ...

    async def invites(self) -> list[InviteRecord]:
        """All invites, oldest first."""
        ...

    async def revoke_invite(self, hash: str) -> list[str]:
        """Revoke, and ban every node that it admitted ("invite revoked"); returns their ids. Durable."""
        ...

    async def admit(self, member: Member, now: float) -> str:
        """Admit a member by member.invite ("" only if the swarm is open), using it once.

        Returns INVITE_OK, why the invite does not admit it, or SWARM_FULL. If the swarm is full, members for which
        Member.gives_way() holds are removed. A node that is already a member uses nothing up, unless it came without an
        invite and has a valid one now; its name and model are updated, its ban stays. One that was silent for longer than
        limits.idle_s is no longer a member. Durable.
        """
        ...

    async def member(self, node: str) -> Member | None:
        """A member by its node id."""
        ...

    async def members(self) -> list[Member]:
        """Every member, banned ones too."""
        ...

    async def ban(self, node: str, reason: str) -> bool:
        """Ban ("" lifts it) and drop the node's groups. False for an unknown node. Durable."""
        ...

    async def approve(self, node: str) -> bool:
        """Let a waiting member in. False for an unknown node. Durable."""
        ...

    async def put_task(self, task: TaskUpload) -> None:
        """Store a member's custom task, replacing its earlier version. Durable."""
        ...

    async def drop_task(self, name: str) -> bool:
        """Forget a task. False if there is none of this name. Durable."""
        ...

    async def tasks(self) -> list[TaskOffer]:
        """The members' custom tasks, by name; at most wire.MAX_TASKS were stored."""
        ...

    async def task(self, hash: str) -> TaskUpload | None:
        """The content of the task in force with this hash."""
        ...

    async def use_nonce(self, nonce: str, now: float) -> bool:
        """True the first time within the lifetime of nonces."""
        ...

    async def exchange(self, exchange: RoundExchange) -> ExchangeOutcome:
        """Store an upload once, sample for its sender, count both; nothing for a banned node, whenever its upload began."""
        ...

    async def snapshot(self, now: float, want: int) -> tuple[bytes, ...]:
        """A sample for everybody, at most one group per source, within a reply's bytes. It counts as nobody's uptake."""
        ...

    async def leave(self, node: str) -> int:
        """Drop the node's groups from the pool; returns how many. It stays a member."""
        ...

    async def stats(self, now: float, limit: int) -> WindowStats:
        """The last hour, with at most `limit` nodes."""
        ...

    async def restore(self, members: Sequence[Member], invites: Sequence[InviteRecord]) -> None:
        """Enter exported members and invites as they are. Durable."""
        ...
