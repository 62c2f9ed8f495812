"""Prometheus' text format, version 0.0.4: what a coordinator and a node answer at /metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal

Kind = Literal["counter", "gauge"]
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Page:
    """Metrics, one after another. Every name begins with the prefix."""

    def __init__(self, prefix: str) -> None:
        """prefix: such as "sapo_"."""
        self._prefix = prefix
        self._lines: list[str] = []

    def add(self, name: str, kind: Kind, text: str, value: float | None) -> None:
        """A metric with one sample; None: without."""
        self.add_each(name, kind, text, [({}, value)])

    def add_each(
        self, name: str, kind: Kind, text: str, samples: Iterable[tuple[Mapping[str, str], float | None]]
    ) -> None:
        """A metric with a sample for each set of labels; those that are None are left out."""
        self._head(name, kind, text)
        for labels, value in samples:
            if value is not None:
                self._sample(name, labels, value)

    def histogram(self, name: str, text: str, buckets: Mapping[float, float], total: float, count: float) -> None:
        """buckets: upper bound -> how many were at most so large, ascending, without the one for all."""
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
        inside = ",".join(f'{key}="{_escaped(found)}"' for key, found in labels.items())
        self._lines.append(f"{self._prefix}{name}{f'{{{inside}}}' if inside else ''} {value:.15g}")


def _escaped(value: str) -> str:
    shown = "".join(char if char.isprintable() or char == "\n" else "·" for char in value)
    return shown.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
