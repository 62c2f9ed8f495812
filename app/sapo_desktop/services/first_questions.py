"""The first-run questions: what may be answered, and the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

Measure = Callable[[str, str], Awaitable[str]]
"""An answer to hardware and one to model -> a sentence on speed and memory, "" when there is none. It may be cancelled."""


@dataclass(frozen=True)
class FirstRunInfo:
    """What the first-run screen may offer. The first entry of each tuple is the default.

    hardware: (value, what was detected) pairs, for example ("torch", "always torch"). measure: None where nothing measures.
    """

    hardware: tuple[tuple[str, str], ...] = (("auto", "the fastest engine that is installed"),)
    models: tuple[tuple[str, str], ...] = (("starter", "bundled, nothing to download"),)
    tasks: tuple[tuple[str, str], ...] = (("starter", "nine reasoning tasks, easy settings"),)
    limits: tuple[tuple[str, str], ...] = (
        ("gentle", "rests on battery or when warm; others come first"),
        ("full", "as fast as it can; rests on battery or when hot"),
        ("none", "rests only when memory or disk run out"),
    )
    measure: Measure | None = None


@dataclass(frozen=True)
class FirstRunAnswers:
    """The five answers. skipped: Esc was pressed (silo with the starter). invite: only when mode is swarm."""

    mode: Literal["silo", "swarm"] = "silo"
    invite: str = ""
    hardware: str = "auto"
    model: str = "starter"
    tasks: str = "starter"
    limits: str = "gentle"
    name: str = ""
    skipped: bool = False
