"""Screen 4, My models: the list, an opened model, and the text that both show of a model."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import (
    GlyphSet,
    draw_bar,
    fit_width,
    format_count,
    format_memory,
    hanging_indent,
    plain_text,
)
from sapo_desktop.dashboard.screens.chart_keys import ChartKeys
from sapo_desktop.dashboard.screens.dialogs import key_hint
from sapo_desktop.dashboard.screens.models import compare
from sapo_desktop.dashboard.screens.models.keys import MORE, ModelKeys
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.chart import Chart, reward_title
from sapo_desktop.dashboard.widgets.frame import ChoiceList, Key
from sapo_desktop.services.models.screen.interface import ModelListing
from sapo_desktop.services.models.shelf.history import describe_session, session_start
from sapo_desktop.services.models.shelf.overview import ModelOverview, format_gain, tasks_of
from sapo_desktop.services.models.shelf.store import rounds_of
from sapo_swarm.events import Evaluated, RunStarted
from sapo_swarm.node.clock import format_age, local_time
from sapo_swarm.node.training_count import TrainingCounts, count_of

# A model as plain text on screen 4: a row in the list, and all its details when opened.

SHOWN = 12
"""How many of the newest evaluations and checkpoints are listed."""
_GAIN, _GAIN_WIDE = 28, 40
_WHEN = 26
"""Columns of "after step 1,000 of examples"."""


def _columns(width: int) -> tuple[int, int, int]:
    """Column widths of name, base and held-out result in a list of this width. A narrow list has no bases: cut short they
    all look alike, and the model under the cursor is described below."""
    held_out = _GAIN_WIDE if width >= 108 else _GAIN
    base = 16 if width >= 90 else 0
    return max(width - 32 - (base + 1 if base else 0) - held_out, 12), base, held_out


def column_header(width: int) -> Content:
    """The names of the columns."""
    name, base, held_out = _columns(width)
    made_from = f"{'base':<{base}} " if base else ""
    measured = f"{'held-out, against its base':<{held_out}}"
    text = f"  {'name':<{name}} {made_from}{measured} {'steps':>6} {'rounds':>6} {'disk':>7} {'ago':>6}"
    return Content.styled(text, "$muted")


def model_row(one: ModelOverview, training: bool, now: float, width: int, glyphs: GlyphSet) -> Content:
    """A model's row in the list, marked if the node is training it."""
    name, base, held_out = _columns(width)
    model = one.model
    used = format_age(now - one.last_trained) if one.last_trained else "new"
    return Content.assemble(
        (f"{glyphs.now} " if training else "  ", "$success"),
        (fit_width(plain_text(model.name, 60), name), "bold"),
        (f" {fit_width(plain_text(one.base, 60), base)} " if base else " ", "$muted"),
        fit_width(format_gain(one.held_out, held_out, one.judged), held_out),
        (
            f" {_short(one.trained.steps):>6} {_short(one.trained.rounds):>6} {format_memory(one.size):>7} {used:>6}",
            "$muted",
        ),
    )


def _short(number: int) -> str:
    return f"{number:,}" if number < 100_000 else f"{number / 1000:,.0f} k"


def model_summary(one: ModelOverview, training: bool, width: int, glyphs: GlyphSet) -> Content:
    """The text below the list about the model under the cursor."""
    model, config = one.model, one.model.config
    sessions = one.story.sessions
    rows = [
        labelled_value("made from", f"{model.record.base} · {_how(one)}", width),
        labelled_value("tasks", tasks_of(config), width),
        labelled_value(
            "trained",
            f"{one.trained} · {format_count(one.story.tokens)} tokens generated · {_where(one)}",
            width,
        ),
    ]
    if training:
        rows.append(Content.styled(f"{glyphs.now} The node has this model open.", "$success"))
    if one.story.problem:
        rows.append(Content.styled(hanging_indent(plain_text(one.story.problem, 300), width, 0), "$warning"))
    if sessions:
        rows += [Content(""), Content.styled("History", "bold"), *session_rows(sessions[-4:], one.story.counts, width)]
    last = (one.held_out,) if one.held_out else ()
    rows += [
        Content(""),
        *evaluation_rows(last, one.story.counts, width, glyphs),
        *task_score_rows(one.held_out, width, glyphs),
    ]
    return Content("\n").join(rows)


