"""The dashboard over a real node: a process of its own, a real socket, the fake engine."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.support.node_process import FAKE, node, reaches, sapo
from tests.support.terminal import terminal
from textual.pilot import Pilot

from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.state import DashboardState, NodeLink, ReplayRewound, apply_event
from sapo_desktop.errors import CommandFailed
from sapo_swarm.events import Event, ExamplesRead, GroupRecorded, RoundFinished, StateChanged
from sapo_swarm.node.journal import Journal


async def until(pilot: Pilot[object], app: SapoDashboard, wanted: object) -> None:
    """Let the app work until the wanted holds; the test's own time-out is the limit."""
    assert callable(wanted)
    while not wanted(app.state):
        await pilot.pause(0.02)


async def test_pause_and_resume_from_the_keyboard_reach_the_node_and_come_back(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.02"):
        app = SapoDashboard(ControlFeed(tmp_path / "run" / "node.sock"))
        async with app.run_test(size=(120, 36)) as pilot:
            await until(pilot, app, lambda state: state.rounds >= 1 and state.state == "running")
            await pilot.press("space")
            await until(pilot, app, lambda state: state.state == "paused")
            paused_at = app.state.rounds
            await pilot.press("space")
            await until(pilot, app, lambda state: state.state == "running" and state.rounds > paused_at)
            await pilot.press("q", "b")
            await pilot.pause()
        assert app.return_value == "background"


async def test_the_feed_tells_every_round_once_and_the_groups_that_belong_to_it(tmp_path: Path) -> None:
    async with node(tmp_path, *FAKE, "--model", "fake:0.01") as (client, _):
        async for event in client.events(kinds=("round",)):
            if isinstance(event, RoundFinished) and event.round >= 2:
                break
        rounds: list[int] = []
        groups: list[int] = []
        async for told in ControlFeed(tmp_path / "run" / "node.sock").events():
            if isinstance(told, RoundFinished):
                rounds.append(told.round)
            if isinstance(told, GroupRecorded):
                groups.append(told.seq)
            if len(rounds) >= 5:
                break
        assert rounds == [0, 1, 2, 3, 4]
        assert len(set(groups)) == len(groups) >= 24


def read_examples(home: Path) -> None:
    """Two rounds, and set-aside rows that were answered after the first."""
    done = sapo(home, "node", *FAKE, "--rounds", "2")
    assert done.returncode == 0, done.stderr
    (path,) = home.rglob("journal.db")
    answered = ExamplesRead(
        round=1, step=1, passes=1.0, right=9, items=16, logprob=-0.1, tokens=1, seconds=1.0, over=True, sentence="Read."
    )
    with closing(Journal(path)) as journal:
        journal.append([answered])


async def test_a_dashboard_that_is_opened_again_shows_the_letters_and_the_curve_of_the_one_before(
    tmp_path: Path,
) -> None:
    """E, R and the rows set aside were gone from the chart after a restart of the app."""
    await asyncio.to_thread(read_examples, tmp_path)
    async with node(tmp_path, *FAKE, "--rounds", "0") as (client, _):
        await reaches(client, ("round",), lambda event: event.round >= 2)
        await client.post("rollback", round=2)
        app = SapoDashboard(ControlFeed(tmp_path / "run" / "node.sock"))
        async with app.run_test(size=(80, 24)) as pilot:
            await until(pilot, app, lambda state: {"E", "R"} <= {moment.letter for moment in state.moments})
            assert [value for _, _, value in app.state.figures.set_aside.buckets()] == [9 / 16]


class NotingFeed(ControlFeed):
    """Keeps every sentence on the link: each is on the screen for a moment only."""

    def __init__(self, socket: Path) -> None:
        super().__init__(socket)
        self.said: list[str] = []

    async def events(self) -> AsyncIterator[Event | NodeLink]:
        async for told in super().events():
            if isinstance(told, NodeLink):
                self.said.append(told.sentence)
            yield told


async def test_a_node_that_is_killed_and_started_again_is_found_again(tmp_path: Path) -> None:
    feed = NotingFeed(tmp_path / "run" / "node.sock")
    app = SapoDashboard(feed)
    async with app.run_test(size=(80, 24)) as pilot:
        await until(pilot, app, lambda state: state.link is not None and not state.link.connected)
        async with node(tmp_path, *FAKE, "--model", "fake:0.02") as (_, process):
            await until(pilot, app, lambda state: state.rounds >= 2)
            process.kill()
            await until(pilot, app, lambda state: state.gone)
            assert "The node went away" in feed.said
            app.redraw()
            await pilot.pause()
            first = "".join(s.text for s in app.screen._compositor.render_strips()[0])
            assert "space starts the node again" in first
            before = app.state.rounds
        async with node(tmp_path, *FAKE, "--model", "fake:0.02"):
            await until(
                pilot, app, lambda state: state.rounds > before and state.link is not None and state.link.connected
            )
        assert len(app.state.figures.reward_local) == app.state.rounds


async def test_a_paused_node_with_nothing_new_to_tell_is_found_again(tmp_path: Path) -> None:
    feed = ControlFeed(tmp_path / "run" / "node.sock")
    async with node(tmp_path, *FAKE, "--model", "fake:0.01") as (client, _):
        await client.post("pause")
        async for event in client.events():
            if isinstance(event, StateChanged) and event.state == "paused":
                break
        feed._run, feed._seq = (status := await client.status()).run_id, status.seq
        async with asyncio.timeout(30):
            async for told in feed.events():
                assert isinstance(told, NodeLink)
                assert told.connected
                break


async def test_what_was_known_of_another_model_is_forgotten_when_the_node_comes_back_with_this_one(
    tmp_path: Path,
) -> None:
    """A duplicate tells the same history once more: without that every line of it would stand there twice."""
    feed = ControlFeed(tmp_path / "run" / "node.sock")
    async with node(tmp_path, *FAKE, "--model", "fake:0.01"):
        feed._run, feed._seq = "another model", 7
        told = []
        async with asyncio.timeout(30):
            async for event in feed.events():
                told.append(event)
                if len(told) == 2:
                    break
        assert isinstance(told[0], ReplayRewound)
        assert isinstance(told[1], NodeLink)


async def test_a_command_without_a_node_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CommandFailed, match=r"Start one: sapo-desktop node\Z"):
        await ControlFeed(tmp_path / "none.sock").command("pause")


