"""What the dashboard does beside a node that is halted, dies, is of an older version, or was asked to finish."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.node_process import CALM, FAKE, node, reaches

from sapo_desktop.commands.nodes import dashboard
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.paths import Home
from sapo_desktop.services.first_questions import FirstRunAnswers
from sapo_desktop.services.models import control
from sapo_desktop.services.models.screen import actions
from sapo_desktop.services.models.screen.actions import HomeModels, node_held
from sapo_desktop.services.models.screen.settings_actions import HomeSettings
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.swarms import membership
from sapo_desktop.services.swarms.actions import HomeActions
from sapo_swarm.config import RunConfig
from sapo_swarm.node import control_api
from sapo_swarm.node.control_api import ControlClient, NodeStatus, NodeUnreadable
from sapo_swarm.node.control_server import ControlServer
from sapo_swarm.node.governor.run_control import BadCommand

INVITE = "sapo://127.0.0.1:7361/#t=" + "a" * 32 + "&s=" + "b" * 16
SLOW = (*FAKE, "--model", "fake:0.05", "--local-groups", "4")
unix = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="a process is halted as on Unix")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    found = Home.find()
    found.prepare()
    found.settings.write_text(CALM)
    return found


@pytest.fixture
async def halted(home: Home, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[subprocess.Popen[bytes]]:
    """A node that was halted; another model and an invite lie beside it."""
    async with node(home.config, *SLOW) as (_, process):
        store.create_model_folder(home, "other", RunConfig(model="fake", trainer="fake"))
        membership.save_invite(INVITE, home.invite)
        monkeypatch.setattr(control_api, "ANSWER_S", 0.3)
        os.kill(process.pid, signal.SIGSTOP)
        yield process


ACTIONS: dict[str, Callable[[Home], Awaitable[object]]] = {
    "apply": lambda home: HomeSettings(home).restart(),
    "join": lambda home: HomeActions(home).join(INVITE),
    "leave": lambda home: HomeActions(home).leave(),
    "train": lambda home: HomeModels(home).proceed(store.find_model(home, "other").record.id),
}


@unix
async def test_beside_a_halted_node_every_action_says_how_to_wake_it(
    home: Home, halted: subprocess.Popen[bytes]
) -> None:
    for act in ACTIONS.values():
        with pytest.raises(USER_ERRORS, match=f"kill -CONT {halted.pid}"):
            await act(home)
    assert await HomeSettings(home).rows(), "the settings are shown all the same"


@unix
async def test_the_dashboard_opens_beside_a_halted_node_and_follows_it_once_it_wakes(
    home: Home, halted: subprocess.Popen[bytes]
) -> None:
    feed = dashboard._feed(home)

    async def start(answers: FirstRunAnswers | None) -> None:
        await dashboard._start(home, feed, answers)

    app = SapoDashboard(feed, start=start)
    async with app.run_test(size=(80, 24)) as pilot:
        while app.state.link is None:
            await pilot.pause(0.02)
        assert f"kill -CONT {halted.pid}" in app.state.link.sentence
        os.kill(halted.pid, signal.SIGCONT)
        while app.state.link is None or not app.state.link.connected:  # None while its history begins anew
            await pilot.pause(0.02)


async def test_a_node_that_is_killed_while_its_round_is_awaited_is_told_of(home: Home) -> None:
    async with node(home.config, *FAKE, "--model", "fake:0.5", "--local-groups", "64") as (client, process):
        await reaches(client, ("state",), lambda event: event.state == "running")
        applying = asyncio.create_task(HomeSettings(home).restart())
        await reaches(client, ("state",), lambda event: event.state == "finishing")
        process.kill()
        with pytest.raises(USER_ERRORS):
            await applying


@dataclass
class OlderNode:
    """Serves what a node of another version may say."""

    folder: str
    config: dict[str, Any]
    told: list[str] = field(default_factory=list)
    bus: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    """Closed by the server; there are no events."""

    def status(self) -> NodeStatus:
        silo = ("silo", "fake", "fake", "cpu", 3, 0, None, 0.0, -1.0, 0, 0.0, "0.0.9")
        return NodeStatus("paused", "Paused", "person", 0.0, os.getpid(), "r", self.folder, *silo)  # type: ignore[arg-type]

    def command(self, verb: str, for_s: float, holder: int) -> None:
        self.told.append(verb)
        raise BadCommand(f"There is no command {verb!r}.")


OLD = {**msgspec.to_builtins(RunConfig(rounds=9)), "own_groups": 3, "gone_since": True}
del OLD["local_groups"]


@pytest.mark.parametrize("config", [OLD, {"temperature": "hot"}])
async def test_beside_a_node_of_another_version_settings_are_shown_and_applied_as_far_as_it_is_understood(
    home: Home, config: dict[str, Any]
) -> None:
    model = store.create_model_folder(home, "mine", RunConfig(model="fake", trainer="fake", max_new_tokens=33))
    older = OlderNode(str(model.folder), config)
    async with ControlServer(older, home.socket):  # type: ignore[arg-type]
        async with ControlClient(home.socket) as client:
            if config is OLD:
                assert ((await client.config()).local_groups, (await client.config()).rounds) == (3, 9)
            else:
                with pytest.raises(NodeUnreadable, match="another version"):
                    await client.config()
        rows = {row.key: row.running for row in await HomeSettings(home).rows()}
        assert rows["run.max_new_tokens"] == ("96" if config is OLD else "")
        with pytest.raises(USER_ERRORS, match="no command 'stop'"):
            await HomeSettings(home).restart()
    assert older.told == ["stop"], "it came as far as ending the older node"


async def test_a_node_without_a_known_verb_is_not_held(home: Home) -> None:
    older = OlderNode("", OLD)
    async with ControlServer(older, home.socket), node_held(home):  # type: ignore[arg-type]
        assert await control.in_training(home) is None
    assert older.told == []


@dataclass
class WorkingNode(OlderNode):
    """Takes every command."""

    said: list[tuple[str, float, int]] = field(default_factory=list)

    def status(self) -> NodeStatus:
        held = bool(self.said) and self.said[-1][0] != "release"
        return msgspec.structs.replace(super().status(), state="paused" if held else "running")

    def command(self, verb: str, for_s: float, holder: int) -> None:
        self.said.append((verb, for_s, holder))


async def test_a_node_is_held_for_a_minute_and_told_again_while_that_is_needed(home: Home) -> None:
    """A dashboard that is killed releases nothing. The time that passes between is given by hand."""
    told, working = asyncio.Event(), WorkingNode("", OLD)

    async def sleep(seconds: float) -> None:
        assert seconds < actions.LEASE_S / 2
        if len(working.said) == 3:
            told.set()
            await asyncio.Event().wait()

    async with ControlServer(working, home.socket), node_held(home, sleep):  # type: ignore[arg-type]
        await told.wait()
    lease = actions.LEASE_S
    assert [said[:2] for said in working.said] == [("hold", lease), ("renew", lease), ("renew", lease), ("release", 0)]
    (holder,) = {holder for _, _, holder in working.said}
    assert holder > 0
    async with ControlServer(working, home.socket), node_held(home):  # type: ignore[arg-type]
        assert working.said[-1][2] != holder, "another chat is another holder"


async def test_an_export_of_a_model_in_training_has_the_rounds_that_no_checkpoint_had(home: Home) -> None:
    """A checkpoint is written every two minutes: until then the disk has what an export does not want."""
    async with node(home.config, *SLOW) as (client, _):
        await reaches(client, ("round",), lambda event: event.round >= 1)
        model = await control.in_training(home)
        assert model is not None
        assert await control.unsaved_rounds(home, model) >= 2
        async with node_held(home):
            assert store.read_model(model.folder).rounds_done == (await client.status()).round >= 2


@pytest.mark.parametrize(
    ("before", "meanwhile", "after"),
    [
        ("", "", ("running", "")),
        ("finish", "", ("finishing", "")),
        ("", "finish", ("finishing", "")),
        ("", "pause", ("paused", "person")),
        ("", "snooze", ("paused", "snooze")),
    ],
)
async def test_what_a_node_was_asked_for_counts_after_a_chat(
    home: Home, before: str, meanwhile: str, after: tuple[str, str]
) -> None:
    """A round that is long enough not to end by itself."""
    async with node(home.config, *FAKE, "--model", "fake:0.3", "--local-groups", "64") as (client, _):
        await reaches(client, ("state",), lambda event: event.state == "running")
        if before:
            await client.post(before)
        async with node_held(home):
            await reaches(client, ("state",), lambda event: (event.state, event.reason) == ("paused", "held"))
            seen = (await client.status()).seq
            if meanwhile:
                await client.post(meanwhile, for_s=600 if meanwhile == "snooze" else 0)
        await reaches(client, ("state",), lambda event: (event.state, event.reason) == after, after=seen)
        assert (await client.status()).state == after[0]
