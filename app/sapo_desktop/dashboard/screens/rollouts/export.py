"""Where the groups that fit are written to: a small question over screen 3."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from sapo_desktop.dashboard.history.groups.query import GroupFilter
from sapo_desktop.dashboard.look.show import groups, plain
from sapo_desktop.dashboard.screens.dialogs import Dialog, hint
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import typed_target


class ExportDialog(Dialog[Path | None]):
    """Gives the file, None at Esc. A file that exists is never written over."""

    AUTO_FOCUS: ClassVar[str | None] = "#file"

    def __init__(self, count: int, wanted: GroupFilter) -> None:
        super().__init__()
        self.count, self.wanted = count, wanted

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog form"):
            yield Static(Content.styled(f"Write {groups(self.count)} as JSON lines", "bold"), markup=False)
            yield Static(Content.styled(plain(self.wanted.describe(), 200), "$muted"), markup=False)
            yield Input("rollouts.jsonl", id="file", compact=True)
            yield Static("", id="complaint", markup=False)
            yield Static(hint(("Enter", "write"), ("Esc", "cancel")), markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the file, unless there is one already."""
        event.stop()
        typed = event.value.strip()
        try:
            path = typed_target(typed)
            if typed and not path.exists():
                self.dismiss(path)
                return
            said = f"There is something at {path} already: write another name." if typed else "Write a name."
        except UsageError as error:
            said = str(error)
        self.complain(said)
