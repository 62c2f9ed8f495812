"""Things seen lately, in two generations: what is put lives one to three lifetimes, forgetting costs nothing."""

from __future__ import annotations

from typing import Generic, TypeVar

from sapo_swarm.coordinator.domain.records import AHEAD_S

V = TypeVar("V")


class Recent(Generic[V]):
    """Keys with a value. A hundred bytes a key, where a dictionary in order of age takes three times that."""

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
        return next((kept[key] for kept in (self._new, self._old, self._ahead) if key in kept), None)

    def put(self, key: bytes, value: V, now: float) -> None:
        """now: any clock. Where it is set back, what was put before is kept until it is past again: a request dated ahead is good
        again then."""
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
