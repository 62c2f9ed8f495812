"""The keys of screen 3: filters, actions on the chosen group or on all that match, and the export dialog."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input, Static

from sapo_desktop.dashboard.history.groups import (
    REWARDS,
    SOURCES,
    TRAINED,
    GroupFilter,
    GroupQueryResult,
    export_groups,
)
from sapo_desktop.dashboard.look import format_group_count, plain_text
from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.dialogs import Dialog, key_hint
from sapo_desktop.dashboard.screens.rollouts.detail import group_details
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import typed_target
from sapo_swarm.events import GroupRecorded

# The dialog that asks where to write the matching groups.


class ExportDialog(Dialog[Path | None]):
    """Returns the file, None after Esc. An existing file is never overwritten."""

    AUTO_FOCUS: ClassVar[str | None] = "#file"

    def __init__(self, count: int, wanted: GroupFilter) -> None:
        super().__init__()
        self.count, self.wanted = count, wanted

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog form"):
            yield Static(Content.styled(f"Write {format_group_count(self.count)} as JSON lines", "bold"), markup=False)
            yield Static(Content.styled(plain_text(self.wanted.describe(), 200), "$muted"), markup=False)
            yield Input("rollouts.jsonl", id="file", compact=True)
            yield Static("", id="complaint", markup=False)
            yield Static(key_hint(("Enter", "write"), ("Esc", "cancel")), markup=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Return the file, unless it exists already."""
        event.stop()
        typed = event.value.strip()
        try:
            path = typed_target(typed)
            if typed and not path.exists():
                self.dismiss(path)
                return
            problem = f"There is something at {path} already: write another name." if typed else "Write a name."
        except UsageError as error:
            problem = str(error)
        self.complain(problem)


# The keys of screen 3: filters, and actions on the chosen group or on all that match.

T = TypeVar("T")


class GroupKeys(BaseScreen):
    """Base of the screen that lists the groups."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("t", "next_task", "task", show=False),
        Binding("o", "next_source", "source", show=False),
        Binding("w", "next_reward", "reward", show=False),
        Binding("u", "next_trained", "trained on", show=False),
        Binding("v", "first_solved", "first solved", show=False),
        Binding("a", "truth", "right answer", show=False),
        Binding("x", "diff", "compare two attempts", show=False),
        Binding("c", "copy", "copy", show=False),
        Binding("e", "export", "export", show=False),
    ]
    newest: GroupQueryResult
    _truths: dict[int, str] | None = None
    """Correct answers by group number; None while they are hidden."""
    _asker: object = None

    @property
    @abstractmethod
    def filter(self) -> GroupFilter:
        """The filter for the listed groups."""

    @property
    @abstractmethod
    def chosen(self) -> GroupRecorded | None:
        """The group under the cursor."""

    @abstractmethod
    def ask_for(self, wanted: GroupFilter) -> None:
        """Show the newest groups that match."""

    @abstractmethod
    def show_chosen(self) -> None:
        """Redraw the chosen group."""

    # Filters

    def action_next_task(self) -> None:
        """Filter by the next task."""
        self.ask_for(replace(self.filter, task=cycle_next(["", *self.newest.tasks], self.filter.task)))

    def action_next_source(self) -> None:
        """Filter by the next source."""
        self.ask_for(replace(self.filter, source=cycle_next(SOURCES, self.filter.source)))

    def action_next_reward(self) -> None:
        """Filter by the next outcome."""
        self.ask_for(replace(self.filter, reward=cycle_next(REWARDS, self.filter.reward)))

    def action_next_trained(self) -> None:
        """Filter by whether the model was trained on it."""
        self.ask_for(replace(self.filter, trained=cycle_next(TRAINED, self.filter.trained)))

    def action_first_solved(self) -> None:
        """Only first successes at a task, or all again."""
        self.ask_for(replace(self.filter, first_solved=not self.filter.first_solved))

    # The chosen group

    def truth_of(self, event: GroupRecorded) -> str:
        """The text to show as the correct answer; "" for none."""
        if self._truths is None:
            return ""
        if event.seq not in self._truths:
            self._truths[event.seq] = "being looked up …"
            self.run_worker(self._look_up(event), group="truth", exclusive=False, exit_on_error=False)
        return self._truths[event.seq]

    async def _look_up(self, event: GroupRecorded) -> None:
        from sapo_desktop.services.tasks.looking import TruthLookup  # imports the scorer: only on demand

        asker = self._asker = self._asker or TruthLookup()
        assert isinstance(asker, TruthLookup)
        truth = await asker.of(event.group.question)
        if self._truths is not None:
            self._truths[event.seq] = truth
            self.show_chosen()

    async def close_truths(self) -> None:
        """End the worker that looks up answers."""
        from sapo_desktop.services.tasks.looking import TruthLookup

        asker, self._asker = self._asker, None
        if isinstance(asker, TruthLookup):
            await asker.close()

    def action_truth(self) -> None:
        """Show a right answer beside the attempts, or hide it."""
        self._truths = {} if self._truths is None else None
        self.show_chosen()

    def action_diff(self) -> None:
        """Compare two attempts of the group."""
        from sapo_desktop.dashboard.screens.rollouts.detail import DiffScreen

        event = self.chosen
        if event is None or len(event.group.rollouts) < 2:
            self.dashboard.say("There are no two attempts to compare here")
        else:
            self.app.push_screen(DiffScreen(event, self.glyphs))

    def action_copy(self) -> None:
        """The whole group as text, to the clipboard."""
        event = self.chosen
        if event is None:
            self.dashboard.say("There is no group to copy")
            return
        text = group_details(event, self.glyphs, self.truth_of(event), self.dashboard.state.counts)
        self.app.copy_to_clipboard(text.plain)
        self.dashboard.say("Copied the question and its attempts")

    # All matching groups

    def action_export(self) -> None:
        """Ask for a file, then write all groups that fit as JSON lines."""

        source = self.dashboard.feed.groups()
        if source is None or not self.newest.total:
            self.dashboard.say("There is no group to export")
            return

        def chosen(path: Path | None) -> None:
            if path is not None:
                self.run_worker(self._export(path), group="export", exclusive=True, exit_on_error=False)

        self.app.push_screen(ExportDialog(self.newest.total, self.filter), chosen)

    async def _export(self, path: Path) -> None:
        feed, cache = self.dashboard.feed, self.dashboard.cache
        source = feed.groups()
        assert source is not None  # checked before the dialog
        folder = cache / "rollouts" if cache else None
        writing = asyncio.to_thread(export_groups, source.again(), folder, self.filter, path, feed.upto())
        if (count := await self.dashboard.outcome(writing)) is not None:
            self.dashboard.say(f"Wrote {format_group_count(count)} to {path}")


def cycle_next(values: Iterable[T], current: T) -> T:
    """The value after the current one, cyclically."""
    options = list(values)
    return options[(options.index(current) + 1) % len(options)] if current in options else options[0]
