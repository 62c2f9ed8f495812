"""From a directory into an open swarm: a trial, then staying or leaving. Real homes, processes and sockets, the fake engine."""

from __future__ import annotations

import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.functional.app.test_join_and_host import FAKE, until
from tests.support.served_file import served
from tests.support.swarm_process import coordinator, journal
from textual.widgets import Input, OptionList, Static

from sapo_desktop import settings
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.first_run import FirstRunScreen
from sapo_desktop.dashboard.screens.swarm import screen
from sapo_desktop.dashboard.screens.swarm.find import FindDialog
from sapo_desktop.dashboard.widgets.frame import KeyBar
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.swarms import membership, trial
from sapo_desktop.services.swarms.actions import HomeActions
from sapo_swarm.coordinator.host import launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.events import RunStarted
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.directory import DirectoryEntry, SwarmList, sign_directory
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import parse_invite
from sapo_swarm.resolve_run import TRIAL_EXTERNAL_GROUPS

KEEPER = Identity.generate()


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    found.prepare()
    found.settings.write_text(FAKE)
    yield found
    await supervisor.shut_down_node(found)


def listing(join: str) -> bytes:
    now = int(time.time())
    entry = DirectoryEntry(
        name="[b]evenings",
        trains="sums",
        nodes=3,
        rounds_per_hour=40,
        who="anyone",
        checks="by each node",
        join=join,
    )
    asking = DirectoryEntry(
        name="closed", trains="sums", nodes=9, rounds_per_hour=1, who="invited", checks="x", ask="ada"
    )
    return sign_directory(SwarmList(name="friends", issued=now, expires=now + 3600, swarms=(entry, asking)), KEEPER)


def dashboard(home: Home) -> SapoDashboard:
    return SapoDashboard(ControlFeed(home.socket), swarm_actions=HomeActions(home))


def overview(app: SapoDashboard) -> str:
    return str(app.screen.query_one("#overview").render())


@pytest.mark.slow
async def test_a_swarm_is_found_tried_and_stayed_in(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """f asks for a directory, lists its swarms, Enter joins for trial; app and node restart on trial; s ends it."""
    monkeypatch.setattr(trial, "ROUNDS", 4)
    monkeypatch.setattr(screen, "ROUNDS", 4)
    async with coordinator(tmp_path / "host", "--port", "0", "--open") as (invite, _), served(listing(invite)) as file:
        await supervisor.launch_node(home, [])
        app = dashboard(home)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.state.rounds >= 1)
            await pilot.press("2", "f")
            await until(pilot, lambda: isinstance(app.screen, FindDialog) and app.screen.query_one("#line").has_focus)
            assert "None is built into this app" in str(app.screen.query_one("#state", Static).visual)
            app.screen.query_one("#line", Input).value = f"{file.url}#key={KEEPER.node}"
            await pilot.press("enter")
            rows = app.screen.query_one("#rows", OptionList)
            await until(pilot, lambda: rows.option_count == 2)
            assert "[b]evenings" in str(rows.get_option_at_index(0).prompt)
            await pilot.press("down", "enter")
            await until(pilot, lambda: "invite: ada" in str(app.screen.query_one("#complaint", Static).visual))
            await pilot.press("up", "enter")
            await until(pilot, lambda: app.state.run is not None and bool(app.state.run.trial))
            assert (home.config / "trial").exists()
            await until(pilot, lambda: "Trial, " in overview(app))
            await until(pilot, lambda: app.state.trial.rounds >= 1)
            assert app.state.run is not None
            assert app.state.run.external_groups == TRIAL_EXTERNAL_GROUPS
        await supervisor.shut_down_node(home)
        await supervisor.launch_node(home, [])
        app = dashboard(home)
        async with app.run_test(size=(80, 24)) as pilot:
            await pilot.press("2")
            await until(pilot, lambda: app.state.trial.rounds >= 4)
            await until(pilot, lambda: "Stay? s stays" in overview(app))
            await pilot.press("s")
            await until(pilot, lambda: app.state.run is not None and not app.state.run.trial)
            assert app.state.run is not None
            assert (app.state.run.mode, app.state.run.external_groups) == ("swarm", 8)
            assert trial.find_trial(home.invite, parse_invite(invite).swarm) is None
            await until(pilot, lambda: "stay" not in str(app.screen.query_one(KeyBar).render()))
    started = [event for event in journal(home.config) if isinstance(event, RunStarted)]
    assert [bool(event.trial) for event in started] == [False, True, True, False]
    assert started[1].trial == started[2].trial


