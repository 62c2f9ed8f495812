"""Screen 3: every kept group with its question, attempts, rewards, verdicts and advantages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import plain, reward
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.dashboard.widgets.panels import group_line
from sapo_swarm.events import GroupRecorded
from sapo_swarm.types import Rollout

LISTED = 300
SOURCES = ("local and external", "local", "external")
REWARDS = ("any reward", "all right", "mixed", "none right", "first solved")


@dataclass(frozen=True)
class Filter:
    """Which groups are listed. task "": all."""

    task: str = ""
    source: str = SOURCES[0]
    reward: str = REWARDS[0]
    text: str = ""

    def holds(self, event: GroupRecorded) -> bool:
        """Whether the group is listed."""
        group = event.group
        if self.task and group.question.ref.dataset != self.task:
            return False
        if self.source != SOURCES[0] and (group.source == "external") != (self.source == "external"):
            return False
        return self._reward_fits(event) and self._text_fits(event)

    def _reward_fits(self, event: GroupRecorded) -> bool:
        rewards = event.group.rewards
        match self.reward:
            case "all right":
                return min(rewards, default=0.0) >= 1
            case "mixed":
                return event.group.nonzero_advantage
            case "none right":
                return max(rewards, default=0.0) <= 0
            case "first solved":
                return event.first_solved
        return True

    def _text_fits(self, event: GroupRecorded) -> bool:
        if not self.text:
            return True
        wanted = self.text.casefold()
        group = event.group
        return wanted in group.question.prompt.casefold() or any(wanted in r.text.casefold() for r in group.rollouts)

    def describe(self) -> str:
        """The filter in words, for the title."""
        search = f" · holds “{plain(self.text, 40)}”" if self.text else ""
        return f"{self.task or 'all tasks'} · {self.source} · {self.reward}{search}"


class RolloutsScreen(BaseScreen):
    """Screen 3: a list of groups, and the chosen one in full."""

    AUTO_FOCUS: ClassVar[str | None] = "#groups"
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "next_task", "task", show=False),
        Binding("o", "next_source", "source", show=False),
        Binding("w", "next_reward", "reward", show=False),
        Binding("slash", "search", "search", show=False),
        Binding("escape", "clear", "clear", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self.filter = Filter()
        self.listed: list[GroupRecorded] = []
        self._drawn: object = None

    def body(self) -> Iterable[Widget]:
        """The search field, the list, the chosen group."""
        yield Input(
            placeholder="search questions and attempts, Enter keeps it, Esc clears it", id="search", classes="search"
        )
        yield OptionList(id="groups", classes="box", markup=False)
        with VerticalScroll(id="detail", classes="box"):
            yield Static("", id="detail-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:  # noqa: ARG002 - as every screen
        """Filters, search, screens."""
        return [
            ("t", "task", "screen.next_task"),
            ("o", "local/ext", "screen.next_source"),
            ("w", "reward", "screen.next_reward"),
            ("/", "search", "screen.search"),
            ("Esc", "clear", "screen.clear"),
            ("1-5", "screens", "app.next_screen"),
        ]

    def update(self, state: DashboardState, now: float) -> None:  # noqa: ARG002 - as every screen
        """New groups appear while the cursor is at the top; further down the list stands still."""
        listing = self.query_one("#groups", OptionList)
        browsing = bool(listing.highlighted)
        key = (self.filter, listing.size.width)
        if self._drawn is not None and key == self._drawn[0] and (browsing or state.groups is self._drawn[1]):  # type: ignore[index]
            self._title(listing, state, browsing)
            return
        self._drawn = (key, state.groups)
        self._fill(listing, state)
        self._title(listing, state, False)

    def _fill(self, listing: OptionList, state: DashboardState) -> None:
        newest = state.groups.newest(len(state.groups))
        self.listed = [event for event in newest if self.filter.holds(event)][:LISTED]
        width = max(listing.scrollable_content_region.width - 2, 40)
        listing.clear_options()
        listing.add_options([Option(group_line(event, width, self.glyphs)) for event in self.listed])
        if self.listed:
            listing.highlighted = 0
        self._detail(self.listed[0] if self.listed else None)

    def _title(self, listing: OptionList, state: DashboardState, browsing: bool) -> None:
        behind = browsing and self._drawn is not None and state.groups is not self._drawn[1]  # type: ignore[index]
        note = " · newer ones: Home" if behind else ""
        listing.border_title = Content.assemble(("Groups", "bold"), (f"  {self.filter.describe()}", "$muted"))
        listing.border_subtitle = Content.styled(f"{len(self.listed)} shown{note}", "$muted")

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        """Show the group under the cursor."""
        if event.option_index < len(self.listed):
            self._detail(self.listed[event.option_index])

    def _detail(self, event: GroupRecorded | None) -> None:
        box = self.query_one("#detail", VerticalScroll)
        box.scroll_home(animate=False)
        box.border_title = Content.styled("Question and attempts", "bold")
        text = detail(event, self.glyphs) if event else Content.styled(self._nothing(), "$muted")
        self.query_one("#detail-text", Static).update(text)

    def _nothing(self) -> str:
        if self.filter != Filter():
            return "No group fits the filter. Esc clears it."
        if self.dashboard.state.rounds:
            return "No group of these rounds is kept. How many rounds keep theirs: run.keep_groups in the settings."
        return "Nothing yet. The first round's questions and attempts appear here as soon as they are scored."

    def _set(self, wanted: Filter) -> None:
        self.filter = wanted
        self.dashboard.redraw()

    def action_next_task(self) -> None:
        """Filter by the next task."""
        tasks = ["", *sorted({event.group.question.ref.dataset for event in self.dashboard.state.groups})]
        self._set(replace(self.filter, task=following(tasks, self.filter.task)))

    def action_next_source(self) -> None:
        """Filter by the next source."""
        self._set(replace(self.filter, source=following(SOURCES, self.filter.source)))

    def action_next_reward(self) -> None:
        """Filter by the next outcome."""
        self._set(replace(self.filter, reward=following(REWARDS, self.filter.reward)))

    def action_search(self) -> None:
        """Open the search field."""
        search = self.query_one("#search", Input)
        search.add_class("-open")
        search.focus()

    def action_clear(self) -> None:
        """Empty and close the search."""
        search = self.query_one("#search", Input)
        search.value = ""
        search.remove_class("-open")
        self._set(Filter())
        self.query_one("#groups", OptionList).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while typing."""
        self._set(replace(self.filter, text=event.value))

    def on_input_submitted(self) -> None:
        """Back to the list, filtered."""
        self.query_one("#groups", OptionList).focus()


