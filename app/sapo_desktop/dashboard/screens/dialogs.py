"""Dialogs over the current screen: questions with a few answers (how to leave, how long to snooze), and long text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Generic, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import hanging_indent, plain_text
from sapo_desktop.dashboard.screens.base import DismissOnceScreen
from sapo_desktop.dashboard.state import QuitChoice
from sapo_desktop.dashboard.widgets.frame import ChoiceList

T = TypeVar("T")
_WIDTH, _FRAME = 64, 8
"""Columns of a dialog, and of these its border, padding and scroll bar."""
_LINES_BESIDE, _LINES_BESIDE_TINY, _TINY = 7, 3, 16
"""Lines of a dialog beside its list (border, padding, question), the same in a tiny terminal, and what is tiny."""


def key_hint(*keys: tuple[str, str]) -> Content:
    """Keys and what they do, for the last line of a dialog."""
    return Content("   ").join(Content.assemble((key, "bold $accent"), (f" {label}", "$muted")) for key, label in keys)


class Dialog(ModalScreen[T], DismissOnceScreen[T], Generic[T]):
    """Covers a screen and takes its keys. Esc closes it, unless a subclass binds Esc itself."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "cancel", "cancel", show=False)]

    def action_cancel(self) -> None:
        """Close without an answer."""
        self.dismiss(None)

    def complain(self, text: str, style: str = "$warning") -> None:
        """Show a message in the dialog's #complaint line."""
        self.query_one("#complaint", Static).update(Content.styled(plain_text(text, 400), style))


class ChoiceDialog(Dialog[T | None], Generic[T]):
    """A question with a few answers, the last of them Cancel; Cancel, Esc and q return None."""

    VERTICAL_BREAKPOINTS = [(0, "-tiny"), (_TINY, "-roomy")]  # noqa: RUF012 - Textual declares it as an instance variable
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "cancel", "cancel", show=False)]

    def __init__(self, question: str, answers: Sequence[tuple[str, str, T | None]], careful: bool = False) -> None:
        """answers: (label, explanation, value). careful: Cancel comes first, under the cursor, because something
        would be lost for ever."""
        super().__init__()
        cancel: tuple[str, str, T | None] = ("Cancel (Esc)", "", None)
        self._question, self._answers = question, [cancel, *answers] if careful else [*answers, cancel]

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog") as box:
            box.border_subtitle = key_hint(("Enter", "choose"), ("arrows", "move"), ("Esc", "cancel"))
            yield Static(Content.styled(plain_text(self._question, 300), "bold"), markup=False)
            yield ChoiceList(*(Option(self._prompt(name, detail)) for name, detail, _ in self._answers))

    def on_resize(self) -> None:
        """Fit the details to the new width, and a long list to the height: it scrolls, the key line stays."""
        listing = self.query_one(ChoiceList)
        height = self.app.size.height
        listing.styles.max_height = height - _LINES_BESIDE_TINY if height < _TINY else height * 9 // 10 - _LINES_BESIDE
        for place, (name, detail, _) in enumerate(self._answers):
            listing.replace_option_prompt_at_index(place, self._prompt(name, detail))

    def _prompt(self, name: str, detail: str) -> Content:
        room = min(self.app.size.width, _WIDTH) - _FRAME
        return Content.assemble(name, "\n  ", (hanging_indent(detail, room, 2), "$muted")) if detail else Content(name)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Answer with the chosen row."""
        event.stop()
        self.dismiss(self._answers[event.option_index][2])


class QuitDialog(ChoiceDialog[QuitChoice]):
    """Asks what to do with the node when the dashboard closes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "pick('stop')", "stop", show=False),
        Binding("b", "pick('background')", "background", show=False),
    ]

    def __init__(self) -> None:
        stop, on = "Stop the node (s)", "Keep working in the background (b)"
        super().__init__(
            "Leave the dashboard?",
            [
                (stop, "it saves and exits; the next start goes on from there", "stop"),
                (on, "closes only this window; sapo-desktop opens it again", "background"),
            ],
        )

    def action_pick(self, choice: QuitChoice) -> None:
        """Stop the node, or keep it working in the background."""
        self.dismiss(choice)


class SnoozeDialog(ChoiceDialog[int]):
    """Asks how long to pause; returns minutes, or None."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("1", "pick(15)", "15", show=False),
        Binding("2", "pick(60)", "60", show=False),
        Binding("3", "pick(240)", "240", show=False),
    ]

    def __init__(self) -> None:
        lengths = [("15 minutes (1)", "", 15), ("1 hour (2)", "", 60), ("4 hours (3)", "", 240)]
        super().__init__("Pause for how long?", lengths)

    def action_pick(self, minutes: int) -> None:
        """Pause for 15, 60 or 240 minutes."""
        self.dismiss(minutes)


class TextDialog(Dialog[None]):
    """Long text that scrolls, rewrapped for each width."""

    TITLE: ClassVar[str | None] = ""
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q", "dismiss", "close", show=False)]

    def text(self, width: int) -> Content:
        """The whole text, wrapped to `width` columns."""
        raise NotImplementedError

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with VerticalScroll(classes="box help") as box:
            box.border_title = Content.styled(self.TITLE or "", "bold")
            box.border_subtitle = key_hint(("↑ ↓", "scroll"), ("Esc", "close"))
            yield Static("", id="running-text", markup=False)

    def on_resize(self) -> None:
        """Rewrap the text."""
        self.draw()

    def draw(self) -> None:
        """Show the text as it is now."""
        width = self.query_one(VerticalScroll).scrollable_content_region.width
        self.query_one("#running-text", Static).update(self.text(max(width, 30)))
