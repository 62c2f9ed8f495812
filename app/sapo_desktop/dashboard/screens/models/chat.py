"""Base and trained model side by side: one question, two answers, word by word."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import Input, Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.errors import known
from sapo_desktop.services.models.pieces import CUT, Said

if TYPE_CHECKING:
    from sapo_desktop.services.models.screen.conversation import Conversation

KEPT = 20
"""Questions that stay on the screen."""
_WAITS = (
    "Both answer greedily (temperature 0). Each question stands alone. A node that trains waits until you close this."
)
LONGEST = 20_000
"""Letters of an answer that are shown."""
_Exchange = tuple[str, list[Said]]
"""A question and the two answers to it."""


class ChatScreen(BaseScreen):
    """Esc closes it: the memory is free again, and a node that worked goes on."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False, priority=True),
        Binding("f3", "rate(True)", "good", show=False, priority=True),
        Binding("f4", "rate(False)", "bad", show=False, priority=True),
    ]
    AUTO_FOCUS: ClassVar[str | None] = "#question"

    def __init__(self, id: str, name: str) -> None:
        super().__init__()
        self._model, self._called = id, name
        self._line: Conversation | None = None
        self._said: list[_Exchange] = []
        self._complete = self._answering = False

    def body(self) -> Iterable[Widget]:
        """See the class."""
        with Horizontal(id="answers"):
            for place, title in enumerate(("base", self._called)):
                with VerticalScroll(id=f"side-{place}", classes="box", can_focus=False) as box:
                    box.border_title = Content.styled(plain(title, 40), "bold")
                    yield Static("", id=f"text-{place}", markup=False)
        yield Input(placeholder="loading both models …", id="question")

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - as every screen
        """The keys that count on this screen."""
        thumbs: list[Key] = [("F3", "good answer", "screen.rate(True)"), ("F4", "bad answer", "screen.rate(False)")]
        return [("Enter", "ask", ""), *(thumbs if self._ratable else []), ("Esc", "close", "screen.close")]

    def typing_keys(self, state: DashboardState) -> list[Key]:
        """The same: there is nothing but the field."""
        return self.own_keys(state)

    @property
    def _ratable(self) -> bool:
        """The last question is answered in full by the trained model."""
        return self._complete and self.dashboard.task_actions is not None

    def on_mount(self) -> None:
        """Begin to read."""
        self.run_worker(self._open(), name="chat", group="chat", exit_on_error=True)

    async def _open(self) -> None:
        actions = self.dashboard.model_actions
        assert actions is not None
        try:
            self._line = await actions.chat(self._model)
        except known() as error:
            self._complain(error)
            return
        self.query_one("#text-0", Static).update(Content.styled(_WAITS, "$muted"))
        self.query_one("#text-1", Static).update(Content.styled(plain(self._line.early, 300), "$warning"))
        field = self.query_one("#question", Input)
        field.placeholder = "ask something of the kind it is trained on, then Enter"

    @property
    def ready(self) -> bool:
        """Enter asks: both models are read, and answer nothing else. The field takes letters meanwhile; without it they would be
        keys of the dashboard."""
        return self._line is not None and not self._answering

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ask what was typed."""
        event.stop()
        if event.value.strip() and self._line is not None and self.ready:
            event.input.value = event.input.value.removeprefix(event.value)  # what was typed behind Enter stays
            self._answering = True
            self._complete = False  # before the worker begins: a thumb now would be for an answer that is not there
            self._said = [*self._said[-KEPT + 1 :], (event.value.strip(), [Said(0, ""), Said(1, "")])]
            self.run_worker(self._ask(self._line, event.value), name="ask", group="chat", exit_on_error=True)

    async def _ask(self, line: Conversation, question: str) -> None:
        self._draw()
        try:
            async for said in line.ask(question):
                self._said[-1][1][said.of] = said
                self._draw()
        except known() as error:
            self._complain(error)
            return
        self._answering, self._complete = False, True

    def action_rate(self, good: bool) -> None:
        """The trained model's last answer was good, or bad; m makes a task of such answers."""
        if self._ratable:
            self.run_worker(self._rate(good), name="rate", group="rate", exit_on_error=True)

    async def _rate(self, good: bool) -> None:
        actions = self.dashboard.task_actions
        assert actions is not None
        question, answers = self._said[-1]
        await self.dashboard.told(actions.rate(self._called, question, answers[1].text, good))

    def _draw(self) -> None:
        for place in (0, 1):
            rows = []
            for question, answers in self._said:
                said = answers[place]
                rows += [Content.styled(f"> {plain(question, 400)}", "$muted")]
                rows += [Content(plain(said.text, LONGEST, lines=True) or "…")]
                rows += [Content.styled(CUT, "$muted")] * said.cut + [Content("")]
            self.query_one(f"#text-{place}", Static).update(Content("\n").join(rows))
            self.query_one(f"#side-{place}", VerticalScroll).scroll_end(animate=False)

    def _complain(self, error: Exception) -> None:
        self.query_one("#text-0", Static).update(Content.styled(plain(str(error), 600), "$warning"))

    def action_close(self) -> None:
        """Close; a node that worked goes on. The screen goes at once, the processes are given their time."""
        line, self._line = self._line, None
        self.workers.cancel_node(self)
        if line is not None:
            self.app.run_worker(line.close(), name="close-chat", exit_on_error=False)
        with suppress(NoMatches):
            self.dismiss(None)
