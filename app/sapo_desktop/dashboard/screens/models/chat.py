"""Base and trained model side by side: held-out questions of its tasks with their verdicts, or typed questions."""

from __future__ import annotations

from collections import deque
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from textual.binding import Binding, BindingType
from textual.containers import Horizontal, VerticalScroll
from textual.content import Content
from textual.css.query import NoMatches
from textual.widget import Widget
from textual.widgets import Input, Static

from sapo_desktop.dashboard.look import plain_text
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.models.pieces import ALL_ASKED, CUT, NEXT, ChatChunk, HeldOut, Marks, format_reward

if TYPE_CHECKING:
    from sapo_desktop.services.models.screen.actions import ChatProcess

KEPT = 20
"""Questions that stay on the screen."""
_WAITS = "Both answer greedily (temperature 0). Each question stands alone. If a node is training, it waits until you close this."
_ASK = "Enter: the next held-out question; or type your own"
_ASK_OWN = "ask something of the kind it is trained on, then Enter"
LONGEST = 20_000
"""How many characters of an answer are shown."""


@dataclass
class ChatExchange:
    """A question and both answers so far; for a held-out question also the correct answer and the verdicts."""

    question: str
    answers: list[ChatChunk] = field(default_factory=lambda: [ChatChunk(0, ""), ChatChunk(1, "")])
    held_out: HeldOut | None = None
    marks: Marks | None = None


