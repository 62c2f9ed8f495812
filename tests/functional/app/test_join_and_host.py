"""Joining and hosting from the dashboard: real homes, real background processes, the fake engine."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from tests.support.node_process import CALM, node, reaches
from tests.support.swarm_process import TASKS, coordinator, journal
from textual.pilot import Pilot
from textual.widgets import Input, Static

from sapo_desktop import settings
from sapo_desktop.commands.nodes.dashboard import _verb
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.screens.dialogs import ChoiceDialog
from sapo_desktop.dashboard.screens.swarm.dialogs import HostedDialog, JoinDialog
from sapo_desktop.dashboard.screens.swarm.screen import SwarmScreen
from sapo_desktop.dashboard.widgets.frame import KeyBar
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.models import control
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes import children, supervisor
from sapo_desktop.services.swarms import hosting, membership
from sapo_desktop.services.swarms.actions import HomeActions
from sapo_desktop.services.swarms.interface import HostedSwarm
from sapo_swarm.events import RunStarted
from sapo_swarm.node.control_api import ControlClient
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import parse_invite

FAKE = '[run]\ntrainer = "fake"\nmodel = "fake:0.002"\ntasks = ["basic_arithmetic"]\neval_every = 0\n' + CALM
INVITE = "sapo://127.0.0.1:7361/#t=" + "a" * 32 + "&s=" + "b" * 16


@pytest.fixture
async def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Home]:
    """A home whose node and coordinator are gone after the test."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    found.prepare()
    found.settings.write_text(FAKE)
    yield found
    await supervisor.shut_down_node(found)
    if hosting.find_coordinator(found) is not None:
        await hosting.stop_coordinator(found)


async def until(pilot: Pilot[object], wanted: Callable[[], bool]) -> None:
    while not wanted():
        await pilot.pause(0.05)


def dashboard(home: Home) -> SapoDashboard:
    return SapoDashboard(ControlFeed(home.socket), swarm_actions=HomeActions(home))


async def test_a_swarm_is_hosted_joined_and_left_from_screen_two(home: Home) -> None:
    """h hosts in the background and shows an invite; j takes part after the round; l leaves and trains alone."""
    await supervisor.launch_node(home, [])
    app = dashboard(home)
    async with app.run_test(size=(120, 40)) as pilot:
        await until(pilot, lambda: app.state.rounds >= 1)
        await pilot.press("2", "h")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("down", "enter")
        await until(pilot, lambda: isinstance(app.screen, HostedDialog))
        shown = app.screen.query_one("#line", Static).visual
        assert parse_invite(str(shown)).token
        state = hosting.find_coordinator(home)
        assert state is not None
        await pilot.press("j")
        await until(pilot, lambda: app.state.run is not None and app.state.run.mode == "swarm")
        await until(pilot, lambda: app.state.swarm is not None and app.state.swarm.connected)
        assert settings.load_settings(home.settings).swarm.join
        assert membership.load_invite(home.invite).swarm == state.access().swarm
        await pilot.press("l")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("enter")
        await until(pilot, lambda: app.state.run is not None and app.state.run.mode == "silo")
        await until(pilot, lambda: not home.invite.exists())
        await pilot.press("h")
        await until(pilot, lambda: isinstance(app.screen, ChoiceDialog))
        await pilot.press("down", "enter")
        await until(pilot, lambda: hosting.find_coordinator(home) is None)


async def test_a_node_that_waits_is_let_in_with_one_key(home: Home) -> None:
    """The host sees who waits, and a is all it takes; the next one comes up. Names are shown as plain text."""
    state = await hosting.start_coordinator(home, ["--port", "0", "--approve"])
    async with state.client() as admin:
        invite = (await admin.new_invite())[-1]
    ada, ben = Identity.generate(), Identity.generate()
    app = dashboard(home)
    async with NodeClient(invite, ada) as first, NodeClient(invite, ben) as second:
        await first.join("[b]Ada", "starter")
        await second.join("Ben", "starter")
        async with app.run_test(size=(120, 40)) as pilot:
            await pilot.press("2")
            screen = app.screen
            assert isinstance(screen, SwarmScreen)
            await until(pilot, lambda: len(screen.guests) == 2)
            bar, overview = screen.query_one(KeyBar), screen.query_one("#overview")
            await until(pilot, lambda: "let [b]Ada in" in str(bar.render()))
            assert "[b]Ada (starter) and 1 more wait to be let in" in str(overview.border_subtitle)
            await pilot.press("a")
            await until(pilot, lambda: "let Ben in" in str(bar.render()))
            async with state.client() as admin:
                while len(await admin.waiting()) > 1:
                    await pilot.pause(0.05)
                assert [one.node for one in await admin.waiting()] == [ben.node]
        assert (await first.exchange([], 1)).connected
        assert (await second.exchange([], 1)).code == "waiting"


