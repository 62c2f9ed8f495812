"""Writing an export: what it does now, how far it is, what came of it. Esc stops it."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import Dialog, hint
from sapo_desktop.errors import known
from sapo_desktop.services.models.screen.interface import ExportChoice, Told


class ExportScreen(Dialog[None]):
    """Closing it before it is done leaves nothing half written."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,q", "close", "close", show=False),
        Binding("enter", "close_when_done", "close", show=False),
    ]
    _done = False

    def __init__(self, name: str, choice: ExportChoice, work: AsyncGenerator[Told, None]) -> None:
        super().__init__()
        self._called, self._choice, self._steps = name, choice, work

    def compose(self) -> ComposeResult:
        """The fields and the keys."""
        with Vertical(classes="box dialog form"):
            title = f"{self._called} as {self._choice.label}"
            yield Static(Content.styled(plain(title, 100), "bold"), markup=False)
            yield Static("Starting …", id="told", markup=False)
            yield Static(hint(("Esc", "stop")), id="keys", markup=False)

    def on_mount(self) -> None:
        """Begin to read."""
        self.run_worker(self._follow(), name="export", exit_on_error=True)

    async def _follow(self) -> None:
        told = self.query_one("#told", Static)
        try:
            async with aclosing(self._steps) as steps:
                async for step in steps:
                    lines = step.result or (step.progress,)
                    told.update(Content("\n").join(Content(plain(line, 400)) for line in lines))
        except known() as error:
            told.update(Content.styled(plain(str(error), 600), "$warning"))
        self._done = True
        self.query_one("#keys", Static).update(hint(("Esc", "close")))

    def action_close_when_done(self) -> None:
        """Close, once it is written. Before that Enter does nothing."""
        if self._done:
            self.dismiss(None)

    def action_close(self) -> None:
        """Back to where it was opened from."""
        self.dismiss(None)
