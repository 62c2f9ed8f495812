"""The first start: five questions on one screen, every one answered already. Enter goes, Esc goes with the starter."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual import events
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.widgets.choice import Choice
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo, Measure

MODES = (
    ("silo", "train alone, nothing leaves this machine"),
    ("swarm", "share the text of attempts, learn from other nodes'"),
)
_DETAIL = 11
"""The column where the sentence on speed begins."""
_SETTLED_S = 0.3
"""An answer that stays so long is measured."""


class FirstRunScreen(ModalScreen[FirstRunAnswers]):
    """Modal, so that what is typed here never reaches the dashboard's keys."""

    AUTO_FOCUS: ClassVar[str | None] = "#mode"
    VERTICAL_BREAKPOINTS = [(0, "-low"), (30, "-tall")]  # noqa: RUF012 - Textual declares it as an instance variable
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "accept", "start", priority=True),
        Binding("escape", "skip", "skip", priority=True),
        Binding("down", "app.focus_next", "next", show=False),
        Binding("up", "app.focus_previous", "previous", show=False),
    ]

    def __init__(self, info: FirstRunInfo) -> None:
        super().__init__()
        self.info = info
        self.asked: tuple[str, str] | None = None
        self.speeds: dict[tuple[str, str], str] = {}

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with VerticalScroll(classes="box welcome", can_focus=False) as box:
            box.border_subtitle = self._keys()
            yield Static(self._welcome(), markup=False)
            yield Choice("Mode", MODES, id="mode")
            yield Input(placeholder="paste the invite: one line of text", id="invite", compact=True)
            yield Choice("Hardware", self.info.hardware, id="hardware")
            yield Static("", id="speed", markup=False)
            yield Choice("Model", self.info.models, id="model")
            yield Choice("Tasks", self.info.tasks, id="tasks")
            yield Choice("Limits", self.info.limits, id="limits")
            yield Input(
                placeholder="Name       anonymous (only a swarm would see it)", id="name", compact=True, max_length=40
            )
            yield Static("", id="complaint", markup=False)

    def _welcome(self) -> Content:
        return Content.assemble(
            ("Welcome to sapo-desktop\n\n", "bold $primary"),
            "It trains a small language model on reasoning tasks by reinforcement learning, here, on this machine. "
            "Everything below has an answer already and can be changed later.\n",
        )

    def _keys(self) -> Content:
        keys = (("Enter", "start"), ("arrows", "change"), ("Esc", "skip: silo with the starter model"))
        return Content("   ").join(
            Content.assemble((key, "bold $accent"), (f" {label}", "$muted")) for key, label in keys
        )

    def on_mount(self) -> None:
        """Fill in what depends on other answers."""
        self.answers_changed()

    def on_choice_changed(self) -> None:
        """An answer may decide what others there are."""
        self.answers_changed()

    def answers_changed(self) -> None:
        """Show the invite only for a swarm, and measure the speed of what is chosen."""
        self.query_one("#complaint", Static).update("")
        self.query_one("#invite", Input).display = self._value("mode") == "swarm"
        wanted = (self._value("hardware"), self._value("model"))
        self.query_one("#speed", Static).display = self.info.measure is not None
        if self.info.measure is not None and wanted != self.asked:
            self.asked = wanted
            self.run_worker(
                self._measure(self.info.measure, wanted), group="speed", exclusive=True, exit_on_error=False
            )

    async def _measure(self, measure: Measure, wanted: tuple[str, str]) -> None:
        """Say how fast that answer is. The next answer, or the end of the questions, cancels it."""
        if wanted not in self.speeds:
            self._say_speed("measuring its speed …")
            await asyncio.sleep(_SETTLED_S)
            self.speeds[wanted] = await measure(*wanted)
        self._say_speed(self.speeds[wanted] or "its speed is not known: see sapo-desktop bench")

    def _say_speed(self, sentence: str) -> None:
        said = " " * _DETAIL + plain(sentence, 120)
        self.query_one("#speed", Static).update(Content.styled(said, "$muted"))

    def on_paste(self, event: events.Paste) -> None:
        """An invite that is pasted anywhere but into a field means: join this swarm."""
        if event.text.strip().startswith("sapo://"):
            mode, invite = self.query_one("#mode", Choice), self.query_one("#invite", Input)
            mode.place = [name for name, _ in MODES].index("swarm")
            mode.refresh()
            self.answers_changed()
            invite.value = event.text.strip().splitlines()[0]
            invite.focus()

    def _value(self, name: str) -> str:
        return self.query_one(f"#{name}", Choice).value

    def action_accept(self) -> None:
        """Close with the answers; an invite that cannot work is explained instead."""
        swarm = self._value("mode") == "swarm"
        invite = self.query_one("#invite", Input).value.strip()
        text = self._wrong_with(invite) if swarm else ""
        if text:
            self.query_one("#complaint", Static).update(Content.styled(text, "$warning"))
            self.query_one("#invite", Input).focus()
            return
        self.dismiss(
            FirstRunAnswers(
                mode="swarm" if swarm else "silo",
                invite=invite if swarm else "",
                hardware=self._value("hardware"),
                model=self._value("model"),
                tasks=self._value("tasks"),
                limits=self._value("limits"),
                name=self.query_one("#name", Input).value.strip(),
            )
        )

    def _wrong_with(self, invite: str) -> str:
        """What keeps a node from joining with this line; "" when nothing does."""
        if not invite:
            return "A swarm needs an invite: paste the line its host gave you, or choose silo."
        from sapo_swarm.protocol.invite import BadInvite, parse_invite  # cryptography: only when an invite was typed

        try:
            parse_invite(invite)
        except BadInvite as error:
            return plain(str(error), 200)
        return ""

    def action_skip(self) -> None:
        """Close with the defaults."""
        self.dismiss(FirstRunAnswers(skipped=True))
