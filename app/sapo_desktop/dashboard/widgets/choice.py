"""A one-line question whose answer changes with the left and right arrows, or a click."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.message import Message
from textual.widget import Widget

from sapo_desktop.dashboard.look import base_name, plain_text

LABEL, VALUE = 9, 10
"""Columns of the label and of the answer. A longer answer (a third-party engine) pushes its explanation to the right."""


class Choice(Widget, can_focus=True):
    """answers: (value, explanation); the first is selected. Sends Changed when another one is chosen.

    Its keys have priority, like the keys that move the focus in every form that uses it: any other key passes through the
    widgets' queues, and would arrive after the focus has moved. A form's Enter has no priority, so that it
    arrives after what was typed before it.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("right", "turn(1)", "next", show=False, priority=True),
        Binding("left", "turn(-1)", "previous", show=False, priority=True),
    ]

    class Changed(Message):
        """The person chose another answer."""

    def __init__(self, label: str, answers: tuple[tuple[str, str], ...], id: str) -> None:
        super().__init__(id=id)
        self.label, self.answers, self.place = label, answers, 0
        self.chosen = False
        """Whether the person chose. Set immediately, as messages arrive later than keys typed ahead."""
        self._given = ("", "")
        """The answer that choose() selected, with what it said of it."""

    @property
    def value(self) -> str:
        """The selected answer."""
        return self.answers[self.place][0]

    def offer(self, answers: tuple[tuple[str, str], ...]) -> None:
        """Replace the answers and select the first, unless the person had selected another than the first: that one stays,
        and what choose() said of it."""
        answers = tuple(self._given if pair[0] == self._given[0] else pair for pair in answers)
        chosen, values = self.answers[self.place], [value for value, _ in answers]
        if not self.place and chosen != self._given:
            self.answers = answers
        elif chosen[0] in values:
            self.answers, self.place = answers, values.index(chosen[0])
        else:
            self.answers, self.place = (*answers, chosen), len(answers)
        self.refresh()

    def action_turn(self, steps: int) -> None:
        """The next answer, or the one before."""
        self.place = (self.place + steps) % len(self.answers)
        self.chosen = True
        self.refresh()
        self.post_message(self.Changed())

    def choose(self, value: str, detail: str) -> None:
        """Select this answer, adding it to the answers."""
        rest = tuple(pair for pair in self.answers if pair[0] != value)
        place = next((at for at, pair in enumerate(self.answers) if pair[0] == value), min(self.place, len(rest)))
        self.answers, self.place = (*rest[:place], (value, detail), *rest[place:]), place
        self.chosen, self._given = True, (value, detail)
        self.refresh()
        self.post_message(self.Changed())

    def fall_back(self, value: str) -> None:
        """Select this answer, if it is one of them, as a default rather than a choice."""
        self.place = next((at for at, pair in enumerate(self.answers) if pair[0] == value), self.place)
        self.refresh()

    def on_click(self) -> None:
        """Select the next answer."""
        self.focus()
        self.action_turn(1)

    def render(self) -> Content:
        """The label, the answer, and what it means."""
        value, detail = self.answers[self.place]
        left, right = ("◂", "▸") if self.has_focus and len(self.answers) > 1 else (" ", " ")
        return Content.assemble(
            (self.label.ljust(LABEL), "bold $accent" if self.has_focus else ""),
            (f"{left} {plain_text(base_name(value), 40):<{VALUE}} {right}", "bold"),
            (f"  {plain_text(detail, 120)}", "$muted"),
        )
