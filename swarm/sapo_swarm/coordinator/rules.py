"""The coordinator's judgement of groups and requests as pure functions: what is taken, how often, and what was seen recently."""

from __future__ import annotations

import hashlib
import ipaddress
import random
from collections import OrderedDict
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec

from sapo_swarm.coordinator.records import AHEAD_S
from sapo_swarm.protocol.identity import group_text, verify_signature
from sapo_swarm.protocol.wire import GroupBody, SignedGroup, WireError, content_digest, unpack_msgpack
from sapo_swarm.tasks.catalogue import is_train
from sapo_swarm.tasks.own.library import PRESET, is_own_ref
from sapo_swarm.types import MAX_COMPLETION_BYTES, TaskRef

# The coordinator's judgement of a group, as a pure function: everything it may know is passed in.
#
# The coordinator checks form, authorship and coordinates. It never regenerates a question and never scores: whether a
# text is any good is for each receiver to judge.


@dataclass(frozen=True, slots=True)
class SwarmRules:
    """What a swarm accepts. own: (name, generator) of members' custom tasks. Ages in seconds."""

    swarm: str
    tasks: frozenset[str]
    presets: frozenset[str]
    generator: str
    max_age_s: float
    max_future_s: float
    own: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class GroupVerdict:
    """body is None when the group is refused for `reason`. content: digest of coordinates and texts."""

    reason: str
    body: GroupBody | None = None
    content: str = ""


def judge_group(
    group: SignedGroup, uploader: str, key: bytes, rules: SwarmRules, now: float, check_signature: bool = True
) -> GroupVerdict:
    """The first reason to refuse the group, or its decoded body. Cheap checks come first.

    uploader, key: the member that signed the request, which covers the group too.
    """
    try:
        body = unpack_msgpack(group.body, GroupBody)
    except WireError:
        return GroupVerdict("schema")
    if body.node != uploader or group.key != key:
        return GroupVerdict("author")
    reason = _coordinates(body, rules) or _age(body, rules, now)
    if reason:
        return GroupVerdict(reason)
    if any(len(c.text) * 4 > MAX_COMPLETION_BYTES and _size(c.text) > MAX_COMPLETION_BYTES for c in body.completions):
        return GroupVerdict("too_long")
    if check_signature and not verify_signature(key, group.signature, group_text(rules.swarm, group.body)):
        return GroupVerdict("signature")
    return GroupVerdict("", body, content_digest(body))


class _Coordinates(msgspec.Struct, frozen=True):
    """The part of a GroupBody that says which question it answers; the texts are skipped."""

    ref: TaskRef


def task_of(blob: bytes) -> str:
    """PoolEntry.task of a packed SignedGroup that was judged before; "" if it cannot be read."""
    try:
        return own_generator(unpack_msgpack(unpack_msgpack(blob, SignedGroup).body, _Coordinates).ref)
    except WireError:
        return ""


def own_generator(ref: TaskRef) -> str:
    """The generator of a member's custom task, "" for the app's tasks."""
    return ref.generator if is_own_ref(ref) else ""


def _size(text: str) -> int:
    return len(text.encode())


def _coordinates(body: GroupBody, rules: SwarmRules) -> str:
    ref = body.ref
    if ref.generator == rules.generator:
        allowed = ref.dataset in rules.tasks and ref.preset in rules.presets
    else:
        allowed = (ref.dataset, ref.generator) in rules.own and ref.preset == PRESET
    if not allowed:
        return "task"
    return "" if is_train(ref) else "seed"


def _age(body: GroupBody, rules: SwarmRules, now: float) -> str:
    age = now - body.ts / 1000
    if age > rules.max_age_s:
        return "stale"
    return "future" if age < -rules.max_future_s else ""


# Rate limits as pure bookkeeping: the clock and the randomness are passed in.

UNKNOWN = "unknown"
"""The network of peers whose address is unknown."""


