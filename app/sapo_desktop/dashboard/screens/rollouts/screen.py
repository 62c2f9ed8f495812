"""Screen 3: every stored group of the run with its question, attempts, rewards, verdicts and advantages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import ClassVar

from textual.containers import VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.history.groups import (
    PAGE,
    GroupFilter,
    GroupIndex,
    GroupQuery,
    GroupQueryResult,
    GroupReader,
    GroupSource,
)
from sapo_desktop.dashboard.look import GlyphSet, plain_text
from sapo_desktop.dashboard.screens.base import SearchableScreen
from sapo_desktop.dashboard.screens.rollouts.detail import GroupList, group_details
from sapo_desktop.dashboard.screens.rollouts.keys import GroupKeys
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.frame import Key
from sapo_desktop.dashboard.widgets.panels import group_line
from sapo_swarm.events import GroupRecorded


class RolloutsScreen(SearchableScreen, GroupKeys):
    """Screen 3: a page of the groups that match the filter, and the chosen one in full.

    A thread (GroupReader) reads the groups: `_ask` sends a query, `on_rollouts_screen_answered` shows the result.
    """

    AUTO_FOCUS: ClassVar[str | None] = "#groups"
    SEARCHED = "#groups"

    class Answered(Message):
        """The reader's answer."""

        def __init__(self, answer: GroupQueryResult) -> None:
            super().__init__()
            self.answer = answer

    def __init__(self) -> None:
        super().__init__()
        self.wish = GroupQuery()
        self.shown = GroupQueryResult(self.wish)
        """The listed page."""
        self.newest = self.shown
        """The newest known state of the first page, which may have grown meanwhile."""
        self.before = 0
        """How many matching groups are newer than this page."""
        self._reader: GroupReader | None = None
        self._source: GroupSource | None = None
        self._cursor_last = False
        self._width = 0
        self._said = ("", "")
        self._drawn: tuple[GroupRecorded | None, str, GlyphSet] | None = None

    def body(self) -> Iterable[Widget]:
        """The search field, the list, the chosen group."""
        yield Input(
            placeholder="search questions and attempts, Enter keeps it, Esc clears it", id="search", classes="search"
        )
        yield GroupList(id="groups", classes="box", markup=False)
        with VerticalScroll(id="detail", classes="box"):
            yield Static("", id="detail-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - as every screen
        """Filters, search and the actions on the chosen group."""
        return [
            ("t", "task", "screen.next_task"),
            ("o", "local/ext", "screen.next_source"),
            ("w", "reward", "screen.next_reward"),
            ("/", "search", "screen.search"),
            ("x", "diff", "screen.diff"),
            ("a", "answer", "screen.truth"),
        ]

    def update(self, state: DashboardState, now: float) -> None:  # noqa: ARG002 - as every screen
        """Open the journal of the watched run; a recording reveals more groups as it plays."""
        source, upto = self.dashboard.feed.groups(), self.dashboard.feed.upto()
        if source is not self._source:
            self._follow(source)
        elif source is not None and self._reader is None:
            self._read(source)
        elif upto != self.wish.upto and self.at_top:
            self._ask(GroupQuery(self.filter, upto=upto))
        listing = self.query_one("#groups", GroupList)
        if listing.size.width != self._width:
            self._fill()
        elif not self.shown.groups:
            self._detail(None)
        self._title()

    @property
    def filter(self) -> GroupFilter:
        """The filter for the listed groups."""
        return self.wish.filter

    @property
    def current(self) -> bool:
        """Whether the listed page answers the current query."""
        return self.shown.wish == self.wish

    @property
    def at_top(self) -> bool:
        """Whether the cursor is on the newest group, so that the list follows the journal."""
        return self.wish.first and not self.query_one("#groups", GroupList).highlighted

    @property
    def chosen(self) -> GroupRecorded | None:
        """The group under the cursor."""
        place = self.query_one("#groups", GroupList).highlighted
        return self.shown.groups[place] if place is not None and place < len(self.shown.groups) else None

    # Querying and showing

    def _follow(self, source: GroupSource | None) -> None:
        self._close_reader()
        self._source = source
        if source is not None:
            self._ask(GroupQuery(self.filter, upto=self.dashboard.feed.upto()))
            self._read(source)

    def _read(self, source: GroupSource) -> None:
        folder = self.dashboard.cache / "rollouts" if self.dashboard.cache else None
        self._reader = GroupReader(lambda: GroupIndex(source, folder), self._answered)
        self._reader.ask(self.wish)

    def _answered(self, answer: GroupQueryResult) -> None:
        """Called in the reader's thread."""
        self.post_message(self.Answered(answer))

    def _close_reader(self) -> None:
        """End the thread."""
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def on_screen_suspend(self) -> None:
        """Close the files: the model may be deleted from another screen, and Windows cannot delete open files."""
        self._close_reader()

    async def on_unmount(self) -> None:
        """End the reader's thread and the worker that looks up correct answers."""
        self._close_reader()
        await self.close_truths()

    def _ask(self, wish: GroupQuery, before: int = 0, cursor_last: bool = False) -> None:
        self.wish, self.before, self._cursor_last = wish, before, cursor_last
        if self._reader is not None:
            self._reader.ask(wish)

    def ask_for(self, wanted: GroupFilter) -> None:
        """Show the newest groups that match."""
        self._ask(GroupQuery(wanted, upto=self.dashboard.feed.upto()))
        self._title()

    def on_rollouts_screen_answered(self, message: Answered) -> None:
        """Show the page. Answers to outdated queries are ignored, and paging is not disturbed."""
        answer = message.answer
        if answer.problem:
            self.newest = self.shown = replace(answer, wish=self.wish)
        elif answer.wish != self.wish:
            return
        walking = answer.wish.first and self.shown.wish == answer.wish and not self.at_top
        self.newest = answer
        if not walking:
            if answer.wish.start == 0:
                self.before = max(answer.total - len(answer.groups), 0)
            old, self.shown = self.shown, answer
            if old.groups != answer.groups or self._cursor_last or not answer.groups:
                self._fill()
        self._title()

    def _fill(self) -> None:
        listing = self.query_one("#groups", GroupList)
        self._width = listing.size.width
        width = max(listing.scrollable_content_region.width - 2, 40)
        keep = listing.highlighted if self.shown.wish.first and self._width else None
        listing.clear_options()
        listing.add_options(
            [Option(group_line(event, self.dashboard.state.counts, width, self.glyphs)) for event in self.shown.groups]
        )
        if self.shown.groups:
            last = len(self.shown.groups) - 1
            listing.highlighted = last if self._cursor_last else min(keep or 0, last)
            self._cursor_last = False
        self._detail(self.chosen)

    def _title(self) -> None:
        listing, newest, shown = self.query_one("#groups", GroupList), self.newest, self.shown
        first = self.before + 1 if shown.groups else 0
        none = "none yet" if self.filter == GroupFilter() else "none fits · Esc"
        counted = f"{first:,}-{self.before + len(shown.groups):,} of {newest.total:,}" if newest.total else none
        growing = f" · {newest.indexed:,} of {newest.of:,} read so far" if newest.indexed < newest.of else ""
        behind = " · newer ones: Home" if newest.groups[:1] != shown.groups[:1] and shown.wish == newest.wish else ""
        titles = (plain_text(self.filter.describe(), 120), f"{counted}{growing}{behind}")
        if titles != self._said:
            self._said = titles
            listing.border_title = Content.assemble(("Groups", "bold"), (f"  {titles[0]}", "$muted"))
            listing.border_subtitle = Content.styled(titles[1], "$muted")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show the group under the cursor."""
        event.stop()
        self._detail(self.chosen)

    def _detail(self, event: GroupRecorded | None) -> None:
        truth = self.truth_of(event) if event else self._nothing()
        drawn = event, truth, self.glyphs
        if drawn == self._drawn:  # refilling the list also reports its cursor: do not draw the same group twice
            return
        self._drawn = drawn
        box = self.query_one("#detail", VerticalScroll)
        box.scroll_home(animate=False)
        box.border_title = Content.styled("Question and attempts", "bold")
        box.border_subtitle = Content.styled(
            "Tab reads on · u trained on · v first solved · c copy · e export" if event else "", "$muted"
        )
        text = (
            group_details(event, self.glyphs, truth, self.dashboard.state.counts)
            if event
            else Content.styled(truth, "$muted")
        )
        self.query_one("#detail-text", Static).update(text)

    def show_chosen(self) -> None:
        """Redraw the chosen group: its correct answer is known now, or was hidden."""
        self._detail(self.chosen)

    def _nothing(self) -> str:
        if self.shown.problem:
            return plain_text(self.shown.problem, 400)
        if self.filter != GroupFilter():
            return "No group fits the filter. Esc clears it."
        if self.dashboard.state.before_practice:
            return "Rollouts come with practice, after the examples."
        if self.dashboard.state.rounds:
            return "No group of these rounds is kept. How many rounds keep theirs: run.keep_groups in the settings."
        return "Nothing yet. The first round's questions and attempts appear here as soon as they are scored."

    # Pages and search

    def on_group_list_left(self, message: GroupList.Left) -> None:
        """The cursor moves past the edge of the page. Repeated keys are ignored while the next page loads."""
        if not self.current and message.edge in ("older", "newer"):
            return
        shown, upto = self.shown, self.dashboard.feed.upto()
        last = self.before + len(shown.groups)
        if message.edge == "newest" or (message.edge == "newer" and 0 < self.before <= PAGE):
            self._ask(GroupQuery(self.filter, upto=upto), cursor_last=message.edge == "newer")
            self.query_one("#groups", GroupList).highlighted = 0
        elif message.edge == "oldest":
            self._ask(GroupQuery(self.filter, 0, "newer", upto), cursor_last=True)
        elif message.edge == "older" and last < self.newest.total and shown.groups:
            self._ask(GroupQuery(self.filter, shown.groups[-1].seq, "older", upto), last)
        elif message.edge == "newer" and self.before > PAGE:
            self._ask(GroupQuery(self.filter, shown.groups[0].seq, "newer", upto), self.before - PAGE, True)

    def action_clear(self) -> None:
        """Empty and close the search."""
        with self.query_one("#search", Input).prevent(Input.Changed):
            super().action_clear()
        self.ask_for(GroupFilter())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self.ask_for(replace(self.filter, text=event.value))
