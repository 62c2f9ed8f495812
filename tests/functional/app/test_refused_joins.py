"""A verb with --join that is refused, or joins for once, changes nothing about the swarm that this home is in."""

from __future__ import annotations

import asyncio
import io
import os
import sys
from contextlib import nullcontext
from pathlib import Path

import pytest
from tests.functional.app.test_join_and_host import FAKE, INVITE
from tests.functional.swarm.test_members import settings as hosting
from tests.support.node_process import sapo
from tests.support.own_tasks import library_in, sums
from tests.support.scripted_feed import NARROW, ScriptedFeed, questions
from tests.support.swarm_process import coordinator
from tests.support.terminal import terminal
from textual.widgets import Input, Static

from sapo_desktop import cli, settings
from sapo_desktop.commands.nodes.dashboard import _feed, _LinearStart
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.linear.questions import FirstRunQuestions, TypedLines
from sapo_desktop.paths import Home
from sapo_desktop.services import first_run
from sapo_desktop.services.first_questions import FirstRunAnswers, FirstRunInfo
from sapo_desktop.services.nodes import supervisor
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.swarms import membership, trial
from sapo_desktop.services.swarms.actions import HomeActions
from sapo_swarm.coordinator.host import launch_coordinator
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import parse_invite


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A home whose nodes use the fake engine."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    made = Home.find()
    made.prepare()
    made.settings.write_text(FAKE)
    return made


@pytest.mark.parametrize(
    ("typed", "code"),
    [(("node",), 1), (("contribute", "--answer"), 2)],
    ids=["a node runs already", "nobody there"],
)
def test_a_join_that_is_refused_leaves_the_saved_invite_as_it_was(
    home: Home, typed: tuple[str, ...], code: int
) -> None:
    membership.save_invite(INVITE, home.invite)
    with NodeLock(home.lock) if code == 1 else nullcontext():
        assert cli.run_command_line([*typed, "--join", f"sapo://127.0.0.1:1/#s={'c' * 16}"]) == code
    assert membership.load_invite(home.invite) == parse_invite(INVITE)
    assert trial.find_trial(home.invite, "c" * 16) is None


async def test_an_invite_that_is_used_up_leaves_the_node_training_alone(tmp_path: Path, home: Home) -> None:
    """Nothing is saved, whether it came by screen 2 or by the verb, so the node also starts again later."""
    async with coordinator(tmp_path / "host", "--port", "0", "--invite-uses", "1") as (invite, _):
        async with NodeClient(parse_invite(invite), Identity.generate()) as other:
            await other.join("Ada", "starter")
        before = await supervisor.launch_node(home, [])
        try:
            with pytest.raises(USER_ERRORS, match=r"The coordinator refuses: .*used up.* Nothing was changed\."):
                await HomeActions(home).join(invite)
            after = await supervisor.query_status(home)
        finally:
            await supervisor.shut_down_node(home)
        typed = await asyncio.to_thread(sapo, home.config, "node", "--join", invite)
    assert after is not None
    assert (after.pid, after.mode) == (before.pid, "silo")
    assert typed.returncode == 2
    assert "used up" in typed.stderr
    assert not home.invite.exists()
    assert not settings.load_settings(home.settings).swarm.join


async def test_a_node_of_private_tasks_is_not_put_into_a_swarm_and_a_dashboard_whose_node_does_not_start_stays_open(
    home: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    sums(home.data / "tasks" / "mine")
    home.settings.write_text(FAKE.replace("basic_arithmetic", "mine"))
    made = await asyncio.to_thread(sapo, home.config, "node", "--silo", "--rounds", "1")
    assert made.returncode == 0, made.stderr
    with (
        library_in(home.data / "tasks"),
        pytest.raises(USER_ERRORS, match=r"your own tasks are private.*sapo-desktop leave"),
    ):
        await HomeActions(home).join(INVITE)
    assert not home.invite.exists()
    assert not settings.load_settings(home.settings).swarm.join

    settings.write_setting(home.settings, "swarm.join", "true")  # as after a change of the tasks within a swarm
    membership.save_invite(INVITE, home.invite)
    async with terminal(home.config, [sys.executable, "-m", "sapo_desktop"], 120, 36) as shown:
        await shown.shows(lambda text: "Not working: 5 says why" in text)
        shown.press("4")
        await shown.shows(lambda text: "My models (1)" in text)
        shown.press("5")
        await shown.shows(lambda text: "did not start: mine:" in text and "sapo-desktop leave" in text)
    await _LinearStart(home, _feed(home)).start()
    assert "your own tasks are private" in capsys.readouterr().out, "and in lines, where nothing ends either"


async def test_an_invite_that_is_used_up_is_said_at_the_first_questions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the screen and in lines: saved, it would keep the node from ever starting."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    Home.find().prepare()
    info = FirstRunInfo(let_in=first_run.invite_refusal)
    answers: list[FirstRunAnswers | None] = []
    app = SapoDashboard(ScriptedFeed([]), first_run=True, start=answers.append, info=lambda: info)
    async with coordinator(tmp_path / "host", "--port", "0", "--invite-uses", "1") as (invite, _):
        async with NodeClient(parse_invite(invite), Identity.generate()) as other:
            await other.join("Ada", "starter")
        async with app.run_test(size=NARROW) as pilot:
            await questions(pilot)
            await pilot.press("right")
            app.screen.query_one("#invite", Input).value = invite
            await pilot.press("enter")
            while "used up" not in str(app.screen.query_one("#complaint", Static).visual):
                await pilot.pause()
        assert answers == []
        out, into = os.pipe()
        os.write(into, f"swarm\n{invite}\nq\n".encode())
        os.close(into)
        heard: list[str] = []
        assert await FirstRunQuestions(TypedLines(out), heard.append).ask(info) is None
    assert any("used up" in line for line in heard)


async def test_contributing_to_another_swarm_leaves_the_saved_invite_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", io.StringIO("q\n"))
    home = Home.find()
    home.prepare()
    membership.save_invite(INVITE, home.invite)
    other = await launch_coordinator(hosting(tmp_path, open=True))
    typed = ["contribute", "--answer", "--join", str(other.invite), "--tasks", "basic_arithmetic"]
    code = await asyncio.to_thread(cli.run_command_line, typed)
    members = await other.store.members()
    await other.stop()
    assert (code, len(members)) == (0, 1)
    assert membership.load_invite(home.invite) == parse_invite(INVITE)
    assert trial.find_trial(home.invite, other.invite.swarm) is None
