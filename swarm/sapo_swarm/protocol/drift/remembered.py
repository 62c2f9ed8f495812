"""The newest of many things, known again by 64-bit fingerprints in two tables that are made once and never grow."""

from __future__ import annotations

import secrets
from array import array
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numpy import uint64
    from numpy.typing import NDArray

_BITS = 2**64 - 1
_DISCARDED = 1
"""In a table; an empty place has 0."""


def fingerprint(text: str) -> int:
    """More than 1, and the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") | 2


class Remembered:
    """Fingerprints: the `least` told last, and up to as many before them; 32 to 64 bytes for each of `least`, taken at once.

    Two generations, each a table with open addressing: when the newer one has `least`, the older one is forgotten, which costs
    nothing. Which place a fingerprint gets is secret, so nobody can choose some that crowd in one.
    """

    __slots__ = ("_least", "_new", "_odd", "_old", "_shift", "_used")

    def __init__(self, least: int, told: bytes = b"") -> None:
        """told: what to_bytes() gave."""
        bits = (2 * least - 1).bit_length()
        self._least, self._odd, self._shift, self._used = least, secrets.randbits(64) | 1, 64 - bits, 0
        self._new, self._old = array("Q", bytes(8 << bits)), array("Q", bytes(8 << bits))
        for start in range(0, len(told) - 7, 8):
            self.add(int.from_bytes(told[start : start + 8], "little") | 2)

    def _place(self, table: array[int], key: int) -> int:
        """Where the fingerprint stands, or an empty place."""
        place = (key * self._odd & _BITS) >> self._shift
        while (found := table[place]) and found != key:
            place = (place + 1) % len(table)
        return place

    def add(self, key: int) -> None:
        """Told now. key: a fingerprint, of 64 bits and more than 1."""
        place = self._place(self._new, key)
        if self._new[place] == key:
            return
        if self._used == self._least:
            self._old, self._new, self._used = self._new, array("Q", bytes(8 * len(self._new))), 0
            place = self._place(self._new, key)
        self._new[place] = key
        self._used += 1

    def discard(self, key: int) -> None:
        """As if it had never been told."""
        for table in (self._new, self._old):
            place = self._place(table, key)
            if table[place] == key:
                table[place] = _DISCARDED

    def _known(self) -> NDArray[uint64]:
        """Each once, those of the older generation first."""
        import numpy as np  # a coordinator, which keeps none, does without

        new, old = (np.frombuffer(table, np.uint64) for table in (self._new, self._old))
        lately = np.unique(new[new > _DISCARDED])
        return np.concatenate([np.setdiff1d(old[old > _DISCARDED], lately), lately])

    def to_bytes(self) -> bytes:
        """All of them, eight bytes each."""
        return self._known().astype("<u8").tobytes()

    def __contains__(self, key: int) -> bool:
        return self._new[self._place(self._new, key)] == key or self._old[self._place(self._old, key)] == key

    def __len__(self) -> int:
        return len(self._known())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remembered) and sorted(self._known()) == sorted(other._known())
