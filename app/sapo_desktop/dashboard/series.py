"""Append-only containers that look immutable: the memory of the dashboard, bounded and O(1) per event.

`append` returns a new value that shares the old one's buffer; an older value keeps seeing only its own prefix. So a
reducer over them is pure, a frozen chart is just an old state, and nothing is copied except now and then when the
bound is reached.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice, pairwise
from typing import Generic, TypeVar

RECENT = 2000
"""Points kept one by one; older ones are thinned to every other, then every fourth, ..."""
_LIMIT = 2 * RECENT

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class Trail(Generic[T]):
    """The last `bound` (up to twice as many inside) items in order of arrival."""

    bound: int
    _buffer: list[T] = field(default_factory=list)
    _length: int = 0

    def append(self, item: T) -> Trail[T]:
        """With the item at the end."""
        buffer = self._buffer if self._length == len(self._buffer) else self._buffer[: self._length]
        if len(buffer) >= 2 * self.bound:
            buffer = buffer[-self.bound + 1 :]
        buffer.append(item)
        return Trail(self.bound, buffer, len(buffer))

    def __len__(self) -> int:
        return min(self._length, self.bound)

    def __iter__(self) -> Iterator[T]:
        return islice(self._buffer, self._length - len(self), self._length)

    def newest(self, count: int) -> list[T]:
        """Up to `count` items, newest first."""
        start = self._length - min(count, len(self))
        return self._buffer[start : self._length][::-1]

    @property
    def last(self) -> T | None:
        """The newest item; None when there is none."""
        return self._buffer[self._length - 1] if self._length else None


@dataclass(frozen=True, slots=True, eq=False)
class Series:
    """One figure over an increasing x (the round, or seconds): prefix sums, so that any moving mean costs O(log n).

    Thinning old points drops entries of the prefix sums only: means over what remains stay exact.
    """

    _x: array[float] = field(default_factory=lambda: array("d"))
    _sum: array[float] = field(default_factory=lambda: array("d"))
    _count: array[float] = field(default_factory=lambda: array("d"))
    _length: int = 0
    latest: float | None = None

    def append(self, x: float, value: float | None) -> Series:
        """With one more point; None is a gap. An x that is not past the last one replaces what came since (resume)."""
        length = self._length
        if length and x <= self._x[length - 1]:
            length = bisect_left(self._x, x, 0, length)
        xs, sums, counts = self._x, self._sum, self._count
        if length < len(xs):
            xs, sums, counts = xs[:length], sums[:length], counts[:length]
        elif length >= _LIMIT:
            xs, sums, counts = _thin(xs), _thin(sums), _thin(counts)
        length = len(xs)
        xs.append(x)
        sums.append((sums[length - 1] if length else 0.0) + (value or 0.0))
        counts.append((counts[length - 1] if length else 0.0) + (value is not None))
        return Series(xs, sums, counts, length + 1, self.latest if value is None else value)

    def __len__(self) -> int:
        return self._length

    @property
    def first_x(self) -> float | None:
        """The first x that is kept; None when there is none."""
        return self._x[0] if self._length else None

    @property
    def last_x(self) -> float | None:
        """The newest x; None when there is none."""
        return self._x[self._length - 1] if self._length else None

    @property
    def empty(self) -> bool:
        """No value yet (gaps do not count)."""
        return not self._length or self._count[self._length - 1] == 0

    def mean(self, index: int, smooth: float) -> float | None:
        """Mean of the values with x in (x[index] - smooth, x[index]]; None when there are none."""
        before = bisect_right(self._x, self._x[index] - smooth, 0, self._length) - 1
        if before >= index:
            before = index - 1
        count = self._count[index] - (self._count[before] if before >= 0 else 0.0)
        if count <= 0:
            return None
        return (self._sum[index] - (self._sum[before] if before >= 0 else 0.0)) / count

    def at(self, x: float, smooth: float) -> float | None:
        """The moving mean at x, linear between points, None outside or in a gap."""
        if not self._length or x < self._x[0] or x > self._x[self._length - 1]:
            return None
        index = bisect_right(self._x, x, 0, self._length) - 1
        here = self.mean(index, smooth)
        if here is None or index + 1 >= self._length:
            return here
        there = self.mean(index + 1, smooth)
        if there is None:
            return here
        share = (x - self._x[index]) / (self._x[index + 1] - self._x[index])
        return here + share * (there - here)

    def tail_mean(self, smooth: float) -> float | None:
        """The moving mean now."""
        return self.mean(self._length - 1, smooth) if self._length else None

    def samples(self, count: int, span: int = 0) -> list[float | None]:
        """`count` values spread over the last `span` points (0: all), each the mean of its share; for sparklines."""
        start = max(0, self._length - span) if span else 0
        points = self._length - start
        cells = min(count, points)
        edges = [start + points * cell // cells for cell in range(cells + 1)] if cells else []
        return [self._between(low, high) for low, high in pairwise(edges)]

    def _between(self, low: int, high: int) -> float | None:
        count = self._count[high - 1] - (self._count[low - 1] if low else 0.0)
        return (self._sum[high - 1] - (self._sum[low - 1] if low else 0.0)) / count if count > 0 else None


def _thin(values: array[float]) -> array[float]:
    """Every other of the older half (the later of each pair, so that prefix sums stay exact), all of the newer half."""
    return values[1:RECENT:2] + values[RECENT:]
