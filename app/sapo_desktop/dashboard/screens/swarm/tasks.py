"""The dialog that shows a task of the swarm before it is accepted: plain text, nothing of it is run or parsed."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import Dialog, hint
from sapo_desktop.services.swarms.interface import OfferedTask

CONSEQUENCE = (
    "If you accept, your model trains on it too, and the members of this swarm see your model's attempts at it. It holds "
    "no code. A changed task asks again."
)


class TaskDialog(Dialog[bool]):
    """True: accepted as shown."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "accept", "accept", show=False),
        Binding("escape,n,q", "decline", "not now", show=False),
    ]
    AUTO_FOCUS: ClassVar[str | None] = "#content"

    def __init__(self, task: OfferedTask) -> None:
        super().__init__()
        self.task_offered = task

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        task = self.task_offered
        with Vertical(classes="box dialog swarm task"):
            yield Static(
                Content.styled(f"This swarm trains on {plain(task.name, 40)}, a task of its host's own", "bold"),
                markup=False,
            )
            with VerticalScroll(id="content", can_focus=True):
                yield Static(
                    Content("\n".join(plain(line, len(line)) for line in task.lines)), id="lines", markup=False
                )
            yield Static(CONSEQUENCE, markup=False)
            yield Static(hint(("y", "accept"), ("Esc", "not now")), markup=False)

    def action_accept(self) -> None:
        """Close with a yes."""
        self.dismiss(True)

    def action_decline(self) -> None:
        """Close without one: the node goes on with its other tasks."""
        self.dismiss(False)
