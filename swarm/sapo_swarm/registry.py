"""Names to things: the error for an unknown name says which one was probably meant."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UnknownName(ValueError):
    """Base of the errors for a strategy or algorithm that does not exist."""

    kind = "entry"

    def __init__(self, name: str, known: Iterable[str]) -> None:
        names = sorted(known)
        close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
        hint = f"Did you mean {close[0]!r}? " if close else ""
        super().__init__(f"There is no {self.kind} {name!r}. {hint}Known: {', '.join(names)}.")
        self.name = name
        self.nearest = close[0] if close else None


class UnknownStrategy(UnknownName):
    """There is no sampling strategy of that name."""

    kind = "sampling strategy"


class UnknownAlgorithm(UnknownName):
    """There is no policy-gradient algorithm of that name."""

    kind = "algorithm"
