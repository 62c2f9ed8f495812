"""The first-run questions: the possible answers, and those given."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Literal

OWN = "own"
"""The answer to "tasks" that means: from my own file."""
Measure = Callable[[str, str, str, str], Awaitable[str]]
"""(answer to hardware, to model, to tasks, the table's file or "") -> a sentence on speed and memory, "" when there is none.
Cancellable."""
Check = Callable[[str], Awaitable[str]]
"""A model on the hub, or the typed text -> why it cannot be used, "" when it can."""
OTHER = "another"
"""The answer for a typed model."""
LIST = "from a list"
"""The answer for a model chosen from the list of those that are here or can be downloaded."""


@dataclass(frozen=True)
class BaseOffer:
    """A model to start from. value: what the run gets; detail: one line; more: further text for the highlighted one.

    blocked: why it cannot be chosen, "" where it can."""

    value: str
    detail: str
    more: str = ""
    blocked: str = ""


@dataclass(frozen=True)
class BaseGroup:
    """Models from one source, under its title. notes: sentences about what is not listed."""

    title: str
    offers: tuple[BaseOffer, ...]
    notes: tuple[str, ...] = ()


Offers = Callable[[bool], Awaitable[tuple[BaseGroup, ...]]]
"""Whether to scan again -> the models on this computer, those to download, and the bundled ones. Takes at most two seconds."""


def is_checked(model: str) -> bool:
    """Whether this answer may be a model on the hub or from another program, which is checked before a node starts."""
    return model == OTHER or "/" in model or ":" in model


@dataclass(frozen=True)
class FirstRunInfo:
    """What the first-run screen offers. The first entry of each tuple is the default.

    hardware: (value, what was detected) pairs, for example ("torch", "always torch"). toys: models that cannot learn a
    person's table. own_base: what a table is tried on instead of a toy that nobody chose. measure: None where nothing is
    measured. check: None where no model can be typed. offers: None where there is no list behind the answer LIST. let_in:
    asks the coordinator of a typed invite; None where that is not possible. whole: returns everything on offer, where looking
    it up takes longer than a first frame may; None where this is everything.
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
    """The five answers. invite: only when mode is swarm; listed: it was found in a directory. task: the person's own, created
    meanwhile; "" = the nine."""

    mode: Literal["silo", "swarm"] = "silo"
    invite: str = ""
    listed: bool = False
    hardware: str = "auto"
    model: str = "starter"
    tasks: str = "starter"
    limits: str = "balanced"
    name: str = ""
    task: str = ""
