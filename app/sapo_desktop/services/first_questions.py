"""The first-run questions: what may be answered, and the answers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

OWN = "own"
"""The answer to "tasks" that means: from a file of mine."""
Measure = Callable[[str, str], Awaitable[str]]
"""An answer to hardware and one to model -> a sentence on speed and memory, "" when there is none. It may be cancelled."""
Check = Callable[[str], Awaitable[str]]
"""A model of the hub, or what was typed -> what keeps it from being used, "" when nothing does."""
OTHER = "another"
"""The answer for a model that is typed."""
LIST = "a real one"
"""The answer for a model that is chosen from the list of those that are here or can be downloaded."""


@dataclass(frozen=True)
class BaseOffer:
    """A model to start from. value: what the run gets; detail: a line; more: what else is said of the one that is marked.

    blocked: why it cannot be chosen, "" where it can."""

    value: str
    detail: str
    more: str = ""
    blocked: str = ""


@dataclass(frozen=True)
class BaseGroup:
    """Models from one source, under its title. notes: sentences on what is not listed."""

    title: str
    offers: tuple[BaseOffer, ...]
    notes: tuple[str, ...] = ()


Offers = Callable[[bool], Awaitable[tuple[BaseGroup, ...]]]
"""Whether to look again -> the models of this computer, those to download, and the bundled ones. It takes two seconds at most."""


def is_checked(model: str) -> bool:
    """Whether this answer may be a model of the hub or of another program, which is looked at before a node starts."""
    return model == OTHER or "/" in model or ":" in model


@dataclass(frozen=True)
class FirstRunInfo:
    """What the first-run screen may offer. The first entry of each tuple is the default.

    hardware: (value, what was detected) pairs, for example ("torch", "always torch"). toys: the models that cannot learn a
    person's table. own_base: what a table is tried on instead of a toy that nobody chose. measure: None where nothing measures.
    check: None where no model can be typed. offers: None where there is no list behind the answer LIST. let_in: asks the
    coordinator of a typed invite; None where nobody does. whole: gives all that may be offered, where looking it up takes
    longer than a first frame may; None where this is all.
    """

    hardware: tuple[tuple[str, str], ...] = (("auto", "the fastest engine that is installed"),)
    models: tuple[tuple[str, str], ...] = (("starter", "bundled, nothing to download"),)
    toys: tuple[str, ...] = ("starter",)
    own_base: str = LIST
    tasks: tuple[tuple[str, str], ...] = (("starter", "nine reasoning tasks, easy settings"),)
    limits: tuple[tuple[str, str], ...] = (
        ("balanced", "pauses on battery or when hot, slower when warm"),
        ("eco", "pauses while you use the computer, too"),
        ("full", "works on battery, slower; pauses when very hot"),
    )
    measure: Measure | None = None
    check: Check | None = None
    offers: Offers | None = None
    let_in: Check | None = None
    whole: Callable[[], Awaitable[FirstRunInfo]] | None = None


@dataclass(frozen=True)
class FirstRunAnswers:
    """The five answers. invite: only when mode is swarm; listed: it was found
    in a directory. task: one of the person's own, made meanwhile; "" = the nine."""

    mode: Literal["silo", "swarm"] = "silo"
    invite: str = ""
    listed: bool = False
    hardware: str = "auto"
    model: str = "starter"
    tasks: str = "starter"
    limits: str = "balanced"
    name: str = ""
    task: str = ""
