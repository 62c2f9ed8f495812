"""The wizard that makes a task from a file: choose the file, set how it is read and judged, try the base on it."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, get_args

from rich.cells import cell_len, set_cell_size
from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from sapo_desktop.dashboard.look import base_name, plain_text
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog, Dialog
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.dashboard.widgets.frame import ChoiceList, Key, KeyBar
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.tasks.wizard.interface import (
    FileChoice,
    MeasurementStep,
    TaskMeasurement,
    TaskPreview,
    WizardAnswers,
    WizardResult,
)
from sapo_swarm.tasks.own.spec import Extract

if TYPE_CHECKING:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

# Wizard, third step: how the untrained model does on the task, and what to expect from training.

SMALL = [(0, "-small"), (20, "-roomy")]
"""In a low terminal the wizard has no frame and no gaps."""


class MeasuringScreen(Dialog[WizardResult | None]):
    """The measurement, which Esc stops first. The task is stored either way."""

    VERTICAL_BREAKPOINTS = SMALL
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "train", "train", show=False, priority=True),
        Binding("down,pagedown", "scroll(1)", "down", show=False),
        Binding("up,pageup", "scroll(-1)", "up", show=False),
    ]

    def __init__(self, actions: HomeTasks, name: str, answers: WizardAnswers) -> None:
        """name: the stored task; answers: what it was made from, and the base to try."""
        super().__init__()
        self._actions, self._task_name, self._source, self._base = actions, name, answers.path, answers.base
        self._work: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box wizard"):
            with VerticalScroll(can_focus=False):
                yield Static(Content.styled(f"Task {plain_text(self._task_name, 60)} is stored", "bold"), markup=False)
                yield Static("Starting …", id="told", markup=False)
            yield KeyBar([])

    def on_mount(self) -> None:
        """Start the measurement."""
        self.query_one(KeyBar).put([("Esc", "stop measuring", "screen.cancel")])
        self._work = self.run_worker(self._follow(), name="measure", exit_on_error=True)

    def _steps(self) -> AsyncGenerator[MeasurementStep, None]:
        return self._actions.measure(self._task_name, self._base, self._source)

    async def _follow(self) -> None:
        output = self.query_one("#told", Static)
        who = base_name(self._base)
        intro = (
            f"Asking {who} a few training questions of the task, before any training. If a node is training, it waits."
        )
        try:
            async with aclosing(self._steps()) as steps:
                async for step in steps:
                    if step.measured is not None:
                        output.update(_found(step.measured))
                    else:
                        output.update(Content(f"{plain_text(intro, 300)}\n\n{plain_text(step.progress, 200)}"))
        except USER_ERRORS as error:
            output.update(Content.styled(plain_text(str(error), 600), "$warning"))
        self._finished()

    def _finished(self) -> None:
        self._work = None
        train: Key = ("Enter", f"train {plain_text(base_name(self._base), 60)} on it", "screen.train")
        self.query_one(KeyBar).put([train, ("Esc", "change it", "screen.cancel")])

    def action_train(self) -> None:
        """End the wizard with this task."""
        if self._work is None:
            self.dismiss(WizardResult(self._task_name, self._base))

    def action_cancel(self) -> None:
        """Stop the measuring; where it is done, close."""
        if self._work is None:
            self.dismiss(None)
            return
        self._work.cancel()
        self.query_one("#told", Static).update("Measuring was stopped. Nothing is known of what to expect.")
        self._finished()

    def action_scroll(self, lines: int) -> None:
        """Read on, in a small terminal."""
        self.query_one(VerticalScroll).scroll_relative(y=lines, animate=False)


def _found(measured: TaskMeasurement) -> Content:
    """What to expect first, then the shortcuts."""
    lines = [
        Content.styled("What to expect", "bold"),
        *(Content(plain_text(text, 600)) for text in measured.expectation),
    ]
    lines += [Content(""), Content.styled("Shortcuts", "bold")]
    lines += [Content(plain_text(text, 600)) for text in measured.shortcuts]
    lines += [Content.assemble(("- ", "$warning"), plain_text(text, 600)) for text in measured.warnings]
    return Content("\n").join(lines)


# Wizard, second step: the file's content, how its questions are asked and judged, and what is wrong with it.

_SETTLED_S = 0.15
"""Seconds that an answer must stay unchanged before the file is read again."""
_DRAFT_KEYS: list[Key] = [
    ("Enter", "store and try", "screen.accept"),
    ("arrows", "change", ""),
    ("PgDn", "read on", "screen.page(1)"),
    ("F1", "help", "app.help"),
    ("Esc", "back", "screen.cancel"),
]
_WHERE = {
    "tags": "between <answer> and </answer>, as it is asked",
    "last_line": "its last line is the answer",
    "last_number": "its last number is the answer",
    "json": "its last JSON object or list is the answer",
    "whole": "all that it writes is the answer",
}
EXTRACTS = tuple((name, _WHERE[name]) for name in get_args(Extract))


class DraftScreen(Dialog[WizardResult | None]):
    """Every answer has a proposal; each change reads the file again."""

    AUTO_FOCUS: ClassVar[str | None] = "#name"
    VERTICAL_BREAKPOINTS = SMALL
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept", "go on", show=False),
        Binding("down", "app.focus_next", "next field", show=False, priority=True),
        Binding("up", "app.focus_previous", "previous field", show=False, priority=True),
        Binding("pagedown", "page(1)", "down", show=False, priority=True),
        Binding("pageup", "page(-1)", "up", show=False, priority=True),
    ]

    def __init__(self, actions: HomeTasks, path: str, base: str = "") -> None:
        """base: the model already chosen; "" = the first one offered."""
        super().__init__()
        self._actions = actions
        self._asked = WizardAnswers(path, base=base)
        self._seen: TaskPreview | None = None
        self._proposed = ""  # how the answer is extracted, unless the person chooses

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box wizard"):
            yield from self._fields()
            yield KeyBar(_DRAFT_KEYS)

    def _fields(self) -> ComposeResult:
        none = (("", "one moment …"),)
        with VerticalScroll(can_focus=False):
            yield Static(
                Content.styled(f"A task of my own: {plain_text(PurePath(self._asked.path).name, 60)}", "bold"),
                markup=False,
            )
            yield Static("Reading the file …", id="complaint", markup=False)
            with Horizontal(classes="field"):
                yield Static("Name", markup=False)
                yield Input("", id="name", compact=True, max_length=40)
            yield Choice("Question", none, id="question")
            yield Choice("Answer", none, id="answer")
            with Horizontal(classes="field", id="wording"):
                yield Static("Wording", markup=False)
                yield Input(
                    placeholder="as proposed below; or a text with {column} in it",
                    id="prompt",
                    compact=True,
                    max_length=4000,
                )
            with Horizontal(classes="field", id="keeping"):
                yield Static("Rules", markup=False)
                yield Input(
                    placeholder="no answers? at most 8 words; contains {column}; ends with !",
                    id="rules",
                    compact=True,
                    max_length=1000,
                )
            yield Choice("Read from", EXTRACTS, id="extract")
            yield Choice("Judged by", none, id="verifier")
            yield Choice("Model", none, id="base")
            yield Static("", id="said", markup=False)
            yield Static("", id="rows", markup=False)

    def on_mount(self) -> None:
        """Read the file."""
        self._look()

    # Reading the file

    def on_choice_changed(self) -> None:
        """Read again with the new choice."""
        self._look()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Read again with the new text."""
        if self._seen is not None and event.value != getattr(self._asked, str(event.input.id)):
            self._look()

    def _answers(self) -> WizardAnswers:
        if self._seen is None:
            return self._asked
        answers = WizardAnswers(
            path=self._asked.path,
            name=self.query_one("#name", Input).value.strip(),
            question=self._value("question"),
            answer=self._value("answer"),
            prompt=self.query_one("#prompt", Input).value.strip(),
            extract=self._value("extract") if self._value("extract") != self._proposed else "",
            verifier=self._value("verifier"),
            rules=self.query_one("#rules", Input).value.strip(),
            base=self._value("base"),
        )
        if answers.answer != self._asked.answer:  # a different answer column needs a different verifier
            answers = replace(answers, verifier="")
        return answers

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", Choice).value

    @work(name="look", group="look", exclusive=True)
    async def _look(self) -> None:
        with suppress(NoMatches):  # closed while the file was being read
            await self._read()

    async def _read(self) -> None:
        first = self._seen is None
        if not first:
            await asyncio.sleep(_SETTLED_S)
        answers = self._answers()
        try:
            if first:
                bases = await self._actions.models()
                if answers.base and answers.base not in dict(bases):  # typed in the first questions
                    bases = ((answers.base, "as you chose"), *bases)
                self._offer("base", bases, answers.base)
                answers = WizardAnswers(answers.path, base=self._value("base"))
            preview = await self._actions.look(answers)
        except USER_ERRORS as error:
            self.complain(str(error))
            if first:
                self._unreadable()
            return
        self._asked, self._seen = preview.answers, preview
        self._proposed = preview.extract or self._proposed
        self._show(preview, first)

    def _show(self, seen: TaskPreview, first: bool) -> None:
        proposed = seen.answers
        columns = tuple((name, "") for name in seen.columns)
        for name, value in (("question", proposed.question), ("answer", proposed.answer)):
            self.query_one(f"#{name}", Choice).display = bool(columns) and not (name == "answer" and proposed.rules)
            if columns:
                self._offer(name, columns, value or self._value(name))
        for name in ("wording", "keeping"):
            self.query_one(f"#{name}").display = bool(columns)
        self.query_one("#verifier").display = not proposed.rules
        self._offer("extract", EXTRACTS, proposed.extract)
        self._offer("verifier", seen.verifiers, proposed.verifier)
        if first:
            self.query_one("#name", Input).value = proposed.name
            self.query_one("#prompt", Input).value = proposed.prompt
            self.query_one("#rules", Input).value = proposed.rules
        count = len(seen.said)
        heading = f"{count} thing{'s' if count != 1 else ''} to look at" if count else "Nothing to warn of."
        self.query_one("#complaint", Static).update(Content(plain_text(seen.summary[0], 300)))
        self.query_one("#rows", Static).update(_rows(seen.asked, seen.rows))
        warnings = [Content.styled(heading, "bold" if count else "$muted")]
        warnings += [Content.assemble(("- ", "$warning"), plain_text(line, 600)) for line in seen.said]
        self.query_one("#said", Static).update(Content("\n").join(warnings))

    def _offer(self, name: str, answers: Sequence[tuple[str, str]], value: str) -> None:
        """Offer these answers, with the one of this value selected."""
        choice = self.query_one(f"#{name}", Choice)
        choice.answers = tuple(answers)
        choice.place = next((place for place, (offered, _) in enumerate(answers) if offered == value), 0)
        choice.refresh()

    def _unreadable(self) -> None:
        """Hide the fields: there is nothing to answer or store, only the way back."""
        for field in self.query("Choice, .field"):
            field.display = False
        self.query_one(KeyBar).put([("F1", "help", "app.help"), ("Esc", "another file", "screen.cancel")])

    def action_page(self, pages: int) -> None:
        """Scroll by a page: what is below the fields takes no focus."""
        box = self.query_one(VerticalScroll)
        box.scroll_relative(y=pages * max(box.scrollable_content_region.height - 1, 1), animate=False)

    # Going on

    def action_accept(self) -> None:
        """Store the task; one that has the name already is replaced after a yes only."""
        if self._seen is not None:
            self._store(False)

    def on_input_submitted(self) -> None:
        """Enter in a field."""
        self.action_accept()

    @work(name="store", group="store", exclusive=True)
    async def _store(self, again: bool) -> None:
        """again: replace a task that has the name already."""
        answers = self._answers()
        try:
            preview = await self._actions.look(answers)
            if not again and await self._actions.taken(preview.answers.name):
                self._ask_to_replace(preview.answers.name)
                return
            name = await self._actions.keep(answers, again)
        except USER_ERRORS as error:
            self.complain(str(error))
            self.query_one(VerticalScroll).scroll_home(animate=False)
            return
        screen = MeasuringScreen(self._actions, name, answers)
        self.app.push_screen(screen, self._done)

    def _ask_to_replace(self, name: str) -> None:
        def chosen(yes: bool | None) -> None:
            if yes:
                self._store(True)

        detail = "it is kept in replaced/tasks of the data folder; models trained on it stay"
        question = f"There is a task {name} already"
        self.app.push_screen(ChoiceDialog(question, [("Replace it", detail, True)], careful=True), chosen)

    def _done(self, made: WizardResult | None) -> None:
        if made is not None:
            self.dismiss(made)


