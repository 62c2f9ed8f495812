"""What a coordinator stores, as values: the swarm, its invites and members, groups of the pool, one round's exchange."""

from __future__ import annotations

import msgspec

MINUTE = 60


WINDOW_MINUTES = 60
"""Counters are kept by the minute, for an hour."""


ACTIVE_S = 300.0
"""A node counts as present for this long after its last exchange."""


AHEAD_S = 60.0
"""A time further ahead than this comes from a clock that was set back since; it would be past only once the clock has caught
up."""


SAMPLE_BYTES = 200 * 1024
"""Raw groups in one reply: fits the protocol's body limit however badly they compress."""


class SwarmRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A swarm's identity. certificate, key: PEM, empty on plain HTTP. Whoever holds the key can host the swarm."""

    swarm: str
    name: str
    open: bool
    certificate: bytes
    key: bytes
    created: float


class InviteRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A stored invite: only the hash of its token. max_uses 0: unlimited. expires 0: never. used: Unix time of its last use."""

    hash: str
    label: str
    created: float
    expires: float
    max_uses: int
    uses: int = 0
    revoked: bool = False
    used: float = 0.0


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """A node that joined. invite: hash of the invite that admitted it ("" in an open swarm). banned: the reason. waiting: the
    host has not let it in yet. seen: Unix time of its last exchange, accurate to SEEN_EVERY_S."""

    node: str
    key: bytes
    name: str
    model: str
    joined: float
    invite: str
    banned: str = ""
    waiting: bool = False
    seen: float = 0.0

    def idle(self, now: float, idle_s: float) -> bool:
        """It was silent for longer than idle_s (0: that never ends a membership), so it needs an invite again. A ban stays."""
        return bool(idle_s) and not self.banned and now - max(self.joined, self.seen) > idle_s

    def gives_way(self, now: float, idle_s: float, is_open: bool) -> bool:
        """In a full swarm a newcomer may take its place: it is idle or, in an open swarm, came without an invite
        FIRST_EXCHANGE_S ago and never exchanged. (If it is still running, it rejoins by itself.)"""
        silent = now - self.joined > FIRST_EXCHANGE_S and self.seen <= self.joined
        return self.idle(now, idle_s) or (is_open and silent and not self.invite and not self.banned)


FIRST_EXCHANGE_S = 3600.0

SEEN_EVERY_S = 6 * 3600.0
"""Accuracy to which a member's last exchange is stored on disk, after its first one."""


GIVE_WAY, LOOK_EVERY_S = 1000, 60.0
"""In a full swarm about this many members are removed at once; after a search that found fewer, the next one waits this long."""


class PoolEntry(msgspec.Struct, frozen=True):
    """A group in the pool. blob: its SignedGroup as msgpack. content: digest that finds copies. id: 8 bytes. invite: hash of
    the one that admitted its node; in an open swarm a tag of the network that it came from, see rules.origin_tag.
    task: generator of a member's custom task, "" for the app's tasks."""

    id: bytes
    content: str
    node: str
    blob: bytes
    invite: str = ""
    task: str = ""


def is_task_accepted(entry: PoolEntry, accepts: frozenset[str]) -> bool:
    """The group may be given to a node that accepted these custom tasks."""
    return not entry.task or entry.task in accepts


class RoundExchange(msgspec.Struct, frozen=True, kw_only=True):
    """One round of one node. round_id: digest of node and body, so that a repeated upload is stored once. entries: one for
    each group of the upload, None if it was refused.

    counts: what else to add to this minute's counters, such as {"t/bf": 2, "reward_n": 1}. accepts: generators of custom
    tasks whose groups may be sampled.
    """

    node: str
    nonce: str
    round_id: str
    entries: tuple[PoolEntry | None, ...]
    want: int
    have: frozenset[bytes]
    now: float
    counts: dict[str, float]
    accepts: frozenset[str] = frozenset()


class ExchangeOutcome(msgspec.Struct, frozen=True, kw_only=True):
    """stored: for each entry of the exchange, False if it was refused or the pool already has its content; a repeated round
    gets its first verdicts.

    origins: of each group of the sample, the invite (or network) of its source.
    replayed: the nonce was used before; nothing else was done. banned: why the node is; nothing was done. receipts: who drew
    since the last exchange. mine / total: groups accepted in the last hour, of this node and of all. nodes: seen in the last
    ACTIVE_S.
    """

    replayed: bool = False
    banned: str = ""
    stored: tuple[bool, ...] = ()
    sample: tuple[bytes, ...] = ()
    origins: tuple[str, ...] = ()
    uptake: int = 0
    receipts: dict[str, int] = msgspec.field(default_factory=dict)
    mine: int = 0
    total: int = 0
    nodes: int = 0
    pool: int = 0


class NodeStats(msgspec.Struct, frozen=True, kw_only=True):
    """One node in the window: groups accepted, how often others sampled its groups, Unix time last seen."""

    member: Member
    groups: int
    sampled: int
    seen: float


class WindowStats(msgspec.Struct, frozen=True, kw_only=True):
    """The last hour. rows: the nodes with most groups first. total: accepted groups of all. nodes: seen lately.

    minutes: Unix time // 60 -> counters "t/DATASET" accepted groups, "x/REASON" refused groups, "rounds",
    "reward_sum", "reward_n".
    """

    rows: tuple[NodeStats, ...]
    total: int
    nodes: int
    members: int
    pool: int
    minutes: dict[int, dict[str, float]]


def invite_share(want: int) -> int:
    """Most groups in a sample of `want` from nodes that one invite admitted, as long as there are others: whoever brings many
    identities through one invite gets no more than half."""
    return max(1, want // 2)


class PoolLimits(msgspec.Struct, frozen=True, kw_only=True):
    """per_node: live groups of one source; its newest replaces its oldest, so a flooder only displaces itself.

    rounds_kept_s: an upload repeated within it gets its first verdicts. members: a swarm admits no more. idle_s: a member, or
    an invite, that has been silent for longer is no longer valid; 0: that never happens.
    """

    capacity: int = 65_536
    capacity_bytes: int = 256 * 2**20
    per_node: int = 8
    lifetime_s: float = 900.0
    rounds_kept_s: float = 600.0
    nonces_kept_s: float = 600.0
    members: int = 200_000
    idle_s: float = 0.0


SWARM_FULL = "full"


INVITE_OK, INVITE_UNKNOWN, INVITE_EXPIRED, INVITE_USED_UP, INVITE_REVOKED = (
    "",
    "unknown",
    "expired",
    "used_up",
    "revoked",
)
