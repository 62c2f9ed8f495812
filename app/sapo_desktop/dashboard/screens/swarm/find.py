"""The dialog that lists the directories' swarms: choose one, or add a directory. All its texts are untrusted."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import fit_width, format_count, plain_text
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.dashboard.widgets.frame import ChoiceList
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.swarms.interface import ListedSwarm, SwarmDirectory
from sapo_desktop.services.swarms.trial import ROUNDS
from sapo_swarm.node.clock import format_age

if TYPE_CHECKING:
    from sapo_desktop.services.swarms.actions import HomeActions

NONE = (
    "A directory is a signed list of swarms that somebody keeps. None is built into this app: paste the line that "
    "somebody told you, such as https://host/file.json#key=… Its host then sees this machine's address and that this app asks."
)


class FindDialog(Dialog[str | None]):
    """Returns the invite line of the chosen swarm, if it can be joined; None after Esc."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "add", "add", show=False),
        Binding("r", "renew", "read again", show=False),
    ]
    AUTO_FOCUS: ClassVar[str | None] = "#rows"

    def __init__(self, actions: HomeActions) -> None:
        super().__init__()
        self._actions = actions
        self.rows: tuple[ListedSwarm, ...] = ()

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with VerticalScroll(classes="box dialog swarm find", can_focus=False):
            yield Static(Content.styled("Find a swarm", "bold"), markup=False)
            yield Static(Content.styled("Looking …", "$muted"), id="state", markup=False)
            yield ChoiceList(id="rows", markup=False)
            yield Static("", id="detail", markup=False)
            yield Input(placeholder="https://host/file.json#key=…", id="line", max_length=500, compact=True)
            yield Static("", id="complaint", markup=False)
            yield Static("", id="keys", markup=False)

    def on_mount(self) -> None:
        """Read the directories."""
        self.complain("")
        self._ask(False)
        self.action_renew(False)

    def action_renew(self, fresh: bool = True) -> None:
        """Read the directories again. fresh: from their hosts, however lately that was done."""
        self.run_worker(self._read(fresh), group="read", exclusive=True, exit_on_error=True)

    async def _read(self, fresh: bool) -> None:
        try:
            directories = await self._actions.directories(fresh)
        except USER_ERRORS as error:
            self.complain(str(error))
            return
        self.rows = tuple(swarm for directory in directories for swarm in directory.swarms)
        rows = self.query_one("#rows", OptionList)
        rows.clear_options()
        rows.add_options([Option(_row(swarm)) for swarm in self.rows])
        rows.display = bool(self.rows)
        self.query_one("#state", Static).update(_state(directories))
        if self.rows:
            rows.highlighted = 0
            rows.focus()
        elif not directories:
            self._ask(True)
        self._detail(0)

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Describe the swarm under the cursor."""
        self._detail(event.option_index)

    def _detail(self, place: int) -> None:
        detail = self.query_one("#detail", Static)
        detail.display = place < len(self.rows)
        if detail.display:
            swarm = self.rows[place]
            how = f"Enter joins for a trial of {ROUNDS} rounds" if swarm.join else f"Not from here: {swarm.why}"
            text = Content.assemble(
                f"Trains on {plain_text(swarm.trains, 120)}. How groups are checked, in its host's words: "
                f"{plain_text(swarm.checks, 160)}.\n",
                (plain_text(how, 200), "$accent" if swarm.join else "$warning"),
            )
            detail.update(text)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Close with the chosen swarm, if it can be joined."""
        event.stop()
        swarm = self.rows[event.option_index]
        if swarm.join:
            self.complain("Asking whether it still takes nodes …", "$muted")
            self.run_worker(self._choose(swarm), group="choose", exclusive=True, exit_on_error=True)
        else:
            self.complain(f"{swarm.name}: {swarm.why}")

    async def _choose(self, one: ListedSwarm) -> None:
        """Close with this swarm, or say why it cannot be joined: a list may be days old."""
        if wrong := await self._actions.wrong_with(one.join):
            self.complain(wrong)
        else:
            self.dismiss(one.join)

    def action_add(self) -> None:
        """Ask for a directory's line."""
        self._ask(True)

    def _ask(self, asking: bool) -> None:
        line = self.query_one("#line", Input)
        line.display = asking
        if asking:
            line.focus()
        keys = (
            [("Enter", "look in it"), ("Esc", "close")]
            if asking
            else [
                ("Enter", "join for trial"),
                ("a", "add a directory"),
                ("r", "read again"),
                ("Esc", "close"),
            ]
        )
        self.query_one("#keys", Static).update(key_hint(*keys))

    async def on_input_submitted(self, event: Input.Submitted) -> None:
        """Save the line and read that directory."""
        event.stop()
        if not event.value.strip():
            return
        try:
            await self._actions.add_directory(event.value)
        except USER_ERRORS as error:
            self.complain(str(error))
            return
        event.input.value = ""
        self.complain("")
        self._ask(False)
        self.query_one("#rows", OptionList).focus()
        self.action_renew(False)

    def complain(self, text: str, style: str = "$warning") -> None:
        """Show the message; an empty text hides the line."""
        self.query_one("#complaint").display = bool(text)
        super().complain(text, style)


def _row(one: ListedSwarm) -> Content:
    who = "anyone" if one.anyone else "by invite"
    rate = format_count(round(one.rounds_per_hour))
    figures = f"{format_count(one.nodes):>6} node{' ' if one.nodes == 1 else 's'} {rate:>6} rounds/h  {who}"
    return Content.assemble(fit_width(plain_text(one.name, 60), 28), (figures, "$muted"))


def _state(found: tuple[SwarmDirectory, ...]) -> Content:
    """The origin and age of each list, one line each."""
    if not found:
        return Content(NONE)
    lines = []
    for directory in found:
        name = plain_text(directory.name, 40) or "Directory"
        old = f", read {format_age(time.time() - directory.read)} ago" if directory.read else ""
        note = (
            f": {plain_text(directory.note, 200)}" if directory.note else "" if directory.swarms else ": lists no swarm"
        )
        style = "$warning" if directory.note else "$muted"
        lines.append(Content.styled(f"{name} ({plain_text(directory.place, 60)}{old}){note}", style))
    return Content("\n").join(lines)
