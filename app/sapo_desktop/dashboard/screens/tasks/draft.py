"""The wizard, second step: what the file says, how it is asked and judged, and what is wrong with it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import PurePath
from typing import TYPE_CHECKING, ClassVar, get_args

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.widgets import Input, Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog, Dialog
from sapo_desktop.dashboard.screens.tasks.measuring import SMALL, MeasuringScreen
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.dashboard.widgets.frame import Key, KeyBar
from sapo_desktop.errors import known
from sapo_desktop.services.tasks.wizard.interface import Answers, Made, Seen
from sapo_swarm.tasks.own.spec import Extract

if TYPE_CHECKING:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

_SETTLED_S = 0.15
"""An answer that stays so long is looked at."""
_KEYS: list[Key] = [
    ("Enter", "store and try", "screen.accept"),
    ("arrows", "change", ""),
    ("PgDn", "read on", "screen.page(1)"),
    ("F1", "help", "app.help"),
    ("Esc", "back", "screen.cancel"),
]
_WHERE = {
    "tags": "between <answer> and </answer>, as it is asked",
    "last_line": "the last line",
    "last_number": "the last number",
    "json": "the last JSON object or list",
    "whole": "everything that it writes",
}
EXTRACTS = tuple((name, _WHERE[name]) for name in get_args(Extract))


class DraftScreen(Dialog[Made | None]):
    """Every answer is proposed; each change looks at the file again."""

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
        """base: the model that was chosen already; "" = the first on offer."""
        super().__init__()
        self._actions = actions
        self._asked = Answers(path, base=base)
        self._seen: Seen | None = None
        self._proposed = ""  # where the answer stands, if the person says nothing

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box wizard"):
            yield from self._fields()
            yield KeyBar(_KEYS)

    def _fields(self) -> ComposeResult:
        none = (("", "one moment …"),)
        with VerticalScroll(can_focus=False):
            yield Static(
                Content.styled(f"A task of my own: {plain(PurePath(self._asked.path).name, 60)}", "bold"), markup=False
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
            yield Choice("Read from", EXTRACTS, id="extract")
            yield Choice("Judged by", none, id="verifier")
            yield Choice("Model", none, id="base")
            yield Static("", id="said", markup=False)
            yield Static("", id="rows", markup=False)

    def on_mount(self) -> None:
        """Read the file."""
        self._look()

    # Looking

    def on_choice_changed(self) -> None:
        """Look again with the other answer."""
        self._look()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Look again with the other text."""
        if self._seen is not None and event.value != getattr(self._asked, str(event.input.id)):
            self._look()

    def _answers(self) -> Answers:
        if self._seen is None:
            return self._asked
        found = Answers(
            path=self._asked.path,
            name=self.query_one("#name", Input).value.strip(),
            question=self._value("question"),
            answer=self._value("answer"),
            prompt=self.query_one("#prompt", Input).value.strip(),
            extract=self._value("extract") if self._value("extract") != self._proposed else "",
            verifier=self._value("verifier"),
            base=self._value("base"),
        )
        if found.answer != self._asked.answer:  # other answers are judged in another way
            found = replace(found, verifier="")
        return found

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
        asked = self._answers()
        try:
            if first:
                bases = await self._actions.models()
                self._offer("base", bases, asked.base)
                asked = Answers(asked.path, base=self._value("base"))
            seen = await self._actions.look(asked)
        except known() as error:
            self.complain(str(error))
            if first:
                self._unreadable()
            return
        self._asked, self._seen = seen.answers, seen
        self._proposed = seen.extract or self._proposed
        self._show(seen, first)

    def _show(self, seen: Seen, first: bool) -> None:
        found = seen.answers
        columns = tuple((name, "") for name in seen.columns)
        for name, value in (("question", found.question), ("answer", found.answer)):
            self.query_one(f"#{name}", Choice).display = bool(columns)
            if columns:
                self._offer(name, columns, value or self._value(name))
        self.query_one("#wording").display = bool(columns)
        self._offer("extract", EXTRACTS, found.extract)
        self._offer("verifier", seen.verifiers, found.verifier)
        if first:
            self.query_one("#name", Input).value = found.name
            self.query_one("#prompt", Input).value = found.prompt
        count = len(seen.said)
        heading = f"{count} thing{'s' if count != 1 else ''} to look at" if count else "Nothing to warn of."
        self.query_one("#complaint", Static).update(Content(plain(seen.summary[0], 300)))
        self.query_one("#rows", Static).update(_rows(seen.asked, seen.rows))
        said = [Content.styled(heading, "bold" if count else "$muted")]
        said += [Content.assemble(("- ", "$warning"), plain(line, 600)) for line in seen.said]
        self.query_one("#said", Static).update(Content("\n").join(said))

    def _offer(self, name: str, answers: Sequence[tuple[str, str]], value: str) -> None:
        """Put these answers on offer, the one of that value chosen."""
        choice = self.query_one(f"#{name}", Choice)
        choice.answers = tuple(answers)
        choice.place = next((place for place, (one, _) in enumerate(answers) if one == value), 0)
        choice.refresh()

    def _unreadable(self) -> None:
        """Nothing to answer, nothing to store: only the way back is left."""
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
        """again: a task that has the name already is replaced."""
        answers = self._answers()
        try:
            seen = await self._actions.look(answers)
            if not again and await self._actions.taken(seen.answers.name):
                self._ask_to_replace(seen.answers.name)
                return
            name = await self._actions.keep(answers, again)
        except known() as error:
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

    def _done(self, made: Made | None) -> None:
        if made is not None:
            self.dismiss(made)


def _rows(asked: Sequence[str], rows: Sequence[tuple[str, str]]) -> Content:
    """The first question as a model will read it, and the first rows with their answers."""
    lines = [Content.styled("The model reads, of row 1:", "$muted")] if asked else []
    lines += [Content.assemble(("| ", "$muted"), plain(line, 600)) for line in asked]
    lines += [Content("")] if asked else []
    for number, (text, answer) in enumerate(rows, 1):
        lines += [
            Content.assemble((f"{number}. ", "$muted"), plain(text, 300)),
            Content.assemble(("   answer: ", "$muted"), (plain(answer, 300), "bold")),
        ]
    return Content("\n").join(lines)
