"""F2: every setting of the schema, its value and its origin, and an editor that refuses with a sentence."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look import end_of, fit_width, hanging_indent, plain_text
from sapo_desktop.dashboard.screens.base import SearchableScreen
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.dashboard.widgets.frame import ChoiceList, Key, KeyBar
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.settings.editing import SIMPLE, SettingRow, readable_value

if TYPE_CHECKING:
    from sapo_desktop.services.models.screen.settings_actions import HomeSettings

# The editor of one setting: a text field, or a list of choices. A refused value stays, with the reason.


class SettingEditor(Dialog[str | None]):
    """Returns the saved value, None after Esc."""

    AUTO_FOCUS: ClassVar[str | None] = "#value"

    def __init__(self, row: SettingRow, actions: HomeSettings) -> None:
        super().__init__()
        self.row, self.actions = row, actions

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        row = self.row
        with Vertical(classes="box dialog editor"):
            yield Static(Content.styled(row.key, "bold"), markup=False)
            yield Static(plain_text(row.help, 400), markup=False)
            if self.choices:
                yield ChoiceList(*self.choices, id="value", markup=False)
            else:
                yield Input(row.value, id="value", compact=True)
            yield Static("", id="complaint", markup=False)
            allowed = f"{row.kind} · default {plain_text(readable_value(row, row.default), 200)}"
            yield Static(Content.styled(allowed, "$muted"), markup=False)
            yield Static(key_hint(("Enter", "write"), ("Esc", "cancel")), markup=False)

    @property
    def choices(self) -> tuple[str, ...]:
        """The choices; the theme names come from the application."""
        return tuple(sorted(self.app.available_themes)) if self.row.key == "ui.theme" else self.row.choices

    def on_mount(self) -> None:
        """Put the cursor on the current value."""
        if self.row.value in self.choices:
            self.query_one("#value", OptionList).highlighted = self.choices.index(self.row.value)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the chosen value."""
        event.stop()
        self._write(self.choices[event.option_index])

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the typed value, or say why not."""
        event.stop()
        self._write(event.value.strip())

    def _write(self, value: str) -> None:
        self.run_worker(self._try(value), name="write", exclusive=True, exit_on_error=True)

    async def _try(self, value: str) -> None:
        try:
            await self.actions.change(self.row.key, value, self.row.owner)
        except USER_ERRORS as error:
            self.complain(str(error))
        else:
            self.dismiss(value)


# F2: every setting of the schema, its value and its origin, and an editor that refuses what is wrong.

WIDE = 100
"""Columns from which a row includes the setting's description."""


def _keys(advanced: bool) -> list[Key]:
    return [
        ("Enter", "change", "screen.edit"),
        ("d", "default", "screen.default"),
        ("a", "apply", "screen.restart"),
        ("/", "search", "screen.search"),
        ("v", "simple" if advanced else "all", "screen.advanced"),
        ("w", "questions", "screen.questions"),
        ("?", "help", "app.help"),
        ("Esc", "close", "screen.back"),
    ]


_TYPING: list[Key] = [("Enter", "keep", ""), ("F1", "help", "app.help"), ("Esc", "clear", "screen.back")]
"""The keys while a search is being typed, when letters are text."""


def _distance(key: str, wanted: str) -> int:
    """Rank of a search match, best first: the whole name or key, the start of the name, part of the key, only the help."""
    name = key.partition(".")[2]
    return 0 if wanted in (name, key) else 1 if name.startswith(wanted) else 2 if wanted in key else 3


