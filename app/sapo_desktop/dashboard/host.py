"""The interface of the application for screens and the palette; app.py implements it."""

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
from sapo_desktop.services.machine.self_test import Finding

if TYPE_CHECKING:  # a first frame waits for none of these
    from sapo_desktop.services.models.screen.actions import HomeModels
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings
    from sapo_desktop.services.swarms.actions import HomeActions
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

T = TypeVar("T")
Examine = Callable[[], AsyncIterator[Finding]]
"""Yields findings one by one; raises USER_ERRORS. Runs in another process, since checking engines imports heavy modules."""


def made_when_used(make: Callable[[], T]) -> T:
    """A lazy proxy for the result of make(), which is called at the first attribute access: its modules are slow to import, and
    the first frame must not wait for them."""
    return cast("T", _MadeWhenUsed(make))


class _MadeWhenUsed:
    def __init__(self, make: Callable[[], object]) -> None:
        self._make = make

    @cached_property
    def _made(self) -> object:
        return self._make()

    def __getattr__(self, name: str) -> Any:
        """Forward to the wrapped object."""
        return getattr(self._made, name)


class DashboardHost(App[QuitChoice]):
    """The application as its screens see it. Actions that are None are unavailable (over a recording, for example)."""

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
        """The available screens, in order."""
        return tuple(self._modes)

    @property
    def player(self) -> ReplayFeed | None:
        """The feed with its playback controls; None over a node."""
        return self.feed if isinstance(self.feed, ReplayFeed) else None

    @abstractmethod
    def redraw(self) -> None:
        """Pass the state to the active screen."""

    @abstractmethod
    def command(self, verb: str, said: str, **body: float) -> None:
        """Send the node a command, then show `said`, or why the command was refused."""

    @abstractmethod
    def answer_again(self) -> None:
        """Ask the first questions again."""

    def say(self, text: str, error: bool = False) -> None:
        """Show a plain-text toast."""
        self.notify(plain_text(text, 400), severity="error" if error else "information", timeout=4, markup=False)

    async def outcome(self, work: Awaitable[T]) -> T | None:
        """The result of the work; None if it was refused, after showing the reason."""
        try:
            return await work
        except USER_ERRORS as error:
            self.say(str(error), error=True)
            return None

    async def told(self, work: Awaitable[str]) -> bool:
        """Show the resulting sentence, or why the work was refused; True on success."""
        sentence = await self.outcome(work)
        if sentence is not None:
            self.say(sentence)
        return sentence is not None
