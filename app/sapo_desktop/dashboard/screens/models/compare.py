"""Two models, or a model and its base: their curves and marks in one chart, and the paired held-out test in a table."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import ClassVar

import msgspec
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Static

from sapo_desktop.dashboard.history.run import RoundClock, RunMetrics, RunMilestone, add_milestones, of_session
from sapo_desktop.dashboard.look import plain_text
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.chart_keys import ChartKeys
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.chart import Chart, examples_lines, heldout_marks, reward_title
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_desktop.dashboard.widgets.plot import ChartLine, ChartMark, Pattern
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.models.shelf.history import TrainingHistory
from sapo_desktop.services.models.shelf.overview import ModelOverview
from sapo_swarm.events import Evaluated, ExamplesRead, RoundFinished
from sapo_swarm.node.training_count import ROUNDS_ONLY

# A model's history as lines and marks of a chart: pure functions of its journal.


def of_one(story: TrainingHistory) -> tuple[list[ChartLine], list[ChartMark], RoundClock]:
    """How the examples were learned, local and external reward over rounds, held-out results, marks of changes, and the round
    clock."""
    figures = _figures(story)
    external = figures.reward_external
    lines = examples_lines(figures)
    lines += [] if external.empty else [ChartLine("external", external, "dashed", "line-2")]
    lines.append(ChartLine("judged" if story.judged else "local", figures.reward_local, "solid", "line-1"))
    moments = [moment for session in story.sessions for moment in of_session(session)]
    moments += [RunMilestone("R", back.round, back.time) for back in story.backs]
    for event in story.examples:
        moments += add_milestones((), event, event.round)
    marks = [ChartMark(m.round, None, letter=m.letter, time=m.time) for m in moments]
    return lines, [*heldout_marks(figures), *marks], figures.clock


def of_two(
    first: tuple[str, TrainingHistory], second: tuple[str, TrainingHistory] | None
) -> tuple[list[ChartLine], list[ChartMark], RoundClock | None]:
    """The local reward of two models (name, story) in one chart; with second None, one model's rewards and held-out results.

    Two models ran at different times, so their axis is rounds of practice.
    """
    if second is None:
        return of_one(first[1])
    if first[1].judged != second[1].judged:
        return of_one(first[1])  # judged and verified rewards are never shown in one chart
    styles: tuple[tuple[Pattern, str], ...] = (("solid", "line-1"), ("dashed", "line-2"))
    pairs = zip((first, second), styles, strict=True)
    return (
        [ChartLine(name, _figures(_practice(story)).reward_local, *style) for (name, story), style in pairs],
        [],
        None,
    )


def _practice(story: TrainingHistory) -> TrainingHistory:
    """The rounds of practice alone, numbered as such: models that had more or fewer examples begin together. Of one that was
    rolled back the newest counts."""
    rounds = {story.counts.done_in(event.round).rounds: event for event in story.rounds if not event.examples}
    numbered = [msgspec.structs.replace(event, round=number - 1) for number, event in sorted(rounds.items())]
    return replace(story, rounds=tuple(numbered), evaluations=(), examples=())


def _figures(story: TrainingHistory) -> RunMetrics:
    figures = RunMetrics()
    read = [event for event in story.examples if isinstance(event, ExamplesRead)]
    events: list[RoundFinished | Evaluated | ExamplesRead] = [*story.rounds, *read, *_once(story.evaluations)]
    for event in sorted(events, key=lambda event: event.seq) if read or story.evaluations else events:
        match event:
            case RoundFinished():
                figures = figures.finished(event)
            case ExamplesRead():
                figures = figures.read(event)
            case Evaluated():
                figures = figures.evaluated(event)
    return figures


def _once(settled: tuple[Evaluated, ...]) -> list[Evaluated]:
    """The evaluations as if none had waited for the base: a history holds each result once, so that one published belatedly
    stands for itself. It is placed no later than the one after it."""
    once: list[Evaluated] = []
    for event in reversed(settled):
        seq = min(event.seq, once[-1].seq) if once else event.seq
        once.append(msgspec.structs.replace(event, seq=seq, belated=False))
    return once[::-1]


# The screen with the chart and the table.


class CompareScreen(ChartKeys, BaseScreen):
    """The comparison. Esc closes it and stops the measurement."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#table"

    def __init__(self, first: ModelOverview, second: ModelOverview | None, items: int) -> None:
        """second: None is the base of the first. items: held-out questions per task."""
        super().__init__()
        self._first, self._second, self._items = first, second, items

    def body(self) -> Iterable[Widget]:
        """See the class."""
        yield Chart("Reward", self.glyphs, id="compare-chart")
        with VerticalScroll(id="table", classes="box"):
            yield Static("", id="table-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """The keys of this screen."""
        return [("Esc", "back", "screen.close"), *self.pause_keys(state)]

    def on_mount(self) -> None:
        """Draw the chart and start the measurement."""
        self._title(f"at most {self._items} held-out questions a task")
        self.call_after_refresh(self._draw)
        self.run_worker(self._measure(), name="compare", exit_on_error=True)

    def _title(self, questions: str) -> None:
        other = self._second.model.name if self._second else "its base"
        title = f"{self._first.model.name} and {other}, {questions}"
        self.query_one("#table").border_title = Content.styled(plain_text(title, 100), "bold")

    def on_resize(self) -> None:
        """Redraw for the new size."""
        super().on_resize()
        self.call_after_refresh(self._draw)

    def _draw(self) -> None:
        named = [
            (plain_text(model.model.name, 30), model.story)
            for model in (self._first, self._second)
            if model is not None
        ]
        lines, marks, clock = of_two(named[0], named[1] if len(named) > 1 else None)
        alone = clock is not None
        title, counts = (reward_title(lines), self._first.story.counts) if alone else ("Reward", ROUNDS_ONLY)
        self.query_one(Chart).show(lines, marks, "Neither has been trained yet.", title, clock, counts)

    async def _measure(self) -> None:
        actions = self.dashboard.model_actions
        assert actions is not None
        second = self._second.model.record.id if self._second else ""
        work = actions.compare(self._first.model.record.id, second, self._items)
        self._say(Content.styled("Loading the models …", "$muted"))
        try:
            async with aclosing(work) as steps:
                async for step in steps:
                    if step.data:  # a task may have fewer than were wanted
                        self._title(f"{step.data['items']:,} held-out questions")
                    if step.result:
                        self._say(Content("\n").join(Content(plain_text(line, 300)) for line in step.result))
                    else:
                        self._say(
                            Content.styled(f"Answering held-out questions: {plain_text(step.progress, 120)}", "$muted")
                        )
        except USER_ERRORS as error:
            self._say(Content.styled(plain_text(str(error), 600), "$warning"))

    def _say(self, text: Content) -> None:
        self.query_one("#table-text", Static).update(text)

    def action_close(self) -> None:
        """Back to where it was opened from."""
        self.dismiss(None)
