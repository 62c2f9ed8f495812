"""The wizard, third step: what the untrained model does with the task, and what to expect of training it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.worker import Worker

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import Dialog
from sapo_desktop.dashboard.widgets.frame import Key, KeyBar
from sapo_desktop.errors import known
from sapo_desktop.services.tasks.wizard.interface import Answers, Made, Measured, Step

if TYPE_CHECKING:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

SMALL = [(0, "-small"), (20, "-roomy")]
"""In a low terminal the wizard goes without frame and gaps."""


class MeasuringScreen(Dialog[Made | None]):
    """Esc stops the measuring first; the task is stored either way."""

    VERTICAL_BREAKPOINTS = SMALL
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "train", "train", show=False, priority=True),
        Binding("down,pagedown", "scroll(1)", "down", show=False),
        Binding("up,pageup", "scroll(-1)", "up", show=False),
    ]

    def __init__(self, actions: HomeTasks, name: str, answers: Answers) -> None:
        """name: of the stored task; answers: what it was made from, and the base to try."""
        super().__init__()
        self._actions, self._task_name, self._source, self._base = actions, name, answers.path, answers.base
        self._work: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box wizard"):
            with VerticalScroll(can_focus=False):
                yield Static(Content.styled(f"Task {plain(self._task_name, 60)} is stored", "bold"), markup=False)
                yield Static("Starting …", id="told", markup=False)
            yield KeyBar([])

    def on_mount(self) -> None:
        """Begin to measure."""
        self.query_one(KeyBar).put([("Esc", "stop measuring", "screen.cancel")])
        self._work = self.run_worker(self._follow(), name="measure", exit_on_error=True)

    def _steps(self) -> AsyncGenerator[Step, None]:
        return self._actions.measure(self._task_name, self._base, self._source)

    async def _follow(self) -> None:
        told = self.query_one("#told", Static)
        what = f"Asking {self._base} training questions of the task, as it is now. A node that trains waits meanwhile."
        try:
            async with aclosing(self._steps()) as steps:
                async for step in steps:
                    if step.measured is not None:
                        told.update(_found(step.measured))
                    else:
                        told.update(Content(f"{plain(what, 300)}\n\n{plain(step.progress, 200)}"))
        except known() as error:
            told.update(Content.styled(plain(str(error), 600), "$warning"))
        self._finished()

    def _finished(self) -> None:
        self._work = None
        train: Key = ("Enter", f"train {plain(self._base, 60)} on it", "screen.train")
        self.query_one(KeyBar).put([train, ("Esc", "not now", "screen.cancel")])

    def action_train(self) -> None:
        """End the wizard with this task."""
        if self._work is None:
            self.dismiss(Made(self._task_name, self._base))

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


def _found(measured: Measured) -> Content:
    """What to expect first, then the shortcuts."""
    lines = [Content.styled("What to expect", "bold"), *(Content(plain(text, 600)) for text in measured.expectation)]
    lines += [Content(""), Content.styled("Shortcuts", "bold")]
    lines += [Content(plain(text, 600)) for text in measured.shortcuts]
    lines += [Content.assemble(("- ", "$warning"), plain(text, 600)) for text in measured.warnings]
    return Content("\n").join(lines)
