"""Counters of this process in Prometheus's text format, and values that requests share until they are too old."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Generic, Literal, TypeVar

# Prometheus's text format, version 0.0.4.

Kind = Literal["counter", "gauge"]


class MetricsPage:
    """Metrics, one after another. Every name begins with the prefix."""

    def __init__(self, prefix: str) -> None:
        """prefix: such as "sapo_"."""
        self._prefix = prefix
        self._lines: list[str] = []

    def add(self, name: str, kind: Kind, text: str, value: float | None) -> None:
        """A metric with one sample; None: without a sample."""
        self.add_each(name, kind, text, [({}, value)])

    def add_each(
        self, name: str, kind: Kind, text: str, samples: Iterable[tuple[Mapping[str, str], float | None]]
    ) -> None:
        """A metric with one sample per set of labels; samples that are None are left out."""
        self._head(name, kind, text)
        for labels, value in samples:
            if value is not None:
                self._sample(name, labels, value)

    def histogram(self, name: str, text: str, buckets: Mapping[float, float], total: float, count: float) -> None:
        """buckets: upper bound -> cumulative count, ascending, without the bucket for all."""
        self._head(name, "histogram", text)
        for bound, number in buckets.items():
            self._sample(f"{name}_bucket", {"le": f"{bound:g}"}, number)
        self._sample(f"{name}_bucket", {"le": "+Inf"}, count)
        self._sample(f"{name}_sum", {}, total)
        self._sample(f"{name}_count", {}, count)

    def text(self) -> str:
        """The page."""
        return "\n".join(self._lines) + "\n"

    def _head(self, name: str, kind: str, text: str) -> None:
        self._lines += [f"# HELP {self._prefix}{name} {text}", f"# TYPE {self._prefix}{name} {kind}"]

    def _sample(self, name: str, labels: Mapping[str, str], value: float) -> None:
        inside = ",".join(f'{key}="{_escaped(value_text)}"' for key, value_text in labels.items())
        self._lines.append(f"{self._prefix}{name}{f'{{{inside}}}' if inside else ''} {value:.15g}")


def _escaped(value: str) -> str:
    shown = "".join(char if char.isprintable() or char == "\n" else "·" for char in value)
    return shown.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


# A value that requests share until it is too old.

T = TypeVar("T")


class CachedValue(Generic[T]):
    """The result of `make`, at most ttl_s seconds old by `clock`, which may be set back. Callers that come while it is being
    made wait for it."""

    def __init__(
        self, make: Callable[[], Awaitable[T]], ttl_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.ttl_s = ttl_s
        self._make, self._clock = make, clock
        self._known: tuple[float, T] | None = None
        self._forgotten = 0  # times
        self._lock = asyncio.Lock()

    async def __call__(self) -> T:
        """Raises what `make` raises."""
        async with self._lock:
            if self._known is None or not 0 <= self._clock() - self._known[0] < self.ttl_s:
                forgotten = self._forgotten
                value = await self._make()
                if forgotten != self._forgotten:
                    return value  # it may lack what was to be forgotten
                self._known = self._clock(), value  # not the time before: those who waited must not make it again
            return self._known[1]

    def forget(self) -> None:
        """Make it anew at the next call."""
        self._known = None
        self._forgotten += 1


# Counters of this process in Prometheus's text format.

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class CoordinatorMetrics:
    """requests: (route, status) -> count. refused: reason -> groups. Names follow the Prometheus conventions."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.accepted = 0
        self.sampled = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.in_flight = 0
        self.turned_away = 0
        self._latency: Counter[float] = Counter()
        self._latency_sum = 0.0
        self._latency_count = 0

    def served(self, route: str, status: int, seconds: float) -> None:
        """Count one answered request; seconds: from its head to its answer."""
        self.requests[route, status] += 1
        if route == "/v1/rounds/{id}":
            self._latency_sum += seconds
            self._latency_count += 1
            for bound in _BOUNDS:
                if seconds <= bound:
                    self._latency[bound] += 1

    def text(self, pool: int, nodes: int) -> str:
        """The page that Prometheus reads. pool: live groups. nodes: seen lately."""
        page = MetricsPage("sapo_")
        requests = [
            ({"route": route, "status": str(status)}, float(count)) for (route, status), count in self.requests.items()
        ]
        page.add_each("requests_total", "counter", "Requests served, by route and status.", requests)
        page.add("groups_accepted_total", "counter", "Groups taken into the pool.", self.accepted)
        refused = [({"reason": reason}, float(count)) for reason, count in self.refused.items()]
        page.add_each("groups_refused_total", "counter", "Groups refused, by reason.", refused)
        page.add("groups_sampled_total", "counter", "Groups sent to other nodes.", self.sampled)
        page.add("received_bytes_total", "counter", "Bytes of round bodies received.", self.bytes_in)
        page.add("sent_bytes_total", "counter", "Bytes of round replies sent.", self.bytes_out)
        page.add("in_flight", "gauge", "Requests being served.", self.in_flight)
        turned_away = "Connections and handshakes ended early because others came and there was no room."
        page.add("connections_turned_away_total", "counter", turned_away, self.turned_away)
        page.add("pool_groups", "gauge", "Live groups.", pool)
        page.add("nodes", "gauge", "Nodes seen lately.", nodes)
        buckets = {bound: float(self._latency[bound]) for bound in _BOUNDS}
        page.histogram("round_seconds", "Time to serve a round.", buckets, self._latency_sum, self._latency_count)
        return page.text()
