"""Screen 1: is it learning, how do we know, what does it do now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets import panels
from sapo_desktop.dashboard.widgets.chart import Chart
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.dashboard.widgets.panel import Panel
from sapo_desktop.dashboard.widgets.plot import Line, Mark

UNEQUAL = "Groups with unequal rewards"
"""Title of the chart of non-zero-advantage groups: only these change the model."""


def now_text(state: DashboardState, now: float, width: int, height: int, glyphs: Glyphs) -> Content:
    """The Now panel; on narrow terminals, which have no Machine panel, its last line holds the tiles."""
    if width >= 50:
        return panels.now_panel(state, now, width, height, glyphs)
    rows = panels.now_panel(state, now, width, max(height - 1, 1), glyphs)
    return Content("\n").join([rows, panels.tiles(state, width)]) if height > 1 else rows


class DashboardScreen(BaseScreen):
    """Screen 1: charts, held-out score, the round in flight, the machine, the newest rollouts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "expand", "expand"),
        Binding("f", "freeze", "freeze", show=False),
        Binding("s", "smooth", "smooth", show=False),
        Binding("plus", "zoom(1)", "window", show=False),
        Binding("minus", "zoom(-1)", "window", show=False),
        Binding("equals_sign", "zoom(0)", "window", show=False),
    ]
    _expanded = 0

    def body(self) -> Iterable[Widget]:
        """Two charts and four panels."""
        yield Chart("Reward", self.glyphs, id="reward")
        yield Panel(panels.heldout, self.glyphs, "Held-out pass@1", id="heldout")
        yield Chart(UNEQUAL, self.glyphs, id="share")
        yield Panel(now_text, self.glyphs, "Now", id="now")
        yield Panel(panels.machine, self.glyphs, "Machine", id="machine")
        yield Panel(panels.rollouts, self.glyphs, "Last rollouts", id="rollouts")

    def own_keys(self, state: DashboardState) -> list[Key]:
        """Pause, snooze, expand, window, screens, palette."""
        return [
            *self.pause_keys(state, snooze=True),
            ("e", "expand", "screen.expand"),
            ("+ -", "window", "screen.zoom(1)"),
            ("1-5", "screens", "app.next_screen"),
            ("^p", "palette", "app.command_palette"),
        ]

    @property
    def charts(self) -> tuple[Chart, Chart]:
        """The reward chart and the share chart."""
        return self.query_one("#reward", Chart), self.query_one("#share", Chart)

    def update(self, state: DashboardState, now: float) -> None:
        """Give charts and panels what they show."""
        reward, share = self.charts
        reward.show(reward_lines(state), [*heldout_marks(state), *change_marks(state)], waiting(state, now))
        share.show(share_lines(state), [], waiting(state, now), share_title(state))
        for name in ("heldout", "now", "machine", "rollouts"):
            self.query_one(f"#{name}", Panel).show(state, now)

    def action_expand(self) -> None:
        """Reward chart alone, share chart alone, everything again."""
        self._expanded = (self._expanded + 1) % 3
        self.set_class(self._expanded == 1, "-expand-reward")
        self.set_class(self._expanded == 2, "-expand-share")

    def action_freeze(self) -> None:
        """Hold the charts still, or let them go on."""
        for chart in self.charts:
            chart.toggle_frozen()
        self.dashboard.redraw()

    def action_smooth(self) -> None:
        """The next width of the moving mean."""
        for chart in self.charts:
            chart.next_smoothing()

    def action_zoom(self, steps: int) -> None:
        """steps: +1 a shorter window, -1 a longer one, 0 all rounds."""
        for chart in self.charts:
            chart.zoom(steps)


def reward_lines(state: DashboardState) -> list[Line]:
    """Local reward always; external in a swarm and after it, in its own pattern and colour, never mixed."""
    local = Line("local", state.figures.reward_local, "solid", "line-1")
    external = Line("external", state.figures.reward_external, "dashed", "line-2")
    return [local] if state.silo and external.series.empty else [external, local]


def share_lines(state: DashboardState) -> list[Line]:
    """In silo the share of local groups with unequal rewards; in a swarm what is mine and what is external."""
    figures = state.figures
    if state.silo:
        return [Line("unequal", figures.nonzero_groups, "solid", "line-3")]
    return [
        Line("external share", figures.external_share, "dashed", "line-2"),
        Line("my share", figures.share, "solid", "line-1"),
    ]


def share_title(state: DashboardState) -> str:
    """The second chart's title: its uptake in a swarm."""
    if state.silo:
        return UNEQUAL
    return f"Swarm share · uptake {state.swarm.uptake:,}" if state.swarm else "Swarm share"


def heldout_marks(state: DashboardState) -> list[Mark]:
    """Evaluations at the temperature of the newest one: the rest cannot be compared with it."""
    latest = state.evaluations.last
    if latest is None:
        return []
    return [Mark(e.round, e.pass_at_1) for e in state.evaluations if e.temperature == latest.temperature]


def change_marks(state: DashboardState) -> list[Mark]:
    """Where training went on with something different: another setting, in a swarm or out of it."""
    return [Mark(session.round, None) for session in state.sessions if session.changed]


def waiting(state: DashboardState, now: float) -> str:
    """What the empty chart says."""
    if state.run is None:
        return "Waiting for the node to open a model. The chart starts with the first round."
    if state.paused:
        return "Paused before the first round. Press space to go on."
    sequences = state.run.local_groups * state.run.group_size
    doing = (
        "evaluating the base model first"
        if state.phase and state.phase.phase == "evaluate"
        else f"generating {sequences} rollouts"
    )
    return f"Waiting for the first round: {doing} on {state.run.device}."
