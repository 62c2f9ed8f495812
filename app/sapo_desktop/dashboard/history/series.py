"""Append-only containers that look immutable: the memory of the dashboard, bounded and O(1) per event.

`append` returns a new value that shares the old one's buffer; an older value still sees only its own prefix. So a
reducer over them is pure, a frozen chart is just an old state, and data is copied only occasionally, when the
bound is reached.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from itertools import islice
from typing import Generic, NamedTuple, TypeVar

import msgspec

LEVEL = 256
"""A level is full at twice this many buckets; this many stay, the others are merged in pairs into the next coarser level."""

T = TypeVar("T")


class BoundedHistory(msgspec.Struct, Generic[T], frozen=True, eq=False):
    """The last `bound` items in order of arrival (the buffer holds up to twice as many)."""

    bound: int
    _buffer: list[T] = msgspec.field(default_factory=list)
    _length: int = 0

    def append(self, item: T) -> BoundedHistory[T]:
        """A copy with the item at the end."""
        buffer = self._buffer if self._length == len(self._buffer) else self._buffer[: self._length]
        if len(buffer) >= 2 * self.bound:
            buffer = buffer[-self.bound + 1 :]
        buffer.append(item)
        return BoundedHistory(self.bound, buffer, len(buffer))

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


class ValueRange(NamedTuple):
    """Smallest, mean and largest value of a range."""

    low: float
    mean: float
    high: float


class _Columns(NamedTuple):
    """One entry per bucket, oldest first. sums and counts are prefix sums, so any moving mean costs O(log n)."""

    first: array[float]
    """x of the first point in the bucket."""
    x: array[float]
    """x of the last point in the bucket."""
    sums: array[float]
    counts: array[float]
    low: array[float]
    """Smallest value in the bucket, infinity if there is none."""
    high: array[float]


class Series:
    """One metric over an increasing x (the round, or seconds), in buckets: recent points have one each, older ones share
    buckets of 2, 4, 8, ... points. At most 2 * LEVEL buckets of each width; the first point always keeps its own bucket.

    Means over whole buckets are exact, however points were merged.
    """

    __slots__ = ("_coarse", "_columns", "_fine", "_length", "latest")

    def __init__(
        self,
        columns: _Columns | None = None,
        coarse: tuple[int, ...] = (),
        length: int = 0,
        latest: float | None = None,
        fine: int = 0,
    ) -> None:
        """coarse: how many buckets of 2, 4, 8, ... points there are; fine: the newest buckets, with one point each."""
        self._columns = columns or _Columns(*(array("d") for _ in _Columns._fields))
        self._coarse, self._length, self._fine, self.latest = coarse, length, fine, latest

    def append(
        self, x: float, value: float | None, covers: int = 1, low: float | None = None, high: float | None = None
    ) -> Series:
        """A copy with one more point; None is a gap. An x that is not past the last one replaces everything from x on (resume).

        covers: how many points this one stands for (the journal merges old rounds into blocks). low, high: their range.
        """
        length, coarse, fine, columns = self._length, self._coarse, self._fine, self._columns
        if length and x <= columns.x[length - 1]:
            earlier = bisect_left(columns.x, x, 0, length)
            coarse, length = _shortened(coarse, length, length - earlier), earlier
            fine = length - sum(coarse)
        if length < len(columns.x):
            columns = _Columns(*(column[:length] for column in columns))
        first, xs, sums, counts, lows, highs = columns
        first.append(x - covers + 1)
        xs.append(x)
        total, number = (sums[-1], counts[-1]) if length else (0.0, 0.0)
        if value is None:
            lows.append(math.inf)
            highs.append(-math.inf)
        else:
            total, number = total + value * covers, number + covers
            lows.append(value if low is None else low)
            highs.append(value if high is None else high)
        sums.append(total)
        counts.append(number)
        level = covers.bit_length() - 2
        length += 1
        if level < 0 or fine or any(coarse[:level]):
            fine, full = fine + 1, fine + 1 >= 2 * LEVEL
        else:  # a merged block with nothing finer before it goes on the level of its width
            coarse = _placed(coarse, level)
            full = coarse[level] >= 2 * LEVEL
        if full:
            columns, coarse = _settled(columns, coarse)
            length = len(columns.x)
            fine = length - sum(coarse)
        return Series(columns, coarse, length, self.latest if value is None else value, fine)

    def __len__(self) -> int:
        return self._length

    @property
    def first_x(self) -> float | None:
        """The first x; None when empty."""
        return self._columns.first[0] if self._length else None

    @property
    def last_x(self) -> float | None:
        """The newest x; None when empty."""
        return self._columns.x[self._length - 1] if self._length else None

    @property
    def empty(self) -> bool:
        """Whether there is no value yet (gaps do not count)."""
        return not self._length or self._columns.counts[self._length - 1] == 0

    def mean(self, index: int, smooth: float) -> float | None:
        """Mean of the values with x in (x[index] - smooth, x[index]]; None when there are none."""
        xs = self._columns.x
        before = bisect_right(xs, xs[index] - smooth, 0, self._length)
        return self._between(min(before, index), index + 1)

    def at(self, x: float, smooth: float) -> float | None:
        """The moving mean at x, interpolated linearly between points; None outside the series or in a gap."""
        xs = self._columns.x
        if not self._length or x < self._columns.first[0] or x > xs[self._length - 1]:
            return None
        index = max(bisect_right(xs, x, 0, self._length) - 1, 0)
        here = self.mean(index, smooth)
        if here is None or index + 1 >= self._length or x < xs[0]:
            return here
        there = self.mean(index + 1, smooth)
        if there is None:
            return here
        share = (x - xs[index]) / (xs[index + 1] - xs[index])
        return here + share * (there - here)

    def spread(self, first: float, last: float) -> ValueRange | None:
        """Range and mean of the buckets that overlap [first, last]; None when they hold no value."""
        columns = self._columns
        low = bisect_left(columns.x, first, 0, self._length)
        high = max(bisect_right(columns.first, last, 0, self._length), low)
        mean = self._between(low, high)
        return None if mean is None else ValueRange(min(columns.low[low:high]), mean, max(columns.high[low:high]))

    def range(self) -> ValueRange | None:
        """Smallest, mean and largest value of the whole series."""
        return self.spread(-math.inf, math.inf)

    def rising_at(self, x: float) -> float:
        """The value at x of a metric that only rises (a clock), interpolated within a bucket. The series must not be empty."""
        index = min(bisect_left(self._columns.x, x, 0, self._length), self._length - 1)
        first, last, low, high = self._bucket(index)
        share = min(max((x - first) / (last - first), 0.0), 1.0)
        return low + share * (high - low)

    def x_of_rising(self, value: float) -> float:
        """Inverse of rising_at; a value between two buckets gives the x between them."""
        index = min(bisect_left(self._columns.high, value, 0, self._length), self._length - 1)
        first, last, low, high = self._bucket(index)
        share = min(max((value - low) / (high - low), 0.0), 1.0) if high > low else 1.0
        return first + share * (last - first)

    def _bucket(self, index: int) -> tuple[float, float, float, float]:
        """(x before the bucket's first point, x of its last, smallest value, largest value)."""
        columns = self._columns
        return columns.first[index] - 1, columns.x[index], columns.low[index], columns.high[index]

    def tail_mean(self, smooth: float) -> float | None:
        """The newest moving mean."""
        return self.mean(self._length - 1, smooth) if self._length else None

    def buckets(self) -> Iterator[tuple[float, float, float]]:
        """First x, last x and mean of every bucket with a value, oldest first."""
        for index in range(self._length):
            if (mean := self._between(index, index + 1)) is not None:
                yield self._columns.first[index], self._columns.x[index], mean

    def newest(self, count: int) -> list[float | None]:
        """Means of the last `count` buckets, oldest first."""
        return [self._between(place, place + 1) for place in range(max(0, self._length - count), self._length)]

    def _between(self, low: int, high: int) -> float | None:
        """Mean of the buckets in [low, high)."""
        if high <= low:
            return None
        sums, counts = self._columns.sums, self._columns.counts
        count = counts[high - 1] - (counts[low - 1] if low else 0.0)
        return (sums[high - 1] - (sums[low - 1] if low else 0.0)) / count if count > 0 else None


def _shortened(coarse: tuple[int, ...], length: int, drop: int) -> tuple[int, ...]:
    """The level sizes after the newest `drop` buckets are removed."""
    drop -= min(drop, length - sum(coarse))
    sizes = []
    for size in coarse:
        gone = min(drop, size)
        drop -= gone
        sizes.append(size - gone)
    return tuple(sizes)


def _placed(coarse: tuple[int, ...], level: int) -> tuple[int, ...]:
    """The level sizes after adding one bucket to a level."""
    sizes = [*coarse, *[0] * (level + 1 - len(coarse))]
    sizes[level] += 1
    return tuple(sizes)


def _settled(columns: _Columns, coarse: tuple[int, ...]) -> tuple[_Columns, tuple[int, ...]]:
    """Merge the older part of each full level, in pairs, into the next coarser level."""
    sizes = [len(columns.x) - sum(coarse), *coarse, 0]
    level = 0
    while level < len(sizes) - 1:
        if sizes[level] >= 2 * LEVEL:
            start = sum(sizes[level + 1 :])
            columns = _paired(columns, max(start, 1))
            sizes[level] -= LEVEL
            sizes[level + 1] += LEVEL // 2
            if level == len(sizes) - 2:
                sizes.append(0)
        level += 1
    while len(sizes) > 1 and not sizes[-1]:
        sizes.pop()
    return columns, tuple(sizes[1:])


def _paired(columns: _Columns, start: int) -> _Columns:
    """LEVEL buckets from `start` on, merged in pairs. A pair's prefix sum is the later bucket's."""
    end = start + LEVEL
    pairs = _Columns(
        first=columns.first[start:end:2],
        x=columns.x[start + 1 : end : 2],
        sums=columns.sums[start + 1 : end : 2],
        counts=columns.counts[start + 1 : end : 2],
        low=array("d", map(min, columns.low[start:end:2], columns.low[start + 1 : end : 2])),
        high=array("d", map(max, columns.high[start:end:2], columns.high[start + 1 : end : 2])),
    )
    return _Columns(*(old[:start] + new + old[end:] for old, new in zip(columns, pairs, strict=True)))