async def test_a_node_that_comes_in_place_of_the_last_one_is_told_of(tmp_path: Path) -> None:
    feed = ControlFeed(tmp_path / "none.sock", starting=lambda: 5)
    for pid, sentence in ((0, "Waiting for the node"), (4, "The node is starting again"), (5, "Waiting for the node")):
        feed._pid = pid
        async with asyncio.timeout(30):
            async for told in feed.events():
                assert isinstance(told, NodeLink)
                assert (told.sentence, told.starting) == (sentence, pid == 4)
                break


async def test_waiting_for_a_node_backs_off_and_says_so(tmp_path: Path) -> None:
    state = DashboardState()
    async with asyncio.timeout(30):
        async for told in ControlFeed(tmp_path / "none.sock").events():
            assert isinstance(told, NodeLink)
            state = apply_event(state, told)
            if "again" in told.sentence:
                break
    assert state.link is not None
    assert state.link.sentence == "Waiting for the node, trying again every 1 s"


def test_the_dashboard_process_imports_no_engine_and_opens_without_aiohttp_or_keyring() -> None:
    """After every screen was shown: no trainer, no generator of questions; before a node is spoken to: no network."""
    program = """
import asyncio, sys
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.replay import ReplayFeed

async def main():
    async with SapoDashboard(ReplayFeed([], 0), first_run=True).run_test(size=(80, 24)) as pilot:
        await pilot.press("enter", "2", "3", "4", "5", "1")
        await pilot.pause()

asyncio.run(main())
engines = {"torch", "transformers", "mlx", "llama_cpp", "reasoning_gym", "numpy"}
found = engines | {"aiohttp", "keyring", "importlib.metadata"}
backends = {name for name in sys.modules if name.startswith("sapo_backends.")} - {"sapo_backends.errors"}
print(sorted(found & set(sys.modules) | backends))
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[]"


FIRST_FRAME = """
import os, sys
from pathlib import Path
from sapo_desktop.cli import run_command_line
from sapo_desktop.dashboard.app import SapoDashboard

def first_frame(app):
    Path(sys.argv[1]).write_text(" ".join(sys.modules))
    app.exit(None)

SapoDashboard._first_frame_is_out = first_frame
sys.exit(run_command_line([]))
"""
"""The command without a verb, which writes what is imported at the first frame, and leaves."""


async def test_the_first_frame_of_the_command_waits_for_none_of_the_heavy_modules(tmp_path: Path) -> None:
    """On the way a person takes: the command over a fresh home, with all that the dashboard's keys can have done."""
    written = tmp_path / "modules.txt"
    async with terminal(tmp_path / "home", [sys.executable, "-c", FIRST_FRAME, str(written)]) as shown:
        await asyncio.to_thread(shown.process.wait, 100)
    modules = set(written.read_text().split())
    heavy = {"torch", "transformers", "mlx", "llama_cpp", "reasoning_gym", "numpy", "tokenizers", "safetensors"}
    network = {"aiohttp", "cryptography", "keyring", "email", "http.client"}
    looking = {
        "psutil",
        "importlib.metadata",
        "sapo_swarm.tasks.own.row_roles",
        "sapo_backends.registry",
        "sapo_backends.base",
    }
    actions = {f"sapo_desktop.services.{name}" for name in ("models.screen.actions", "machine.doctor", "first_run")}
    assert not modules & (heavy | network | looking | actions)
    assert "sapo_desktop.dashboard.screens.dashboard" in modules
