"""A dashboard over a list of events, with a feed that keeps what the node is told."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from tests.fixtures.make_recordings import recording
from textual.pilot import Pilot

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.history.groups import GroupSource, RecordedGroups
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.state import NodeLink
from sapo_desktop.errors import CommandFailed
from sapo_swarm.events import Event

SILO = list(recording("silo", 40, 7))
SWARM = list(recording("swarm", 30, 11))
NARROW, WIDE = (80, 24), (120, 36)


@dataclass
class ScriptedFeed:
    """A feed with a node's manners: tells a list of events and keeps the commands it is given."""

    script: list[Event | NodeLink]
    controls: bool = True
    commands: list[tuple[str, dict[str, float]]] = field(default_factory=list)
    refuses: str = ""
    recorded: RecordedGroups | None = None

    def groups(self) -> GroupSource:
        self.recorded = self.recorded or RecordedGroups(self.script)
        return self.recorded

    def upto(self) -> int:
        return len(self.script)

    async def events(self) -> AsyncIterator[Event | NodeLink]:
        for event in self.script:
            yield event

    async def command(self, verb: str, **body: float) -> None:
        if self.refuses:
            raise CommandFailed(self.refuses)
        self.commands.append((verb, body))

    def describe(self) -> str:
        return "a script"

    def now(self) -> float:
        return max((event.time for event in self.script), default=0.0)


def app_over(events: list[Event], **options: object) -> SapoDashboard:
    return SapoDashboard(ScriptedFeed(list(events)), **options)  # type: ignore[arg-type]


async def settled(pilot: Pilot[object]) -> list[str]:
    """The screen as lines, once everything that is under way has happened."""
    app = pilot.app
    assert isinstance(app, SapoDashboard)
    while not app.begun:
        await pilot.pause()
    await app.workers.wait_for_complete()
    app.redraw()
    await pilot.pause()
    await pilot.pause()
    return ["".join(s.text for s in strip) for strip in app.screen._compositor.render_strips()]


def feed_of(app: SapoDashboard) -> ScriptedFeed:
    assert isinstance(app.feed, ScriptedFeed)
    return app.feed


async def questions(pilot: Pilot[object]) -> None:
    """Wait for the first questions: they come after the first frame."""
    while not isinstance(pilot.app.screen, FirstRunScreen):
        await pilot.pause()