def _rows(asked: Sequence[str], rows: Sequence[tuple[str, str]]) -> Content:
    """The first question as the model will read it, and the first rows with their answers."""
    lines = [Content.styled("The model reads, for example:", "$muted")] if asked else []
    lines += [Content.assemble(("| ", "$muted"), plain_text(line, 600)) for line in asked]
    lines += [Content("")] if asked else []
    for text, answer in rows:
        lines += [
            Content.assemble(("- ", "$muted"), plain_text(text, 300)),
            Content.assemble(("  answer: ", "$muted"), (plain_text(answer, 300), "bold")),
        ]
    return Content("\n").join(lines)


# Wizard, first step: the file. A path to type, and a list of what is there.

_PLACES_KEYS: list[Key] = [
    ("type", "a path", ""),
    ("arrows", "choose", ""),
    ("Enter", "open", "screen.open"),
    ("F1", "help", "app.help"),
    ("Esc", "cancel", "screen.cancel"),
]


class PlacesScreen(Dialog[WizardResult | None]):
    """Chooses the file. The field keeps the focus: letters narrow the list, arrows move in it, Enter opens the marked entry."""

    AUTO_FOCUS: ClassVar[str | None] = "#path"
    VERTICAL_BREAKPOINTS = SMALL
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "open", "open", show=False),
        Binding("down", "move(1)", "down", show=False, priority=True),
        Binding("up", "move(-1)", "up", show=False, priority=True),
        Binding("pagedown", "move(10)", "down", show=False, priority=True),
        Binding("pageup", "move(-10)", "up", show=False, priority=True),
    ]

    def __init__(self, actions: HomeTasks, base: str = "") -> None:
        """base: the model already chosen; "" = the first one offered."""
        super().__init__()
        self._actions, self._base = actions, base
        self._places: tuple[FileChoice, ...] = ()
        self._listed: str | None = None

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box wizard"):
            yield Static(Content.styled("A task of my own: which file?", "bold"), markup=False)
            yield Static(
                Content.styled("CSV, TSV, JSONL or Parquet: a row for each question, with its answer.", "$muted"),
                classes="more",
                markup=False,
            )
            yield Input(placeholder=f"{os.getcwd()}{os.sep}", id="path", compact=True, select_on_focus=False)
            yield ChoiceList(id="places", markup=False)
            yield Static("", id="complaint", markup=False)
            yield KeyBar(_PLACES_KEYS)

    def on_mount(self) -> None:
        """Show the folder in which the dashboard was started."""
        self.query_one("#places", OptionList).can_focus = False
        self._list("")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Narrow the list to what was typed."""
        self._list(event.value)

    def on_input_submitted(self) -> None:
        """Enter."""
        self.action_open()

    @work(name="places", group="places", exclusive=True)
    async def _list(self, typed: str) -> None:
        with suppress(NoMatches):  # closed while the folder was being read
            await self._read(typed)

    async def _read(self, typed: str) -> None:
        try:
            self._places = await self._actions.places(typed)
        except USER_ERRORS as error:
            self._places = ()
            self.complain(str(error))
        else:
            none = "No table begins so here." if not any(not place.folder for place in self._places) else ""
            self.complain(none, "$muted")
        listing = self.query_one("#places", OptionList)
        names = [plain_text(place.name, 200) for place in self._places]
        column = max((cell_len(name) for name in names if cell_len(name) <= 36), default=0)
        listing.set_options(
            Option(Content.assemble(set_cell_size(name, max(column, cell_len(name))), (f"  {place.detail}", "$muted")))
            for name, place in zip(names, self._places, strict=True)
        )
        listing.highlighted = 0 if self._places else None
        self._listed = typed

    def action_move(self, steps: int) -> None:
        """Another entry of the list."""
        listing = self.query_one("#places", OptionList)
        if self._places:
            listing.highlighted = min(max((listing.highlighted or 0) + steps, 0), len(self._places) - 1)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """A click opens what is under it."""
        event.stop()
        self.action_open()

    def action_open(self) -> None:
        """Go into the folder, or on with the file; without a mark, on with what was typed."""
        self._open()

    @work(name="places", group="places", exclusive=True)
    async def _open(self) -> None:
        typed = self.query_one("#path", Input).value
        if typed != self._listed:  # Enter was pressed before the list for the typed text was ready
            await self._read(typed)
        place = self.query_one("#places", OptionList).highlighted
        field = self.query_one("#path", Input)
        if place is None or place >= len(self._places):
            if typed := field.value.strip():
                from sapo_desktop.services.tasks.wizard.places import dropped_file

                self._look(dropped_file(typed) or typed)
            return
        chosen = self._places[place]
        if chosen.folder:
            field.value = chosen.path
            field.action_end()
        else:
            self._look(chosen.path)

    def _look(self, path: str) -> None:
        self.app.push_screen(DraftScreen(self._actions, path, self._base), self._done)

    def _done(self, made: WizardResult | None) -> None:
        if made is not None:
            self.dismiss(made)