class SettingsScreen(SearchableScreen, Dialog[None]):
    """Covers the whole terminal, so that no key reaches the screens below by accident."""

    AUTO_FOCUS: ClassVar[str | None] = "#rows"
    SEARCHED = "#rows"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,f2", "back", "close", show=False),
        Binding("d", "default", "default", show=False),
        Binding("a", "restart", "apply", show=False),
        Binding("v", "advanced", "simple or all", show=False),
        Binding("w", "questions", "first questions", show=False),
    ]

    def __init__(self, actions: HomeSettings) -> None:
        super().__init__()
        self.actions = actions
        self.rows: tuple[SettingRow, ...] = ()
        self.listed: list[SettingRow] = []
        self.advanced = True
        """Whether advanced settings are listed too."""

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(id="settings"):
            yield Input(placeholder="search keys and explanations, Esc clears it", id="search", classes="search")
            yield ChoiceList(id="rows", classes="box", markup=False)
            with VerticalScroll(id="about", classes="box", can_focus=False):
                yield Static("", id="about-text", markup=False)
            yield KeyBar(_keys(self.advanced))

    def on_mount(self) -> None:
        """Read the rows."""
        self._read()

    def on_resize(self) -> None:
        """Fit the rows and their details to the new width."""
        place = end_of(plain_text(self.actions.describe(), 400), max(self.size.width - 8, 12))
        self.query_one("#rows").border_subtitle = Content.styled(place, "$muted")
        self._fill()

    def on_descendant_focus(self) -> None:
        """Show the keys for the focused widget."""
        self.query_one(KeyBar).put(_TYPING if isinstance(self.focused, Input) else _keys(self.advanced))

    # Reading and showing

    def _read(self) -> None:
        self.run_worker(self._look(), group="read", exclusive=True, exit_on_error=True)

    async def _look(self) -> None:
        try:
            self.rows = await self.actions.rows()
        except USER_ERRORS as error:
            self.query_one("#about-text", Static).update(Content.styled(plain_text(str(error), 600), "$error"))
            return
        self._fill()

    def _fill(self, searched: bool = False) -> None:
        listing = self.query_one("#rows", OptionList)
        chosen = self.chosen
        wanted = self.query_one("#search", Input).value.casefold()
        matches = [row for row in self.rows if wanted in f"{row.key} {row.help}".casefold()]
        groups = [[row for row in matches if (row.key in SIMPLE) == simple] for simple in (True, False)]
        more = len(groups[1])
        if not (self.advanced or wanted):
            groups[1] = []
        where = "below" if groups[1] else "hidden, v shows them"
        self.listed = [row for group in groups for row in group]
        owner = next((row.owner for row in self.rows if row.owner), "")
        title = f"Settings of the model {owner}, and of the app" if owner else "Settings"
        listing.border_title = Content.styled(plain_text(title, 80), "bold")
        width = max(listing.scrollable_content_region.width - 2, 40)
        listing.clear_options()
        for name, group in zip(("Simple", "Advanced"), groups, strict=True):
            rest = f"  and {more} advanced, {where}" if name == "Simple" and more else ""
            heading = Option(
                Content.assemble((f"{name}  {len(group)}", "bold $accent"), (rest, "$muted")), disabled=True
            )
            rows = [Option(row_line(row, width), id=row.key) for row in group]
            listing.add_options([heading, *rows] if rows else [])
        if self.listed:
            keys = [row.key for row in self.listed]
            named = min(keys, key=lambda key: _distance(key, wanted))
            stays = chosen is not None and chosen.key in keys and not searched
            listing.highlighted = listing.get_option_index(chosen.key if chosen and stays else named)
        self._tell()

    @property
    def chosen(self) -> SettingRow | None:
        """The setting under the cursor."""
        option = self.query_one("#rows", OptionList).highlighted_option
        return next((row for row in self.listed if option is not None and row.key == option.id), None)

    def _tell(self) -> None:
        box, row = self.query_one("#about", VerticalScroll), self.chosen
        box.border_title = Content.styled(row.key if row else "No setting holds that", "bold")
        width = max(box.scrollable_content_region.width, 30)
        self.query_one("#about-text", Static).update(setting_details(row, width) if row else Content(""))

    def on_option_list_option_highlighted(self) -> None:
        """Explain the setting under the cursor."""
        self._tell()

    # Changing

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter changes it."""
        event.stop()
        self.action_edit()

    def action_edit(self) -> None:
        """Flip a switch, open the editor, or say why it stays."""
        row = self.chosen
        if row is None:
            return
        if row.fixed:
            self.dashboard.say(f"{row.key} is fixed: {row.counts}")
        elif row.choices == ("true", "false"):
            self.run_worker(self._flip(row), group="write", exclusive=True, exit_on_error=True)
        else:
            self.app.push_screen(SettingEditor(row, self.actions), lambda changed: self._changed(row, changed))

    async def _flip(self, row: SettingRow) -> None:
        value = "false" if row.value == "true" else "true"
        await self._write(self.actions.change(row.key, value, row.owner), row, value)

    def action_default(self) -> None:
        """Back to the default."""
        if (row := self.chosen) is not None and row.saved:
            self.run_worker(self._reset(row), group="write", exclusive=True, exit_on_error=True)

    async def _reset(self, row: SettingRow) -> None:
        await self._write(self.actions.reset(row.key, row.owner), row, row.default)

    async def _write(self, writing: Awaitable[None], row: SettingRow, value: str) -> None:
        try:
            await writing
        except USER_ERRORS as error:
            self.dashboard.say(str(error), error=True)
        else:
            self._changed(row, value)

    def _changed(self, row: SettingRow, value: str | None) -> None:
        if value is None:
            return
        if row.key == "ui.theme" and value in self.app.available_themes:
            self.app.theme = value
        self._read()

    def action_restart(self) -> None:
        """Let the node finish its round and start with these settings."""
        self.dashboard.say("Finishing the round, then starting the node with these settings")
        # a worker of the application, so that it continues when this screen closes
        self.app.run_worker(self._restart(), group="restart", exclusive=True, exit_on_error=True)

    async def _restart(self) -> None:
        await self.dashboard.told(self.actions.restart())
        if self.is_running:
            self._read()

    # Searching and leaving

    def on_input_changed(self) -> None:
        """Filter while typing; the cursor goes to the best match."""
        self._fill(searched=True)

    def action_advanced(self) -> None:
        """All settings, or the simple ones alone."""
        self.advanced = not self.advanced
        self.query_one(KeyBar).put(_keys(self.advanced))
        self._fill()

    def action_questions(self) -> None:
        """The questions of the first start once more."""
        self.dismiss()
        self.dashboard.answer_again()

    def action_back(self) -> None:
        """Close the search, then the settings."""
        if self.has_class("-searching"):
            self.action_clear()
        else:
            self.dismiss()


def row_line(row: SettingRow, width: int) -> Content:
    """Key, value and origin; if there is room, also the description."""
    origin = "default" if not row.saved else "model" if row.owner else "file"
    effect = width >= WIDE
    room = 24 if effect else max(width - 38, 8)
    value = fit_width(plain_text(row.value, 300) or "(empty)", room)
    style = "bold" if row.value != row.default else "$muted"
    mark = "!" if row.running else " "
    return Content.assemble(
        fit_width(row.key, 26),
        (value, style),
        (f" {mark}", "bold $warning"),
        (f" {origin:<7}", "$muted"),
        (f"  {fit_width(plain_text(row.help, 400), width - 62)}" if effect else "", "$muted"),
    )


def setting_details(row: SettingRow, width: int) -> Content:
    """Everything about one setting."""
    saved = f"of the model {row.owner}" if row.owner else "from the settings file"
    origin = saved if row.saved else "the default"
    pairs = [
        ("value", f"{readable_value(row, row.value)} ({origin})"),
        ("default", readable_value(row, row.default)),
        ("allowed", row.kind),
        ("fixed" if row.fixed else "counts", row.counts),
        *([] if row.fixed else [("terminal", _in_a_terminal(row))]),
    ]
    lines = [Content(hanging_indent(plain_text(row.help, 400), width, 0))]
    if row.running:
        text = f"The node that runs has {readable_value(row, row.running)}. Press a to start it again with what stands here."
        lines.append(Content.styled(hanging_indent(text, width, 0), "$warning"))
    lines += [
        Content.assemble((f"{label:<10}", "$muted"), hanging_indent(plain_text(value, 600), width, 10))
        for label, value in pairs
    ]
    return Content("\n").join(lines)


def _in_a_terminal(row: SettingRow) -> str:
    """The command that makes the same change."""
    if row.owner:
        return f"sapo-desktop node {row.owner} --{row.key.partition('.')[2].replace('_', '-')} VALUE"
    return f"sapo-desktop config set {row.key} VALUE"