def following(values: Iterable[str], current: str) -> str:
    """The value after the current one, round and round."""
    known = list(values)
    return known[(known.index(current) + 1) % len(known)] if current in known else known[0]


def detail(event: GroupRecorded, glyphs: Glyphs) -> Content:
    """The whole group: coordinates, question, and each attempt with its verdict."""
    group = event.group
    source = "local" if group.source == "own" else f"from {plain(group.node[:8], 8)} ({plain(group.model, 40)})"
    used = "trained on" if event.trained else "not trained on"
    head = Content.assemble(
        (group.question.ref.label, "bold"),
        (f"  round {event.round + 1} · {source} · {used}", "$muted"),
        (f"  {glyphs.star} first success at this task" if event.first_solved else "", "bold $accent"),
    )
    rows = [head, Content(""), Content(plain(group.question.prompt.strip(), lines=True)), Content("")]
    for place, rollout in enumerate(group.rollouts):
        advantage = group.advantages[place] if place < len(group.advantages) else None
        rows += [
            _verdict(place, rollout, advantage, glyphs),
            Content(plain(rollout.text.strip(), lines=True)),
            Content(""),
        ]
    return Content("\n").join(rows)


def _verdict(place: int, rollout: Rollout, advantage: float | None, glyphs: Glyphs) -> Content:
    if rollout.reward >= 1:
        mark, word, style = glyphs.right, "right", "bold $success"
    elif rollout.reward > 0:
        mark, word, style = glyphs.partial, "partly right", "bold $warning"
    else:
        mark, word, style = glyphs.wrong, "wrong", "bold $muted"
    if rollout.shortcut:
        word = "right on other questions too"
    if rollout.finish == "length":
        mark, word = (
            (glyphs.cut, f"{word}, cut at the limit") if rollout.reward <= 0 else (mark, f"{word}, cut at the limit")
        )
    push = f" · advantage {advantage:+.2f}" if advantage is not None else " · no advantage: all rewards equal"
    return Content.assemble(
        (f"{mark} {place + 1}  {word}", style),
        (f"  reward {reward(rollout.reward)} · {rollout.tokens} tokens{push}", "$muted"),
    )
