"""Counters of this process in Prometheus' text format."""

from __future__ import annotations

from collections import Counter

_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


class Metrics:
    """requests: (route, status) -> count. refused: reason -> groups. Names follow the Prometheus conventions."""

    def __init__(self) -> None:
        self.requests: Counter[tuple[str, int]] = Counter()
        self.refused: Counter[str] = Counter()
        self.accepted = 0
        self.sampled = 0
        self.bytes_in = 0
        self.bytes_out = 0
        self.in_flight = 0
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
        lines: list[str] = []

        def metric(name: str, kind: str, text: str, values: dict[str, float]) -> None:
            lines.append(f"# HELP sapo_{name} {text}")
            lines.append(f"# TYPE sapo_{name} {kind}")
            lines.extend(f"sapo_{name}{labels} {value:g}" for labels, value in values.items())

        requests = {
            f'{{route="{route}",status="{status}"}}': float(count) for (route, status), count in self.requests.items()
        }
        metric("requests_total", "counter", "Requests served, by route and status.", requests)
        metric("groups_accepted_total", "counter", "Groups taken into the pool.", {"": self.accepted})
        refused = {f'{{reason="{reason}"}}': float(count) for reason, count in self.refused.items()}
        metric("groups_refused_total", "counter", "Groups refused, by reason.", refused)
        metric("groups_sampled_total", "counter", "Groups sent to other nodes.", {"": self.sampled})
        metric("received_bytes_total", "counter", "Bytes of round bodies received.", {"": self.bytes_in})
        metric("sent_bytes_total", "counter", "Bytes of round replies sent.", {"": self.bytes_out})
        metric("in_flight", "gauge", "Requests being served.", {"": self.in_flight})
        metric("pool_groups", "gauge", "Live groups.", {"": pool})
        metric("nodes", "gauge", "Nodes seen lately.", {"": nodes})
        buckets = {f'_bucket{{le="{bound:g}"}}': float(self._latency[bound]) for bound in _BOUNDS}
        buckets['_bucket{le="+Inf"}'] = float(self._latency_count)
        buckets |= {"_sum": self._latency_sum, "_count": float(self._latency_count)}
        metric("round_seconds", "histogram", "Time to serve a round.", buckets)
        return "\n".join(lines) + "\n"
