"""Screen 2's dialogs: join a swarm, host one and show its invite, look at a task before it is accepted."""

from __future__ import annotations

from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, Static

from sapo_desktop.dashboard.look import plain_text
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.services.swarms.interface import HostedSwarm, OfferedTask

# The dialog that shows a swarm's task before it is accepted, as plain text; nothing in the task is run or parsed.

CONSEQUENCE = (
    "If you accept, your model trains on it too, and the members of this swarm see your model's attempts at it. It holds "
    "no code. A changed task asks again."
)


class TaskDialog(Dialog[bool]):
    """Shows a task. Returns True if it is accepted as shown."""

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
                Content.styled(f"This swarm trains on {plain_text(task.name, 40)}, a task of its host's own", "bold"),
                markup=False,
            )
            with VerticalScroll(id="content", can_focus=True):
                yield Static(
                    Content("\n".join(plain_text(line, len(line)) for line in task.lines)), id="lines", markup=False
                )
            yield Static(CONSEQUENCE, markup=False)
            yield Static(key_hint(("y", "accept"), ("Esc", "not now")), markup=False)

    def action_accept(self) -> None:
        """Close with a yes."""
        self.dismiss(True)

    def action_decline(self) -> None:
        """Close without one: the node goes on with its other tasks."""
        self.dismiss(False)


# Screen 2's dialogs: join a swarm with an invite, host one and show its invite.

HostChoice = Literal["here", "everybody", "approve", "stop"]
FOR_WHOM: tuple[tuple[str, str, HostChoice], ...] = (
    (
        "Host for everybody who can reach this machine",
        "listens on all addresses, encrypted, by invite only",
        "everybody",
    ),
    ("Host for this machine only", "to try it with several nodes of your own", "here"),
    (
        "Host for everybody, and let each node in yourself",
        "a new node waits until you press a key on this screen",
        "approve",
    ),
)
RUNNING: tuple[tuple[str, str, HostChoice], ...] = (
    ("Show a new invite", "good for a week, for ten nodes", "here"),
    ("Stop hosting", "members train on alone until it is back", "stop"),
)
"""Answers to "A swarm on this machine": for whom to host one; if one is running, show its invite or end it."""


class JoinDialog(Dialog[str | None]):
    """Asks for an invite; returns it once it parses, None after Esc."""

    AUTO_FOCUS: ClassVar[str | None] = "#invite"

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog swarm"):
            yield Static(Content.styled("Join a swarm", "bold"), markup=False)
            yield Static(
                "Paste the line that the host gave you. The node finishes its round, then goes on in the swarm with the "
                "same model. Others see the text of its attempts, a random node id, the name you chose and the "
                "base's name; the host also sees this machine's network address. No weights, no files.",
                markup=False,
            )
            yield Input(placeholder="sapo://…", id="invite", max_length=600)
            yield Static("", id="complaint", markup=False)
            yield Static(key_hint(("Enter", "join"), ("Esc", "cancel")), markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Accept an invite that parses; otherwise say what is wrong with it."""
        from sapo_swarm.protocol.invite import (  # imports cryptography: only when an invite was typed
            BadInvite,
            parse_invite,
        )

        event.stop()
        try:
            parse_invite(event.value)
        except BadInvite as error:
            self.complain(str(error))
            return
        self.dismiss(event.value.strip())


class HostedDialog(Dialog[bool]):
    """The invite. Returns True if this node should take part too."""

    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (16, "-roomy")]  # noqa: RUF012 - Textual declares it as an instance variable
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "take_part", "join", show=False),
        Binding("c", "copy", "copy", show=False),
        Binding("escape,enter,q", "close", "close", show=False),
    ]

    def __init__(self, hosted: HostedSwarm, offer: bool) -> None:
        """offer: this node is not in a swarm yet, so it may join."""
        super().__init__()
        self.hosted, self._offer = hosted, offer

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog swarm hosted"):
            yield Static(
                Content.styled(f"Swarm {plain_text(self.hosted.name, 40)!r} runs in the background", "bold"),
                classes="more",
                markup=False,
            )
            yield Static("Send this line to those you want in it; it admits for a week:", markup=False)
            yield Static(Content.styled(self.hosted.invites[0], "$accent"), id="line", markup=False)
            more = f"Status page: {self.hosted.page} · put a node out: sapo-desktop ban ID"
            yield Static(Content.styled(more, "$muted"), classes="more", markup=False)
            keys = [("j", "let this node take part too")] if self._offer else []
            yield Static(
                key_hint(*keys, ("c", "copy"), ("Esc", "close; the swarm stays open (h ends it)")), markup=False
            )

    def action_take_part(self) -> None:
        """Close and let this node join."""
        if self._offer:
            self.dismiss(True)

    def action_copy(self) -> None:
        """The invite to the clipboard."""
        self.app.copy_to_clipboard(self.hosted.invites[0])
        self.app.notify("Copied, if your terminal allows it", markup=False)

    def action_close(self) -> None:
        """Close; the swarm stays open."""
        self.dismiss(False)
