"""Screen 1: is the model learning, how do we know, and what is the node doing now."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget

from sapo_desktop.dashboard.history.run import MEANINGS
from sapo_desktop.dashboard.look import GlyphSet, shorten_phrases
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.chart_keys import ChartKeys
from sapo_desktop.dashboard.screens.rollouts.detail import group_details
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets import panels
from sapo_desktop.dashboard.widgets.chart import Chart, examples_lines, heldout_marks, reward_title
from sapo_desktop.dashboard.widgets.frame import Key, Panel
from sapo_desktop.dashboard.widgets.held_out import held_out_panel
from sapo_desktop.dashboard.widgets.plot import ChartLine, ChartMark
from sapo_desktop.services.swarms.trial import EXTERNAL_SHARE, MY_SHARE, UPTAKE

UNEQUAL = "Groups with unequal rewards"
"""Title of the chart of non-zero-advantage groups: only these change the model."""

NO_MODEL, OPENING = "Waiting for the node to open a model.", "The model is being opened."


def now_text(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """The Now panel; on narrow terminals, which have no Machine panel, its last line shows the machine's figures."""
    if width >= 50:
        return panels.now_panel(state, now, width, height, glyphs)
    rows = panels.now_panel(state, now, width, max(height - 1, 1), glyphs)
    return Content("\n").join([rows, panels.machine_tiles(state, width)]) if height > 1 else rows


def newest_group_text(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """The newest group in full, on a big screen."""
    last = state.groups.last
    return group_details(last, glyphs, counts=state.counts) if last is not None else Content("")


class DashboardScreen(ChartKeys, BaseScreen):
    """Screen 1: charts, held-out score, the round in flight, the machine, the newest rollouts."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("e", "expand", "expand"),
    ]
    _expanded = 0

    def body(self) -> Iterable[Widget]:
        """Two charts and four panels."""
        yield Chart("Reward", self.glyphs, id="reward")
        yield Panel(held_out_panel, self.glyphs, "Held-out pass@1", id="heldout")
        yield Chart(UNEQUAL, self.glyphs, id="share")
        yield Panel(now_text, self.glyphs, "Now", id="now")
        yield Panel(panels.machine_panel, self.glyphs, "Machine", id="machine")
        yield Panel(panels.rollouts_panel, self.glyphs, "Last rollouts", id="rollouts")
        yield Panel(newest_group_text, self.glyphs, "Newest question and attempts", id="newest")

    def own_keys(self, state: DashboardState) -> list[Key]:
        """Pause, snooze, expand, window, screens, palette; once the training has finished, what to do with the model."""
        models: Key = ("4", "chat, export", "app.switch_mode('models')")
        return [
            *self.pause_keys(state, snooze=not state.finished),
            *([models] if state.finished and self.dashboard.model_actions is not None else []),
            ("e", "expand", "screen.expand"),
            ("+ -", "window", "screen.zoom(1)"),
            ("1-5", "screens", "app.next_screen"),
            ("^p", "palette", "app.command_palette"),
        ]

    def update(self, state: DashboardState, now: float) -> None:
        """Update charts and panels."""
        clock, empty = state.figures.clock, empty_chart_text(state, now)
        happened = milestone_marks(state)
        reward = self.query_one("#reward", Chart)
        lines = reward_lines(state)
        reward.show(lines, [*heldout_marks(state.figures), *happened], empty, reward_title(lines), clock, state.counts)
        self.query_one("#share", Chart).show(
            share_lines(state), happened, empty, share_title(state), clock, state.counts
        )
        self.query_one("#rollouts").border_subtitle = Content.styled(
            letters_in_words(happened, self.size.width - 8), "$muted"
        )
        for name in ("heldout", "now", "machine", "rollouts", *(["newest"] if self.big else [])):
            self.query_one(f"#{name}", Panel).show(state, now)

    def action_expand(self) -> None:
        """Reward chart alone, share chart alone, held-out results alone, everything again."""
        self._expanded = (self._expanded + 1) % 4
        self.set_class(self._expanded == 1, "-expand-reward")
        self.set_class(self._expanded == 2, "-expand-share")
        self.set_class(self._expanded == 3, "-expand-heldout")

    def action_freeze(self) -> None:
        """Hold the charts still, or let them go on."""
        super().action_freeze()
        self.dashboard.redraw()


def reward_lines(state: DashboardState) -> list[ChartLine]:
    """Local reward always; external reward during and after a swarm, in a separate pattern and colour, never mixed. If there were
    examples, also how they were learned."""
    local = ChartLine(
        "judged" if state.run and state.run.judged else "local", state.figures.reward_local, "solid", "line-1"
    )
    external = ChartLine("external", state.figures.reward_external, "dashed", "line-2")
    lines = [local] if state.silo and external.series.empty else [external, local]
    return [*examples_lines(state.figures), *lines]


def share_lines(state: DashboardState) -> list[ChartLine]:
    """Alone, the share of local groups with unequal rewards; in a swarm, this node's share and the external share."""
    figures = state.figures
    if state.silo:
        return [ChartLine("unequal", figures.nonzero_groups, "solid", "line-3")]
    return [
        ChartLine(EXTERNAL_SHARE, figures.external_share, "dashed", "line-2", share=True),
        ChartLine(MY_SHARE, figures.share, "solid", "line-1", share=True),
    ]


def share_title(state: DashboardState) -> str:
    """The second chart's title, which includes the uptake in a swarm."""
    if state.silo:
        return UNEQUAL
    return f"Swarm · {UPTAKE} {state.swarm.uptake:,}" if state.swarm else "Swarm"


def milestone_marks(state: DashboardState) -> list[ChartMark]:
    """What happened in the run, and the best held-out result."""
    marks = [ChartMark(m.round, None, letter=m.letter, time=m.time) for m in state.moments]
    held = state.figures.held_out
    return [*marks, ChartMark(held.best[0], None, letter="B")] if held.best and len(held.mean) > 1 else marks


def letters_in_words(marks: Iterable[ChartMark], width: int) -> str:
    """What the letters below the charts mean: a narrow chart has no room to say it."""
    drawn = {mark.letter for mark in marks}
    words = [f"{letter} {word}" for letter, word in MEANINGS.items() if letter in drawn]
    return shorten_phrases("In the charts: " + " · ".join(words), width) if words else ""


def empty_chart_text(state: DashboardState, now: float) -> str:
    """What the empty chart says."""
    if state.absent:
        return f"{state.absence}."
    if state.run is None:
        opening = state.phase is not None and state.phase.phase == "open"
        return f"{OPENING if opening else NO_MODEL} The chart starts with the first round."
    if state.paused and state.examples_left:
        return "No practice so far: press space and the examples go on first."
    if state.paused:
        return "No practice so far. It follows if you press space."
    if state.before_practice:
        return "Groups come with practice, after the examples."
    sequences = state.run.local_groups * state.run.group_size
    doing = (
        "evaluating the base model first"
        if state.phase and state.phase.phase == "evaluate"
        else f"generating {sequences} rollouts"
    )
    return f"Waiting for the first round: {doing} on {state.run.device}."
