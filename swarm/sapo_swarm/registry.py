"""Names to things: the error for an unknown name says which one was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 12
"""Names that are told in full."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A sentence: the known word that was probably meant and two more that are near, or all where there are few."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if not close and len(names) <= FEW:
        return f"Known: {', '.join(names)}."
    meant = f"Did you mean {close[0]!r}?" if close else ""
    near = close[1:] or ([] if close else difflib.get_close_matches(word, names, n=3, cutoff=0.0))
    also = f"{'Also near' if close else f'Of {len(names)} the nearest'}: {', '.join(map(repr, near))}." if near else ""
    return f"{meant} {also}".strip()


class UnknownName(ValueError):
    """Base of the errors for a strategy or algorithm that does not exist."""

    kind = "entry"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = list(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        super().__init__(f"There is no {self.kind} {name!r}. {nearest(name, names)}")
        self.name = name
        self.nearest = close[0] if close else None


class UnknownStrategy(UnknownName):
    """There is no sampling strategy of that name."""

    kind = "sampling strategy"


class UnknownAlgorithm(UnknownName):
    """There is no policy-gradient algorithm of that name."""

    kind = "algorithm"
