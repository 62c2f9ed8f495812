"""Two attempts at one question beside each other: what one has that the other has not, in signs as well as in colours."""

from __future__ import annotations

import difflib
import re
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import plain
from sapo_desktop.dashboard.screens.dialogs import Dialog
from sapo_desktop.dashboard.screens.rollouts.detail import verdict
from sapo_swarm.events import GroupRecorded

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")
_MOST = 3000
"""Words and signs of an attempt that are compared; the rest is shown as it is not: cut off."""


def compared(first: str, second: str) -> Content:
    """One text: [-only in the first-] {+only in the second+}."""
    one, other = (_PIECES.findall(plain(text.strip(), lines=True))[:_MOST] for text in (first, second))
    parts: list[str | tuple[str, str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append("".join(one[a:b]))
            continue
        if b > a:
            parts.append((f"[-{''.join(one[a:b])}-]", "$error"))
        if d > c:
            parts.append((f"{{+{''.join(other[c:d])}+}}", "$success"))
    return Content.assemble(*parts)


def farthest(event: GroupRecorded) -> tuple[int, int]:
    """The places of the best and the worst attempt: what there is to learn from."""
    rewards = event.group.rewards
    best = max(range(len(rewards)), key=rewards.__getitem__)
    worst = min((place for place in range(len(rewards)) if place != best), key=rewards.__getitem__)
    return best, worst


class DiffScreen(Dialog[None]):
    """Two attempts of a group with at least two; a and b choose which."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "other(0)", "first", show=False),
        Binding("b", "other(1)", "second", show=False),
        Binding("escape,q,x", "back", "close", show=False),
    ]
    AUTO_FOCUS: ClassVar[str | None] = "#lines"

    def __init__(self, event: GroupRecorded, glyphs: Glyphs) -> None:
        super().__init__()
        self.event, self.glyphs = event, glyphs
        self.places = list(farthest(event))

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog diff") as box:
            box.border_title = Content.styled("Two attempts compared", "bold")
            box.border_subtitle = Content.styled("a b choose which · arrows scroll · Esc closes", "$muted")
            yield Static("", id="which", markup=False)
            with VerticalScroll(id="lines"):
                yield Static("", id="text", markup=False)

    def on_mount(self) -> None:
        """Compare the best with the worst."""
        self._show()

    def _show(self) -> None:
        first, second = self.places
        group = self.event.group
        signs = Content.assemble(("[-only in the first-]", "$error"), "  ", ("{+only in the second+}", "$success"))
        heads = [verdict(group, place, self.glyphs) for place in self.places]
        self.query_one("#which", Static).update(Content("\n").join([*heads, signs, Content("")]))
        self.query_one("#text", Static).update(compared(group.rollouts[first].text, group.rollouts[second].text))

    def action_other(self, side: int) -> None:
        """The next attempt on that side; never one and the same on both."""
        count = len(self.event.group.rollouts)
        self.places[side] = (self.places[side] + 1) % count
        if self.places[0] == self.places[1]:
            self.places[side] = (self.places[side] + 1) % count
        self._show()

    def action_back(self) -> None:
        """Close."""
        self.dismiss()
