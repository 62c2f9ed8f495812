"""What screens and the palette may ask of the application that shows them; app.py implements it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from textual.app import App

from sapo_desktop.dashboard.look import GlyphSet, plain_text
from sapo_desktop.dashboard.replay import ReplayFeed
from sapo_desktop.dashboard.state import DashboardState, EventFeed, QuitChoice
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.machine.finding import Finding

if TYPE_CHECKING:  # a first frame waits for none of these
    from sapo_desktop.services.models.screen.actions import HomeModels
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

T = TypeVar("T")
Examine = Callable[[], AsyncIterator[Finding]]
"""Findings one by one; raises USER_ERRORS. They are made outside this process: looking at engines is heavy."""


def made_when_used(make: Callable[[], T]) -> T:
    """Stands for what make() gives, and calls it once something of that is asked for: its modules take a while to import, and
    the first frame waits for none of them."""
    return cast("T", _MadeWhenUsed(make))


class _MadeWhenUsed:
    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> object:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        """Asked for what this object has not."""
        return getattr(self._made, name)


class DashboardHost(App[QuitChoice]):
    """The application as its screens see it. Actions that are None are not to be had (a recording, for example)."""

    glyphs: GlyphSet
    feed: EventFeed
    cache: Path | None
    state: DashboardState
    model_actions: HomeModels | None
    swarm_actions: HomeActions | None
    settings_actions: HomeSettings | None
    task_actions: HomeTasks | None
    examine: Examine | None

    @property
    def modes(self) -> tuple[str, ...]:
        """The screens that there are, in order."""
        return tuple(self._modes)

    @property
    def player(self) -> ReplayFeed | None:
        """How the recording is steered; None over a node."""
        return self.feed if isinstance(self.feed, ReplayFeed) else None

    @abstractmethod
    def redraw(self) -> None:
        """Give the active screen the state."""

    @abstractmethod
    def command(self, verb: str, said: str, **body: float) -> None:
        """Tell the node, and say what was told or why it was not taken."""

    @abstractmethod
    def answer_again(self) -> None:
        """The first questions once more."""

    def say(self, text: str, error: bool = False) -> None:
        """A toast, as plain text."""
        self.notify(plain_text(text, 400), severity="error" if error else "information", timeout=4, markup=False)

    async def outcome(self, work: Awaitable[T]) -> T | None:
        """What came of it; None where it was refused, which is said."""
        try:
            return await work
        except USER_ERRORS as error:
            self.say(str(error), error=True)
            return None

    async def told(self, work: Awaitable[str]) -> bool:
        """Say what came of it, or why it was refused; whether it went well."""
        sentence = await self.outcome(work)
        if sentence is not None:
            self.say(sentence)
        return sentence is not None
