"""What a scenario of faults is. See scenarios."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Try = Callable[[Callable[[], Any]], bool]
Promise = Callable[[object], None]
TIMES = 5


@dataclass(frozen=True)
class Scenario:
    """See the module. make: once, before anything fails."""

    name: str
    make: Callable[[Path], None]
    work: Callable[[Path, Try, Promise], None]
    check: Callable[[Path, Sequence[Any]], None]


def again(try_: Try, call: Callable[[], Any]) -> bool:
    """As a node does: what failed is tried once more, the next time it is due."""
    return try_(call) or try_(call)


def nothing(_folder: Path) -> None:
    """The work begins with an empty folder."""