def model_details(one: ModelOverview, now: float, width: int, glyphs: GlyphSet) -> Content:
    """All details, shown below the chart of an opened model."""
    checkpoints = one.model.checkpoints
    rows = [
        Content.styled(f"History ({count_of(len(one.story.sessions), 'session')})", "bold"),
        *(session_rows(one.story.sessions, one.story.counts, width) or [Content.styled("not trained yet", "$muted")]),
        Content(""),
        Content.styled("Held-out pass@1, change against the base in points", "bold"),
        *(
            evaluation_rows(one.story.evaluations, one.story.counts, width, glyphs)
            or [Content.styled("not measured yet", "$muted")]
        ),
        Content(""),
        *task_score_rows(one.held_out, width, glyphs),
        Content(""),
        Content.styled(f"Checkpoints ({len(checkpoints)}), {format_memory(one.size, '0 MB')} on disk in all", "bold"),
        *[_checkpoint(path, one.story.counts, now) for path in checkpoints[::-1][:SHOWN]],
        Content(""),
        *_settings(one, width),
    ]
    return Content("\n").join(rows)


def labelled_value(label: str, value: str, width: int) -> Content:
    """A label and its value, wrapped with a hanging indent."""
    return Content.assemble((f"{label:<10}", "$muted"), hanging_indent(plain_text(value, 600), width, 10))


def _how(one: ModelOverview) -> str:
    method, engine, algorithm = one.trained_with
    return f"method {method} · engine {engine} · {algorithm}"


def _where(one: ModelOverview) -> str:
    """Whether it last trained alone or in a swarm."""
    if not one.story.sessions:
        return "not begun"
    return "alone" if one.story.sessions[-1].mode == "silo" else "in a swarm"


def session_rows(sessions: tuple[RunStarted, ...], counts: TrainingCounts, width: int) -> list[Content]:
    """One line per session: when, how far it was trained, what had changed."""
    rows = []
    for session in sessions:
        when = time.strftime("%m-%d %H:%M", local_time(session.time))
        text = f"{when}  {session_start(counts.at(session.round)):<{_WHEN}}  "
        style = "$accent" if session.changed else ""
        rows.append(
            Content.assemble(
                (text, "$muted"), (hanging_indent(plain_text(describe_session(session), 400), width, len(text)), style)
            )
        )
    return rows


def evaluation_rows(
    found: tuple[Evaluated, ...], counts: TrainingCounts, width: int, glyphs: GlyphSet
) -> list[Content]:
    """The first and the newest evaluations, each with a bar."""
    chosen = found if len(found) <= SHOWN else (found[0], *found[-SHOWN + 1 :])
    top = max([event.high for event in chosen] + [0.05])
    room = max(min(width - 57 - _WHEN, 30), 0)
    items = max([len(f" {event.items} items") for event in chosen], default=0)
    gain = max(min(44, width - _WHEN - 2 - items), 20)
    return [
        Content.assemble(
            (f"{counts.at(event.round).when:<{_WHEN}}  ", "$muted"),
            (f"{format_gain(event, gain):<{gain}}", "bold"),
            draw_bar(event.pass_at_1 / top, room, glyphs, "$chart-local") if room >= 8 else "",
            (f" {event.items} items", "$muted"),
        )
        for event in chosen
    ]


