"""Screen 4 over runs that a real node left on disk."""

from __future__ import annotations

from pathlib import Path

import pytest
from sapo_desktop.dashboard.screens.models.run_facts import read_facts
from sapo_desktop.services.models.runs import list_runs
from tests.support.node_process import FAKE, sapo
from textual import events
from textual.pilot import Pilot

from sapo_desktop.dashboard.app import BLURRED_S, FOCUSED_S, SapoDashboard
from sapo_desktop.dashboard.feed import ReplayFeed
from sapo_desktop.dashboard.screenshot import picture


async def lines(pilot: Pilot[object]) -> str:
    await pilot.app.workers.wait_for_complete()
    await pilot.pause()
    return "\n".join("".join(s.text for s in strip) for strip in pilot.app.screen._compositor.render_strips())


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    done = sapo(folder, "node", *FAKE, "--rounds", "3", "--eval-every", "2", "--eval-items", "4")
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_a_run_shows_its_measurements_its_checkpoints_and_what_to_do_with_them(
    home: Path, size: tuple[int, int]
) -> None:
    app = SapoDashboard(ReplayFeed([], 0), runs=home / "data" / "runs")
    async with app.run_test(size=size) as pilot:
        await pilot.press("4")
        text = await lines(pilot)
        assert "Runs (1)" in text
        assert "3 of 3 rounds" in text
        await pilot.press("tab", "end")
        text += await lines(pilot)
        for expected in (
            "round     0",
            "Checkpoints (",
            "round-000003",
            "sapo-desktop eval --run",
            "sapo-desktop export",
        ):
            assert expected in text


async def test_a_broken_journal_is_told_and_the_checkpoints_still_show(home: Path, tmp_path: Path) -> None:
    (run,) = list_runs(home / "data" / "runs")
    copy = tmp_path / "runs" / run.run_id
    (copy / "checkpoints" / "round-000002").mkdir(parents=True)
    (copy / "config.json").write_bytes((run.folder / "config.json").read_bytes())
    (copy / "journal.db").write_bytes(b"not a database at all" * 100)
    (broken,) = list_runs(tmp_path / "runs")
    facts = read_facts(broken)
    assert "journal" in facts.problem
    assert [checkpoint.name for checkpoint in facts.checkpoints] == ["round-000002"]


async def test_without_a_run_the_screen_says_when_there_will_be_one(tmp_path: Path) -> None:
    async with SapoDashboard(ReplayFeed([], 0), runs=tmp_path).run_test(size=(80, 24)) as pilot:
        await pilot.press("4")
        assert "There is no run yet" in await lines(pilot)


async def test_without_a_folder_of_runs_key_4_does_nothing() -> None:
    app = SapoDashboard(ReplayFeed([], 0))
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("4")
        assert app.current_mode == "dashboard"


async def test_a_terminal_without_focus_is_drawn_four_times_more_rarely() -> None:
    app = SapoDashboard(ReplayFeed([], 0))
    async with app.run_test(size=(80, 24)) as pilot:
        assert app._timer._interval == FOCUSED_S == 0.5
        app.post_message(events.AppBlur())
        await pilot.pause()
        assert app._timer._interval == BLURRED_S == 2.0
        app.post_message(events.AppFocus())
        await pilot.pause()
        assert app._timer._interval == FOCUSED_S


async def test_the_picture_for_the_readme_names_no_host(home: Path) -> None:
    (run,) = list_runs(home / "data" / "runs")
    drawn = await picture(run.folder, (120, 36), [])
    assert "Held-out" in drawn
    assert "https://" not in drawn
    assert "@font-face" not in drawn
