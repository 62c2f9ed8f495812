"""The newest of many texts, known again by 64-bit fingerprints in a table that is made once and never grows."""

from __future__ import annotations

import secrets
from array import array
from collections.abc import Iterable
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

_BITS = 2**64 - 1
_FORGOTTEN = 8
"""Of so many texts the one told longest ago is forgotten when the table is full."""


def fingerprint(text: str) -> int:
    """Never 0, and the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") or 1


class Remembered:
    """The `most` texts told last, or up to an eighth fewer; 24 bytes for each of `most`, taken at once.

    Open addressing, with twice as many places or more. Which place a fingerprint gets is secret, so nobody can choose texts
    that crowd in one.
    """

    __slots__ = ("_keys", "_live", "_most", "_now", "_odd", "_shift", "_told", "_used")

    def __init__(self, most: int, told: bytes | Iterable[str] = b"") -> None:
        """told: what to_bytes() gave, or texts, the ones told last at the end."""
        self._most, self._odd = most, secrets.randbits(64) | 1
        self._empty()
        known = (
            np.frombuffer(told[: len(told) // 8 * 8], "<u8").tolist()
            if isinstance(told, bytes)
            else map(fingerprint, told)
        )
        for key in known:
            self._add(key or 1)

    def _empty(self) -> None:
        bits = (2 * self._most - 1).bit_length()
        self._keys, self._told = array("Q", bytes(8 << bits)), array("I", bytes(4 << bits))
        self._shift, self._used, self._live, self._now = 64 - bits, 0, 0, 0

    def _place(self, key: int) -> int:
        """Where the fingerprint stands, or would: then there is a 0."""
        keys, place = self._keys, (key * self._odd & _BITS) >> self._shift
        while keys[place] not in (0, key):
            place = (place + 1) % len(keys)
        return place

    def _add(self, key: int) -> None:
        place = self._place(key)
        if not self._keys[place]:
            if self._used == self._most:
                self._forget()
                place = self._place(key)
            self._keys[place] = key
            self._used += 1
        self._live += not self._told[place]
        self._now += 1
        self._told[place] = self._now

    def _forget(self) -> None:
        """The oldest, and what was discarded."""
        kept = self._by_age()[-(self._most - self._most // _FORGOTTEN) :].tolist()
        self._empty()
        for key in kept:
            self._add(key)

    def _by_age(self) -> NDArray[np.uint64]:
        told, keys = np.frombuffer(self._told, np.uint32), np.frombuffer(self._keys, np.uint64)
        live = np.flatnonzero(told)
        return keys[live[np.argsort(told[live])]]

    def add(self, text: str) -> None:
        """Told now."""
        self._add(fingerprint(text))

    def discard(self, text: str) -> None:
        """As if it had never been told."""
        place = self._place(fingerprint(text))
        self._live -= self._told[place] > 0
        self._told[place] = 0

    def to_bytes(self) -> bytes:
        """Eight bytes a text, told longest ago first."""
        return self._by_age().astype("<u8").tobytes()

    def __contains__(self, text: str) -> bool:
        return self._told[self._place(fingerprint(text))] > 0

    def __len__(self) -> int:
        return self._live

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Remembered) and self.to_bytes() == other.to_bytes()