async def test_an_invite_that_does_not_parse_stays_in_the_dialog_with_the_reason(home: Home) -> None:
    app = dashboard(home)
    async with app.run_test(size=(80, 24)) as pilot:
        await pilot.press("2", "j")
        await until(pilot, lambda: isinstance(app.screen, JoinDialog))
        app.screen.query_one("#invite", Input).value = INVITE[:-4]
        await pilot.press("enter")
        await pilot.pause()
        assert isinstance(app.screen, JoinDialog)
        assert "copy the whole line" in str(app.screen.query_one("#complaint", Static).visual)
        await pilot.press("escape")
        await pilot.pause()
        assert not home.invite.exists()


async def test_the_first_run_in_swarm_mode_ends_in_the_swarm(home: Home, tmp_path: Path) -> None:
    """The answers keep the invite (for its owner only) and the node that is then started takes part."""
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        answers = FirstRunAnswers(mode="swarm", invite=invite, hardware="fake", model="fake:0.002", name="Ada")
        first_run.save_answers(answers, home.settings, home.invite)
        assert home.invite.stat().st_mode & 0o077 == 0
        status = await supervisor.launch_node(home, [])
        assert status.mode == "swarm"
        async with ControlClient(home.socket) as client:
            await reaches(client, ("run_started",), lambda _: True)
        await supervisor.shut_down_node(home)
    started = next(e for e in journal(home.config) if isinstance(e, RunStarted))
    assert (started.local_groups, started.external_groups) == (2, 8)


async def test_an_invite_that_the_coordinator_refuses_names_the_ways_out(home: Home, tmp_path: Path) -> None:
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        parsed = parse_invite(invite)
        wrong = invite.replace(parsed.token, "0" * 32)
        membership.save_invite(wrong, home.invite)
        settings.write_setting(home.settings, "swarm.join", "true")
        with pytest.raises(Exception, match="sapo-desktop leave"):
            await supervisor.launch_node(home, [])


def _begins(home: Home) -> None:
    """Wait until a node has read its settings and holds its lock; it answers a moment later."""
    while children.read_node_pid(home.lock) is None:
        time.sleep(0.01)


async def test_leaving_while_the_node_starts_leaves_no_node_in_the_swarm(home: Home, tmp_path: Path) -> None:
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        membership.save_invite(invite, home.invite)
        settings.write_setting(home.settings, "swarm.join", "true")
        start = asyncio.create_task(supervisor.launch_node(home, []))
        await asyncio.to_thread(_begins, home)
        said = await membership.leave_swarm(home)
        await asyncio.wait([start])
        status = await supervisor.wait_for_status(home)
    assert said == "Left the swarm. The coordinator knows. The invite is forgotten."
    assert status is not None
    assert status.mode == "silo"


async def test_deleting_a_model_whose_node_starts_ends_that_node_first(home: Home) -> None:
    model = store.create_model_folder(home, "kim", settings.load_settings(home.settings).run)
    start = asyncio.create_task(supervisor.launch_node(home, [model.name]))
    await asyncio.to_thread(_begins, home)
    assert await control.stop_and_delete_model(home, model) > 0
    assert (await start).name == "kim"  # it answered, and was stopped
    assert await supervisor.wait_for_status(home) is None
    assert not model.folder.exists()


async def test_an_invite_that_is_typed_in_lines_is_for_the_node_at_work(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    await supervisor.launch_node(home, [])
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        assert await _verb(home, ["node", "--join", invite]) == 0
        status = await supervisor.query_status(home)
        await supervisor.shut_down_node(home)
    assert "goes on in the swarm" in capsys.readouterr().out
    assert status is not None
    assert status.mode == "swarm"


async def test_a_restart_keeps_what_was_typed(home: Home) -> None:
    """The node that joins a swarm works with the flags its starter gave it."""
    async with node(home.config, "--silo", *TASKS, "--model", "fake:0.002", "--group-size", "5", "--algorithm", "rloo"):
        status = await supervisor.relaunch_node(home)
        from sapo_swarm.node.control_api import ControlClient

        async with ControlClient(home.socket) as client:
            config = await client.config()
        assert status.state != "failed"
        assert (config.group_size, config.algorithm, config.model) == (5, "rloo", "fake:0.002")
        assert config.tasks == ("calendar_arithmetic", "basic_arithmetic")


@pytest.mark.parametrize("size", [(80, 24), (120, 36)])
async def test_an_invite_is_shown_whole(home: Home, size: tuple[int, int]) -> None:
    """An invite over TLS at both sizes; nothing leaves the screen."""
    invite = INVITE.replace("#t=", "#fp=" + "c" * 64 + "&t=").replace("127.0.0.1", "192.168.100.200")
    app = dashboard(home)
    async with app.run_test(size=size) as pilot:
        app.push_screen(HostedDialog(HostedSwarm("friends", (invite,), "https://127.0.0.1:7361/"), True))
        await pilot.pause()
        box = app.screen.query_one(".hosted")
        assert box.region.bottom <= size[1]
        assert box.virtual_size.height <= box.size.height, "the dialog is not cut"
