"""The Aha trail and the strips as a person sees them: at every size, by their keys, in plain characters."""

from __future__ import annotations

import msgspec
import pytest
from tests.fixtures.make_recordings import recording
from tests.support.scripted_feed import app_over, settled

from sapo_swarm.events import Event, FirstSuccess, RoundFinished, SwarmUpdated

SILO = list(recording("silo", 40, 7))
ADA = "b" * 26


def taught() -> list[Event]:
    """A swarm in which task bf came from another node, was trained on, and was solved here in round 9."""
    story: list[Event] = []
    for event in recording("swarm", 30, 11):
        if isinstance(event, RoundFinished) and event.round == 3:
            story.append(FirstSuccess(time=event.time, round=3, task="maze", node=ADA, step=2))
            event = msgspec.structs.replace(event, taught={"maze": 2})
        if isinstance(event, RoundFinished) and event.round == 8:
            story.append(FirstSuccess(time=event.time, round=8, task="maze", taught=2, since=3, until=3))
        if isinstance(event, SwarmUpdated):
            event = msgspec.structs.replace(event, node=ADA)
        story.append(event)
    return story


SWARM = taught()


@pytest.mark.parametrize("size", [(80, 24), (120, 36), (200, 60)])
@pytest.mark.parametrize("glyphs", ["unicode", "ascii"])
async def test_the_swarm_page_tells_of_it_at_every_size(size: tuple[int, int], glyphs: str) -> None:
    async with app_over(SWARM, glyphs=glyphs, theme="textual-ansi").run_test(size=size) as pilot:
        await pilot.press("2")
        lines = await settled(pilot)
        (told,) = (line for line in lines if "maze" in line)
        assert "quiet-otter" in told
        assert "9" in told
        assert any("quiet-otter (me)" in line for line in lines)
        chart = size[0] >= 160  # its legend names the line
        assert sum("external share" in line for line in lines) == 1 + chart
        await pilot.press("w")
        whole = "\n".join(await settled(pilot))
        assert "trained on 2 groups of others with one in round 4" in whole
        assert "made in its round 3" in whole
        await pilot.press("escape")
        assert "is not shown" not in "\n".join(await settled(pilot))


@pytest.mark.parametrize("glyphs", ["unicode", "ascii"])
async def test_the_third_expansion_shows_every_task_over_time_with_figures(glyphs: str) -> None:
    async with app_over(SILO, glyphs=glyphs, theme="textual-ansi").run_test(size=(120, 36)) as pilot:
        lines = await settled(pilot)
        assert any("calendar_arithmetic" in line and "%" in line for line in lines), "a strip in the panel"
        await pilot.press("e", "e", "e")
        lines = await settled(pilot)
        assert any("after round" in line and " 25 " in line for line in lines)
        assert not any("Last rollouts" in line for line in lines)
        await pilot.press("e")
        assert any("Last rollouts" in line for line in await settled(pilot))