def task_score_rows(event: Evaluated | None, width: int, glyphs: GlyphSet) -> list[Content]:
    """The held-out result of every task in the newest evaluation, with its interval."""
    if event is None:
        return []
    room = max(min(width - 58, 30), 0)
    return [
        Content.assemble(
            fit_width(plain_text(score.task, 60), 26),
            f" {100 * score.pass_at_1:5.1f} %",
            (f"  {f'({100 * score.low:.1f} to {100 * score.high:.1f})':<16}", "$muted"),
            draw_bar(score.pass_at_1, room, glyphs, "$chart-local") if room >= 8 else "",
            (" shortcut" if score.shortcut else "", "$warning"),
        )
        for score in event.tasks
    ]


def _checkpoint(path: Path, counts: TrainingCounts, now: float) -> Content:
    try:
        when = format_age(now - path.stat().st_mtime)
    except OSError:  # removed meanwhile
        return Content(path.name)
    number = rounds_of(path)
    return Content.assemble(f"{number:>7}  {counts.at(number).when:<{_WHEN}}", (f"  {when} ago", "$muted"))


def _settings(one: ModelOverview, width: int) -> list[Content]:
    model = one.model
    return [
        Content.styled("What it is", "bold"),
        labelled_value("made from", model.record.base, width),
        labelled_value("trained", _how(one), width),
        *([labelled_value("computed", one.story.computed, width)] if one.story.computed else []),
        labelled_value("tasks", tasks_of(model.config), width),
        labelled_value("folder", str(model.folder), width),
    ]


# An opened model: its chart with every change marked, its history, evaluations by task, checkpoints.


class ModelScreen(ModelKeys, ChartKeys):
    """An opened model. Esc closes the screen."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "close", "close", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#whole"

    def __init__(self, one: ModelOverview, shelf: ModelListing) -> None:
        super().__init__()
        self._one, self.shelf = one, shelf

    @property
    def chosen(self) -> ModelOverview | None:
        """The selected model."""
        return self._one

    def body(self) -> Iterable[Widget]:
        """See the class."""
        yield Chart(plain_text(self._one.model.name, 40), self.glyphs, id="model-chart")
        with VerticalScroll(id="whole", classes="box"):
            yield Static("", id="whole-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """The keys of this screen."""
        return [("Esc", "back", "screen.close"), *super().own_keys(state)]

    def on_mount(self) -> None:
        """Start reading."""
        self.query_one("#whole").border_subtitle = key_hint(*MORE)

    def on_resize(self) -> None:
        """Redraw for the new size."""
        super().on_resize()
        self.call_after_refresh(self._show)

    def fill(self) -> None:
        """Draw the model's current data; close if the model is gone."""
        id = self._one.model.record.id
        overview = next((model for model in self.shelf.models if model.model.record.id == id), None)
        if overview is None:
            self.action_close()
            return
        self._one = overview
        self._show()

    def _show(self) -> None:
        overview, box = self._one, self.query_one("#whole", VerticalScroll)
        box.border_title = Content.styled(plain_text(overview.model.name, 60), "bold")
        width = max(box.scrollable_content_region.width, 40)
        text = model_details(overview, self.dashboard.feed.now(), width, self.glyphs)
        self.query_one("#whole-text", Static).update(text)
        lines, marks, clock = compare.of_one(overview.story)
        training = overview.model.record.id == self.shelf.training
        waiting = "Waiting for the first round." if training else "No round yet. Press c: the node trains this model."
        self.query_one(Chart).show(
            lines,
            marks,
            waiting,
            reward_title(lines, plain_text(overview.model.name, 40)),
            clock,
            overview.story.counts,
        )

    def action_close(self) -> None:
        """Back to where it was opened from."""
        if self.is_current:
            self.dismiss(None)


# Screen 4, My models: the list of models and what they gained, and everything that an owner can do with one.


