"""Screen 4: what was trained here, what it gained, which checkpoints there are."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import ClassVar

from textual import work
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widget import Widget
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option

from sapo_desktop.dashboard.screens.base import BaseScreen
from sapo_desktop.dashboard.screens.models.run_facts import RunFacts, facts_text, read_facts, run_line
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.dashboard.widgets.keybar import Key
from sapo_desktop.services.models.runs import Run, list_runs

LISTED = 200


class RunsScreen(BaseScreen):
    """Reads the disk in worker threads when it comes up and when another run is chosen; never on the event loop."""

    AUTO_FOCUS: ClassVar[str | None] = "#runs"

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder
        self.runs: list[Run] = []

    def body(self) -> Iterable[Widget]:
        yield OptionList(id="runs", classes="box", markup=False)
        with VerticalScroll(id="facts", classes="box"):
            yield Static("", id="facts-text", markup=False)

    def own_keys(self, state: DashboardState) -> list[Key]:
        return [
            *self.pause_keys(state),
            ("1-5", "screens", "app.next_screen"),
        ]

    def on_screen_resume(self) -> None:
        super().on_screen_resume()
        self._list()

    @work(thread=True, exclusive=True, group="list")
    def _list(self) -> None:
        runs = list_runs(self.folder)[::-1][:LISTED]
        self.app.call_from_thread(self._fill, runs)

    def _fill(self, runs: list[Run]) -> None:
        listing = self.query_one("#runs", OptionList)
        chosen = self.runs[listing.highlighted].run_id if listing.highlighted is not None else ""
        self.runs, now = runs, self.dashboard.feed.now()
        width = max(listing.scrollable_content_region.width, 60)
        listing.border_title = Content.styled(f"Runs ({len(runs)})", "bold")
        self.query_one("#facts", VerticalScroll).border_title = Content.styled("The run", "bold")
        listing.clear_options()
        listing.add_options([Option(run_line(run, now, width)) for run in runs])
        if not runs:
            self._say("There is no run yet. The first one appears here as soon as the node opens it.")
            return
        places = [place for place, run in enumerate(runs) if run.run_id == chosen]
        listing.highlighted = places[0] if places else 0
        self._read(runs[listing.highlighted])

    def on_option_list_option_highlighted(self, event: OptionList.OptionHighlighted) -> None:
        if event.option_index < len(self.runs):
            self._read(self.runs[event.option_index])

    @work(thread=True, exclusive=True, group="facts")
    def _read(self, run: Run) -> None:
        facts = read_facts(run)
        self.app.call_from_thread(self._tell, facts)

    def _tell(self, facts: RunFacts) -> None:
        box = self.query_one("#facts", VerticalScroll)
        text = facts_text(facts, self.dashboard.feed.now(), max(box.size.width - 4, 40), self.glyphs)
        self.query_one("#facts-text", Static).update(text)

    def _say(self, text: str) -> None:
        self.query_one("#facts-text", Static).update(Content.styled(text, "$muted"))