def prefix_of(address: str, ipv6_bits: int = 64) -> str:
    """The /24 of an IPv4 address or the /64 of an IPv6 one; "" for loopback and for no address at all.

    Anything that is not an address (a proxy's "unknown", one with its port) counts as one network: nobody escapes a limit
    that way.
    """
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return UNKNOWN if address else ""
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    ip = mapped or ip
    if ip.is_loopback:
        return ""
    bits = 24 if ip.version == 4 else ipv6_bits
    return str(ipaddress.ip_network(f"{ip}/{bits}", strict=False))


ORIGIN_IPV6_BITS = 48
"""Of the networks that nodes of an open swarm are told apart by: a home or a server is given many /64."""


def origin_tag(key: bytes, origin: str) -> str:
    """Stands for an invite or a network where nodes see it: the same for the same one, and without the key no way back. "" stays
    ""."""
    return hashlib.blake2b(origin.encode(), key=key[:64], digest_size=8).hexdigest() if origin else ""


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class TokenBuckets:
    """Token buckets by key, bounded in number: the longest unused one is forgotten first.

    rate: tokens per second. burst: tokens of a full bucket.
    """

    def __init__(self, rate: float, burst: float, size: int = 100_000) -> None:
        self.rate = rate
        self.burst = burst
        self.size = size
        self._buckets: OrderedDict[str, _Bucket] = OrderedDict()

    def take(self, key: str, now: float) -> float:
        """0.0 when a token was taken, else the seconds until there is one."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._buckets[key] = _Bucket(self.burst, now)
            if len(self._buckets) > self.size:
                self._buckets.popitem(last=False)
        else:
            self._buckets.move_to_end(key)
            bucket.tokens = min(self.burst, bucket.tokens + max(0.0, now - bucket.at) * self.rate)
            bucket.at = now
        if bucket.tokens >= 1.0 - 1e-9:
            bucket.tokens -= 1.0
            return 0.0
        return (1.0 - bucket.tokens) / self.rate


def add_jitter(seconds: float, rng: random.Random) -> float:
    """Between 1 and 1.5 times the wait, so that refused clients do not come back together."""
    return seconds * (1.0 + 0.5 * rng.random())


def next_in_s(nodes: int, target_rounds_per_s: float, floor_s: float, rng: random.Random) -> float:
    """Seconds until a node should come again: its share of the rate that this coordinator is willing to serve, jittered."""
    jitter = 0.2 * rng.random()
    return min(3600.0, max(floor_s * (1.0 + jitter), nodes / target_rounds_per_s * (0.9 + jitter)))


# Things seen recently, in two generations: an entry lives one to three lifetimes, forgetting costs nothing.

V = TypeVar("V")


class RecentKeys(Generic[V]):
    """Keys with a value, at a hundred bytes per key, where a dictionary in order of age takes three times that."""

    def __init__(self, lifetime_s: float) -> None:
        self.lifetime_s = lifetime_s
        self._turned = 0.0
        self._new: dict[bytes, V] = {}
        self._old: dict[bytes, V] = {}
        self._ahead: dict[bytes, V] = {}
        self._caught_up = 0.0

    def __len__(self) -> int:
        return len(self._new) + len(self._old) + len(self._ahead)

    def get(self, key: bytes) -> V | None:
        """The key's value, or None."""
        return next((generation[key] for generation in (self._new, self._old, self._ahead) if key in generation), None)

    def put(self, key: bytes, value: V, now: float) -> None:
        """now: any clock. If it is set back, earlier entries are kept until their time is past again: a request dated ahead
        becomes valid again then."""
        if now < self._turned - AHEAD_S:
            self._ahead |= self._old | self._new
            self._caught_up = max(self._caught_up, self._turned + 2 * self.lifetime_s)
            self._old, self._new, self._turned = {}, {}, now
        if now - self._turned > self.lifetime_s:
            gone = now - self._turned > 2 * self.lifetime_s
            self._old = {} if gone else self._new
            self._new, self._turned = {}, now
            if now > self._caught_up:
                self._ahead = {}
        self._new[key] = value

    def drop(self, key: bytes) -> None:
        """Forget the key, if it is there."""
        self._new.pop(key, None)
        self._old.pop(key, None)
        self._ahead.pop(key, None)
