"""What this package raises on purpose for a person to read."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import ClassVar


class SwarmError(Exception):
    """Base of the errors whose message is a sentence that says what failed and what to do. exit_code: of a command that ends
    with it; 1 for a failure, 2 for a wrong name or value, 3 if no node answers."""

    exit_code: ClassVar[int] = 1


# Names to things: the error for an unknown name suggests which one was probably meant.

FEW = 12
"""Up to this many names are listed in full."""


def suggest_names(word: str, known: Iterable[str]) -> str:
    """A sentence: the known word that was probably meant and two more that are near, or all if there are few."""
    names = sorted(known)
    close = difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    if not close and len(names) <= FEW:
        return f"Known: {', '.join(names)}."
    suggestion = f"Did you mean {close[0]!r}?" if close else ""
    near = close[1:] or ([] if close else difflib.get_close_matches(word, names, n=3, cutoff=0.0))
    also = f"{'Also near' if close else f'Of {len(names)} the nearest'}: {', '.join(map(repr, near))}." if near else ""
    return f"{suggestion} {also}".strip()


class UnknownName(ValueError):
    """No strategy, algorithm etc. has that name. kind: what the name should be of."""

    def __init__(self, kind: str, name: str, known: Iterable[str]) -> None:
        super().__init__(f"There is no {kind} {name!r}. {suggest_names(name, known)}")