class ModelsScreen(ModelKeys):
    """The list of models. Reads the disk through the actions, in workers, never on the event loop."""

    AUTO_FOCUS: ClassVar[str | None] = "#models"
    _kept = ""
    """Id of the model last under the cursor."""

    def body(self) -> Iterable[Widget]:
        """See the class."""
        with Vertical(id="shelf", classes="box"):
            yield Static("", id="models-head", markup=False)
            yield ChoiceList(id="models", markup=False)
        with Vertical(id="open"):
            yield Chart("Reward", self.glyphs, id="preview")
            with VerticalScroll(id="facts", classes="box"):
                yield Static("", id="facts-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        """The keys of this screen."""
        return [("Enter", "open", "screen.open"), *super().own_keys(state)]

    def on_mount(self) -> None:
        """Start reading."""
        self.query_one("#shelf").border_title = Content.styled("My models", "bold")
        self.query_one("#shelf").border_subtitle = key_hint(*MORE)

    def on_resize(self) -> None:
        """Redraw for the new size, once the list has been resized too."""
        super().on_resize()
        self.fill()
        self.call_later(self.fill)

    # Showing

    def complain(self, error: Exception) -> None:
        """Show the error in place of the model."""
        self._tell(Content.styled(plain_text(str(error), 400), "$warning"))

    @property
    def chosen(self) -> ModelOverview | None:
        """The selected model."""
        place = self.query_one("#models", OptionList).highlighted
        return self.shelf.models[place] if place is not None and place < len(self.shelf.models) else None

    def fill(self) -> None:
        """Draw the list."""
        listing, models = self.query_one("#models", OptionList), self.shelf.models
        width, now = max(listing.scrollable_content_region.width, 60), self.dashboard.feed.now()
        if self.shelf is ModelKeys.shelf:  # nothing was read yet
            self._tell(Content.styled("Reading your models …", "$muted"))
            return
        self.query_one("#shelf").border_title = Content.styled(f"My models ({len(models)})", "bold")
        self.query_one("#models-head", Static).update(column_header(width) if models else "")
        prompts = [model_row(m, m.model.record.id == self.shelf.training, now, width, self.glyphs) for m in models]
        listing.set_options([Option(prompt) for prompt in prompts])
        if not models:
            text = "There is no model yet. Press n to make the first one: it starts from a base and is trained here."
            if (state := self.dashboard.state).state == "starting" and state.since and not state.gone:
                text = "The node is making the first model; it is listed here in a moment."
            self.query_one("#facts", VerticalScroll).border_title = ""
            self._tell(Content("\n").join([Content.styled(text, "$muted"), *self._problems()]))
            return
        places = [place for place, m in enumerate(models) if m.model.record.id == self._kept]
        listing.highlighted = places[0] if places else 0
        self._describe()

    def on_option_list_option_highlighted(self) -> None:
        """Describe the model under the cursor."""
        self._describe()

    def made(self) -> None:
        """Move the cursor to the newest model."""
        self.query_one("#models", OptionList).highlighted = None
        self._kept = ""

    def _describe(self) -> None:
        overview = self.chosen
        if overview is None:
            return
        self._kept = overview.model.record.id
        box = self.query_one("#facts", VerticalScroll)
        box.border_title = Content.styled(plain_text(overview.model.name, 60), "bold")
        width = max(box.scrollable_content_region.width, 40)
        if self.big:
            text = model_details(overview, self.dashboard.feed.now(), width, self.glyphs)
            lines, marks, clock = compare.of_one(overview.story)
            name = reward_title(lines, plain_text(overview.model.name, 40))
            waiting = "No round yet. Press c: the node trains this model."
            self.query_one(Chart).show(lines, marks, waiting, name, clock, overview.story.counts)
        else:
            text = model_summary(overview, overview.model.record.id == self.shelf.training, width, self.glyphs)
        self._tell(Content("\n").join([text, *self._problems()]))

    def _problems(self) -> list[Content]:
        return [Content.styled(plain_text(problem, 400), "$warning") for problem in self.shelf.problems]

    def _tell(self, text: Content) -> None:
        self.query_one("#facts-text", Static).update(text)

    # Opening

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Open the model under the cursor."""
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Open the model under the cursor."""
        if (overview := self.chosen) is not None:
            self.app.push_screen(ModelScreen(overview, self.shelf))
