"""Screen 4's forms and dialogs: a new model, a name, a checkpoint to go back to, an export at work."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from typing import ClassVar

from textual import work
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import plain_text, wrap_text
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.dashboard.widgets.frame import ChoiceList
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.models.screen.interface import (
    ExportChoice,
    KeptTable,
    NewModel,
    NewModelInfo,
    ProgressUpdate,
)

# Screen 4's forms: a new model, a name, a checkpoint to go back to.


class _Form(Dialog[str | None]):
    """A form that stays open with the reason if its input is refused. Returns a sentence about what was done."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "accept", "go", show=False)]
    AUTO_FOCUS: ClassVar[str | None] = "#name"
    WAITING: ClassVar[str] = "One moment …"

    def attempt(self) -> Awaitable[str]:
        """Carry out the form's action. Raises USER_ERRORS."""
        raise NotImplementedError

    def on_input_submitted(self) -> None:
        """Enter in a field."""
        self.action_accept()

    def action_accept(self) -> None:
        """Do it, or say why it is refused."""
        self.complain(self.WAITING, "$muted")
        self._try()

    @work(name="form", group="form", exclusive=True)
    async def _try(self) -> None:
        try:
            sentence = await self.attempt()
        except USER_ERRORS as error:
            self.complain(str(error))
        else:
            self.dismiss(sentence)


class NewModelDialog(_Form):
    """Asks for a name, a base and a difficulty. Everything else comes from the settings for new models."""

    WAITING: ClassVar[str] = "One moment: a node that is at work finishes its round first …"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "app.focus_next", "next field", show=False, priority=True),
        Binding("up", "app.focus_previous", "previous field", show=False, priority=True),
    ]

    def __init__(self, info: NewModelInfo, make: Callable[[NewModel], Awaitable[str]]) -> None:
        super().__init__()
        self._info, self._make = info, make

    def compose(self) -> ComposeResult:
        """The fields and the key line."""
        with Vertical(classes="box dialog form"):
            yield Static(Content.styled("New model", "bold"), markup=False)
            yield Static(
                "It starts from a base and is trained at once. Your other models stay as they are.", markup=False
            )
            with Horizontal(classes="field"):
                yield Static("Name", markup=False)
                yield Input(self._info.name, id="name", compact=True, max_length=40)
            yield Choice("Base", self._info.bases, id="base")
            with Horizontal(classes="field"):
                yield Static("or", markup=False)
                yield Input(
                    placeholder="a folder, a GGUF file, or a hub id such as owner/name", id="other", compact=True
                )
            yield Choice("Tasks", self._info.questions, id="questions")
            yield Static("", id="complaint", markup=False)
            yield Static(
                key_hint(("Enter", "make it and train it"), ("arrows", "change"), ("Esc", "cancel")), markup=False
            )

    def attempt(self) -> Awaitable[str]:
        """See the class."""
        other = self.query_one("#other", Input).value.strip()
        base = other or self.query_one("#base", Choice).value
        name = self.query_one("#name", Input).value.strip()
        questions = self.query_one("#questions", Choice)
        own = questions.place < self._info.own
        return self._make(
            NewModel(name, base, tasks=(questions.value,)) if own else NewModel(name, base, questions.value)
        )


class NameDialog(_Form):
    """Asks for one name, for renaming or duplicating."""

    def __init__(self, question: str, detail: str, name: str, act: Callable[[str], Awaitable[str]]) -> None:
        super().__init__()
        self._question, self._detail, self._called, self._act = question, detail, name, act

    def compose(self) -> ComposeResult:
        """The fields and the key line."""
        with Vertical(classes="box dialog form"):
            yield Static(Content.styled(plain_text(self._question, 120), "bold"), markup=False)
            yield Static(plain_text(self._detail, 300), markup=False)
            yield Input(self._called, id="name", compact=True, max_length=40)
            yield Static("", id="complaint", markup=False)
            yield Static(key_hint(("Enter", "do it"), ("Esc", "cancel")), markup=False)

    def attempt(self) -> Awaitable[str]:
        """See the class."""
        return self._act(self.query_one("#name", Input).value.strip())


class KeptStatesDialog(Dialog[int | None]):
    """The kept checkpoints of a model with their held-out results. Returns the round of the chosen one, None for the
    current state."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "cancel", show=False)]

    def __init__(self, name: str, states: KeptTable) -> None:
        super().__init__()
        self._called, self._states = name, states

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog kept"):
            yield Static(
                Content.styled(plain_text(f"Go back to a kept state of {self._called}", 100), "bold"), markup=False
            )
            yield Static(Content.styled(self._states.head, "$muted"), id="kept-head", markup=False)
            yield ChoiceList(*(Option(Content(plain_text(row.line, 200))) for row in self._states.rows))
            yield Static(Content.styled(self._states.legend, "$muted"), id="kept-legend", markup=False)
            yield Static(key_hint(("Enter", "go back to it"), ("arrows", "choose"), ("Esc", "cancel")), markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Return the round of the chosen row; the current state is listed only for comparison."""
        event.stop()
        row = self._states.rows[event.option_index]
        if row.current:
            self.query_one("#kept-legend", Static).update(
                Content.styled("The model has these weights now. Choose another state.", "$warning")
            )
        else:
            self.dismiss(row.round)


# Writing an export: current step, progress and result. Esc stops it.


class ExportScreen(Dialog[None]):
    """Shows an export's progress. Closing it early leaves no partial files."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close", show=False),
        Binding("enter", "close_when_done", "close", show=False),
    ]
    _done = False

    def __init__(self, name: str, choice: ExportChoice, work: AsyncGenerator[ProgressUpdate, None]) -> None:
        super().__init__()
        self._called, self._choice, self._steps = name, choice, work

    def compose(self) -> ComposeResult:
        """The fields and the key line."""
        with Vertical(classes="box dialog form"):
            title = f"{self._called} as {self._choice.label}"
            yield Static(Content.styled(plain_text(title, 100), "bold"), markup=False)
            yield Static("Starting …", id="told", markup=False)
            yield Static(key_hint(("Esc", "stop")), id="keys", markup=False)

    def on_mount(self) -> None:
        """Start the export."""
        self.run_worker(self._follow(), name="export", exit_on_error=True)

    async def _follow(self) -> None:
        output = self.query_one("#told", Static)
        try:
            async with aclosing(self._steps) as steps:
                async for step in steps:
                    lines = step.result or (step.progress,)
                    width = output.size.width or 60
                    wrapped = [row for line in lines for row in wrap_text(plain_text(line, 800), width)]
                    output.update(Content("\n").join(map(Content, wrapped)))
        except USER_ERRORS as error:
            output.update(Content.styled(plain_text(str(error), 600), "$warning"))
        self._done = True
        self.query_one("#keys", Static).update(key_hint(("Esc", "close")))

    def action_close_when_done(self) -> None:
        """Close, once it is written. Before that Enter does nothing."""
        if self._done:
            self.dismiss(None)

    def action_close(self) -> None:
        """Back to where it was opened from."""
        self.dismiss(None)