@pytest.mark.slow
async def test_leaving_a_trial_leaves_nothing_behind(home: Home, tmp_path: Path) -> None:
    """No invite, no trial, no group in the swarm's pool."""
    async with coordinator(tmp_path / "host", "--port", "0", "--open", "--list") as (invite, process):
        assert process.stdout is not None
        settings.write_setting(home.settings, "run.tasks", "basic_arithmetic")
        await HomeActions(home).join(invite, listed=True)
        app = dashboard(home)
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, lambda: app.state.swarm is not None and app.state.swarm.accepted > 0)
            await pilot.press("2", "l")
            await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
            await pilot.press("enter")
            await until(pilot, lambda: app.state.run is not None and app.state.run.mode == "silo")
            await until(pilot, lambda: not home.invite.exists() and not (home.config / "trial").exists())
        async with NodeClient(parse_invite(invite), Identity.generate()) as other:
            await other.join("Ada", "starter")
            assert (await other.exchange([], 8)).sample == ()
    assert not settings.load_settings(home.settings).swarm.join
    assert sorted(path.name for path in home.config.iterdir()) == ["cache", "config.toml", "data", "logs", "run"]


async def test_leaving_without_the_key_forgets_the_invite_all_the_same(home: Home) -> None:
    """Over SSH the keyring that holds it is locked, say."""
    membership.save_invite("sapo://127.0.0.1:7361/#t=" + "a" * 32 + "&s=" + "c" * 16, home.invite)
    folder = home.data / "identity"
    folder.mkdir(parents=True)
    (folder / "node.id").write_text(Identity.generate().node)
    said = await membership.leave_swarm(home)
    assert said.startswith(
        "Left the swarm. The coordinator could not be told: The node's secret key is in the system's keyring"
    )
    assert said.endswith("The invite is forgotten.")
    assert not home.invite.exists()


async def test_the_first_run_finds_a_swarm_too(home: Home, tmp_path: Path) -> None:
    """Mode "find" shows the directories; what is chosen there becomes the invite, and is on trial."""
    answered: list[FirstRunAnswers | None] = []
    app = dashboard(home)
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=f"sqlite:{tmp_path}/s", open=True))
    join = str(hosted.invite)
    async with served(listing(join)) as file, app.run_test(size=(80, 24)) as pilot:
        settings.write_setting(home.settings, "swarm.directories", f"{file.url}#key={KEEPER.node}")
        app.push_screen(FirstRunScreen(FirstRunInfo()), answered.append)
        await pilot.pause()
        await pilot.press("left", "enter")
        await until(pilot, lambda: isinstance(app.screen, FindDialog) and len(app.screen.rows) == 2)
        await pilot.press("enter")
        await until(pilot, lambda: isinstance(app.screen, FirstRunScreen))
        assert app.screen.query_one("#invite", Input).value == join
        await pilot.press("enter")
        await until(pilot, lambda: bool(answered))
    await hosted.stop()
    assert answered[0] is not None
    assert (answered[0].mode, answered[0].invite, answered[0].listed) == ("swarm", join, True)
    first_run.save_answers(answered[0], home.settings, home.invite)
    kept = settings.load_settings(home.settings).swarm
    assert (kept.join, len(kept.directories)) == (True, 1)
    assert trial.find_trial(home.invite, parse_invite(join).swarm) is not None


@pytest.mark.parametrize("closed", [True, False])
async def test_a_listed_swarm_that_is_gone_or_closed_changes_nothing(home: Home, tmp_path: Path, closed: bool) -> None:
    store = f"sqlite:{tmp_path}/s"
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=store, open=True))
    join = str(hosted.invite)
    await hosted.stop()
    app = dashboard(home)
    async with contextlib.AsyncExitStack() as stack:
        if closed:
            again = await launch_coordinator(CoordinatorSettings(port=0, store=store))
            stack.push_async_callback(again.stop)
            join = join.replace(f":{hosted.port}/", f":{again.port}/")
        file = await stack.enter_async_context(served(listing(join)))
        pilot = await stack.enter_async_context(app.run_test(size=(80, 24)))
        settings.write_setting(home.settings, "swarm.directories", f"{file.url}#key={KEEPER.node}")
        await pilot.press("2", "f")
        await until(pilot, lambda: isinstance(app.screen, FindDialog) and len(app.screen.rows) == 2)
        await pilot.press("enter")
        said = "by invite only by now" if closed else "cannot be reached"
        await until(pilot, lambda: said in str(app.screen.query_one("#complaint", Static).visual))
        assert isinstance(app.screen, FindDialog)
    assert not home.invite.exists()


async def test_what_is_wrong_with_a_directory_stands_in_the_dialog(home: Home) -> None:
    app = dashboard(home)
    async with served(b"{}") as file, app.run_test(size=(40, 10)) as pilot:
        settings.write_setting(home.settings, "swarm.directories", f"{file.url}#key={KEEPER.node}")
        await pilot.press("2", "f")
        await until(pilot, lambda: isinstance(app.screen, FindDialog))
        await until(pilot, lambda: "It is not signed." in str(app.screen.query_one("#state", Static).visual))
        await pilot.press("a")
        app.screen.query_one("#line", Input).value = "http://example.org/a.json"
        await pilot.press("enter")
        await until(pilot, lambda: "needs #key" in str(app.screen.query_one("#complaint", Static).visual))
