"""Keys that come before a list is laid out, or after it is gone, end nothing."""

from __future__ import annotations

from tests.support.scenes import everything
from tests.support.scripted_feed import NARROW, settled
from textual.app import App, ComposeResult
from textual.css.query import NoMatches

from sapo_desktop.dashboard.palette import ActionPalette
from sapo_desktop.dashboard.widgets.frame import ChoiceList


class Hidden(App[None]):
    """A list that has no line to be drawn on."""

    def compose(self) -> ComposeResult:
        yield ChoiceList("first", "second")

    def on_mount(self) -> None:
        self.query_one(ChoiceList).display = False


async def test_a_page_of_a_list_that_has_no_line_is_no_page() -> None:
    async with Hidden().run_test() as pilot:
        listing = pilot.app.query_one(ChoiceList)
        listing.highlighted = 0
        listing.action_page_down()
        listing.action_page_up()
        assert listing.highlighted == 0


def test_before_its_list_is_there_the_palette_takes_no_key_for_it() -> None:
    assert ActionPalette().check_action("command_list", ("page_down",)) is False


async def test_a_search_that_finds_the_palette_closed_ends_nothing() -> None:
    async def late() -> None:
        raise NoMatches("No nodes match 'CommandList'")

    async with everything().run_test(size=NARROW) as pilot:
        await settled(pilot)
        await pilot.press("ctrl+p")
        palette = pilot.app.screen
        assert isinstance(palette, ActionPalette)
        search = palette.run_worker(late(), exit_on_error=True)
        while not search.is_finished:
            await pilot.pause()
        await pilot.press("escape")
        assert pilot.app.is_running