class ChatScreen(BaseScreen):
    """The chat. Esc closes it: the memory is freed, and a node that was working resumes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "close", "close", show=False, priority=True),
        Binding("f3", "rate(True)", "good", show=False, priority=True),
        Binding("f4", "rate(False)", "bad", show=False, priority=True),
    ]
    AUTO_FOCUS: ClassVar[str | None] = "#question"

    def __init__(self, id: str, name: str) -> None:
        super().__init__()
        self._model, self._called = id, name
        self._line: ChatProcess | None = None
        self._said: list[ChatExchange] = []
        self._opening: tuple[list[Content], list[Content]] = ([], [])
        self._typed: deque[str] = deque()
        """Questions that wait until the models are loaded, or have stopped writing."""
        self._problem = ""
        self._tally: Marks | None = None
        self._more = False
        self._complete = self._answering = False

    def body(self) -> Iterable[Widget]:
        """See the class."""
        with Horizontal(id="answers"):
            for place, title in enumerate(("base", self._called)):
                with VerticalScroll(id=f"side-{place}", classes="box", can_focus=False) as box:
                    box.border_title = Content.styled(plain_text(title, 40), "bold")
                    yield Static("", id=f"text-{place}", markup=False)
        yield Input(placeholder="loading both models … you can type your question already", id="question")

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - as every screen
        """The keys of this screen."""
        thumbs: list[Key] = [("F3", "good answer", "screen.rate(True)"), ("F4", "bad answer", "screen.rate(False)")]
        enter: list[Key] = [("Enter", "ask or next" if self._more and not self._ratable else "ask", "")]
        return [*enter, *(thumbs if self._ratable else []), ("Esc", "close", "screen.close")]

    def typing_keys(self, state: DashboardState) -> list[Key]:
        """The same keys: the field always has the focus."""
        return self.own_keys(state)

    @property
    def _ratable(self) -> bool:
        """Whether the last question was typed by the person and fully answered by the trained model. Held-out questions are never
        rated: they must not become training rows."""
        own = self._said[-1:] and self._said[-1].held_out is None
        return bool(own) and self._complete and self.dashboard.task_actions is not None

    def on_mount(self) -> None:
        """Load both models."""
        self.run_worker(self._open(), name="chat", group="chat", exit_on_error=True)

    async def _open(self) -> None:
        actions = self.dashboard.model_actions
        assert actions is not None
        try:
            self._line = await actions.chat(self._model)
        except USER_ERRORS as error:
            self._complain(error)
            return
        self._more = not self._line.without_marks
        why = [Content.styled(plain_text(self._line.without_marks, 300), "$muted")] if not self._more else []
        early = [Content.styled(plain_text(self._line.early, 300), "$warning"), Content("")] if self._line.early else []
        wording = [Content.styled(plain_text(self._line.wording, 300), "$muted")] if self._line.wording else []
        self._opening = [Content.styled(_WAITS, "$muted"), *wording, *why, Content("")], early
        self._draw()
        self.query_one("#question", Input).placeholder = _ASK if self._more else _ASK_OWN
        self._typed = self._typed or deque([""])
        self._done(False)

    @property
    def ready(self) -> bool:
        """Whether Enter asks at once: both models are loaded and idle."""
        return self._line is not None and not self._answering

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Ask the typed question; with an empty field, the next held-out question. A question ends the answer being written."""
        event.stop()
        question = event.value.strip()
        if self._problem or not (question or self.ready):
            return
        event.input.value = event.input.value.removeprefix(event.value)  # keep what was typed after Enter
        if self.ready:
            self._start(question)
            return
        self._typed.append(question)
        self._draw()
        if self._line is not None:
            self.run_worker(self._stop(self._line), name="stop", group="chat", exit_on_error=True)

    async def _stop(self, line: ChatProcess) -> None:
        with suppress(*USER_ERRORS):  # who waits for the answer says it
            await line.stop()

    def _start(self, question: str) -> None:
        """Ask it; without one, the next held-out question."""
        assert self._line is not None
        if question and question != NEXT:
            self._add(exchange := ChatExchange(question))
            self._begin(self._ask(self._line, exchange))
        elif self._more:
            self._begin(self._next(self._line))
        elif question:
            self.dashboard.say(self._line.without_marks or ALL_ASKED)

    def _begin(self, work: Coroutine[Any, Any, None]) -> None:
        self._answering = True
        self._complete = False  # set before the worker starts: a rating now would be for a missing answer
        self.run_worker(work, name="ask", group="chat", exit_on_error=True)

    def _add(self, exchange: ChatExchange) -> None:
        self._said = [*self._said[-KEPT + 1 :], exchange]
        self._draw()

    def _done(self, complete: bool) -> None:
        """The answer is written; ask what was typed meanwhile. complete: it may be rated."""
        self._answering, self._complete = False, complete
        while self._typed and not self._answering:
            self._start(self._typed.popleft())

    async def _ask(self, line: ChatProcess, exchange: ChatExchange) -> None:
        try:
            async for chunk in line.ask(exchange.question):
                exchange.answers[chunk.of] = chunk
                self._draw()
        except USER_ERRORS as error:
            self._complain(error)
            return
        self._done(True)

    async def _next(self, line: ChatProcess) -> None:
        count = 0
        try:
            async for part in line.next_held_out():
                count += 1
                if isinstance(part, HeldOut):
                    self._add(ChatExchange(part.text, held_out=part))
                elif isinstance(part, ChatChunk):
                    self._said[-1].answers[part.of] = part
                else:
                    self._said[-1].marks = self._tally = part
                self._draw()
        except USER_ERRORS as error:
            self._complain(error)
            return
        if not count:
            self._more = False
            self.query_one("#question", Input).placeholder = f"these were all held-out questions; {_ASK_OWN}"
        self._done(count > 0)

    def action_rate(self, good: bool) -> None:
        """The trained model's last answer was good, or bad; m makes a task of such answers."""
        if self._ratable:
            self.run_worker(self._rate(good), name="rate", group="rate", exit_on_error=True)

    async def _rate(self, good: bool) -> None:
        actions = self.dashboard.task_actions
        assert actions is not None
        last = self._said[-1]
        await self.dashboard.told(actions.rate(self._called, last.question, last.answers[1].text, good))

    def _draw(self) -> None:
        glyphs = self.glyphs
        for place, label in enumerate(("base", self._called)):
            rows = [*self._opening[place]]
            for exchange in (*self._said, *map(ChatExchange, self._typed)):
                answer, marks, held_out = exchange.answers[place], exchange.marks, exchange.held_out
                number = f"{held_out.number}  " if held_out else ""
                rows += [Content.styled(f"> {number}{plain_text(exchange.question, 400)}", "$muted")]
                rows += [Content(plain_text(answer.text, LONGEST, lines=True) or "…")]
                rows += [Content.styled(CUT, "$muted")] * answer.cut
                if marks is not None and marks.rewards:
                    reward = marks.rewards[place]
                    glyph, style = (glyphs.done, "$success") if reward == 1.0 else (glyphs.bad, "$error")
                    right = (
                        f"   right: {plain_text(held_out.right, 200)}"
                        if held_out and held_out.right and reward != 1.0
                        else ""
                    )
                    rows += [
                        Content.assemble(
                            Content.styled(f"{glyph} {format_reward(reward)}", style), Content.styled(right, "$muted")
                        )
                    ]
                elif marks is not None:
                    rows += [Content.styled(f"not marked: {plain_text(marks.problem, 200)}", "$warning")]
                rows += [Content("")]
            self.query_one(f"#text-{place}", Static).update(Content("\n").join(rows))
            box = self.query_one(f"#side-{place}", VerticalScroll)
            box.scroll_end(animate=False)
            score = f"  {self._tally.right[place]} of {self._tally.asked} right" if self._tally else ""
            box.border_title = Content.styled(f"{plain_text(label, 40)}{score}", "bold")

    def _complain(self, error: Exception) -> None:
        self._problem = str(error)
        self.query_one("#text-0", Static).update(Content.styled(plain_text(str(error), 600), "$warning"))

    def action_close(self) -> None:
        """Close; a node that worked goes on. The screen goes at once, the processes are given their time."""
        line, self._line = self._line, None
        self.workers.cancel_node(self)
        if line is not None:
            self.app.run_worker(line.close(), name="close-chat", exit_on_error=False)
        with suppress(NoMatches):
            self.dismiss(None)
