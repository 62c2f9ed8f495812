"""Rate limits as pure bookkeeping: the clock and the randomness are passed in."""

from __future__ import annotations

import ipaddress
import random
from collections import OrderedDict
from dataclasses import dataclass

UNKNOWN = "unknown"
"""The network of those whose address cannot be told."""


def prefix_of(address: str) -> str:
    """The /24 of an IPv4 address or the /64 of an IPv6 one; "" for loopback and for no address at all.

    What is no address (a proxy's "unknown", one with its port) is one network: nobody escapes a limit by it.
    """
    try:
        ip = ipaddress.ip_address(address.split("%")[0])
    except ValueError:
        return UNKNOWN if address else ""
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    ip = mapped or ip
    if ip.is_loopback:
        return ""
    bits = 24 if ip.version == 4 else 64
    return str(ipaddress.ip_network(f"{ip}/{bits}", strict=False))


@dataclass(slots=True)
class _Bucket:
    tokens: float
    at: float


class Buckets:
    """Token buckets by key, bounded in number: the longest unused one is forgotten first.

    rate: tokens a second. burst: tokens of a full bucket.
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


def jittered(seconds: float, rng: random.Random) -> float:
    """Between 1 and 1.5 times the wait, so that refused clients do not come back together."""
    return seconds * (1.0 + 0.5 * rng.random())


def next_in_s(nodes: int, target_rounds_per_s: float, floor_s: float, rng: random.Random) -> float:
    """When a node should come again: its share of the rate this coordinator is willing to serve, jittered."""
    jitter = 0.2 * rng.random()
    return min(3600.0, max(floor_s * (1.0 + jitter), nodes / target_rounds_per_s * (0.9 + jitter)))
