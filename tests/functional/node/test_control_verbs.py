"""What a verb prints is true when it prints it: the state after the command, what is pending, a node that says nothing."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest
from tests.support import node_process
from tests.support.node_process import calm, environment, node, reaches, sapo

from sapo_desktop.dashboard.feed import ControlFeed
from sapo_desktop.dashboard.state import NodeLink
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import children, supervisor
from sapo_desktop.services.nodes.supervisor import NodeLock
from sapo_desktop.services.swarms import hosting
from sapo_swarm.events import Phase, RoundFinished
from sapo_swarm.node import control_api
from sapo_swarm.node.control_api import ControlClient, NodeNotAnswering

SLOW = (*node_process.FAKE, "--local-groups", "4", "--model", "fake:0.3")


async def test_pause_resume_and_finish_print_what_is_so_afterwards(tmp_path: Path) -> None:
    async with node(tmp_path, *SLOW) as (client, _):
        await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == "generate")
        paused = await asyncio.to_thread(sapo, tmp_path, "pause")
        assert paused.stdout.startswith("Paused"), paused
        resumed = await asyncio.to_thread(sapo, tmp_path, "resume")
        assert resumed.stdout.startswith("Running"), resumed
        pending = await asyncio.to_thread(sapo, tmp_path, "finish")
        assert pending.stdout.startswith("Finishing"), pending
        assert "pauses after this round" in pending.stdout
        back = await asyncio.to_thread(sapo, tmp_path, "resume")
        assert back.stdout.startswith("Running"), back
        assert "pauses after" not in back.stdout


async def test_a_node_that_waits_for_a_chat_is_told_to_resume_and_runs_when_that_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    async with node(tmp_path, *SLOW) as (client, _):
        await reaches(client, ("state",), lambda e: e.state == "running")
        await client.post("hold")
        await reaches(client, ("state",), lambda e: e.reason == "held")
        assert (await supervisor.send_command(Home.find(), "resume")).state == "running"


async def test_stop_comes_back_when_the_process_is_gone_and_says_what_is_saved(tmp_path: Path) -> None:
    async with node(tmp_path, *SLOW, "--model", "fake:0.01") as (client, process):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished))
        pid = (await client.status()).pid
        stopped = await asyncio.to_thread(sapo, tmp_path, "stop")
        assert stopped.stdout.startswith("Stopped"), stopped
        assert "round done" in stopped.stdout or "rounds done" in stopped.stdout
        assert not children.is_process_alive(pid)
        assert await asyncio.to_thread(process.wait) == 0
    again = await asyncio.to_thread(sapo, tmp_path, "stop")
    assert again.returncode != 0
    assert "No node is running" in again.stderr


async def test_stop_says_that_a_swarm_is_still_hosted_and_how_it_is_closed(tmp_path: Path) -> None:
    with mock.patch.dict(os.environ, environment(tmp_path)):
        home = Home.find()
    home.prepare()
    with hosting.record_coordinator(home, hosting.this_process("mine", False, "")):
        done = await asyncio.to_thread(sapo, tmp_path, "stop")
        assert (
            "No node is running. The swarm that you host is still open. To close it: sapo-desktop swarm stop"
            in done.stderr
        )
        async with node(tmp_path, *SLOW, "--model", "fake:0.01"):
            done = await asyncio.to_thread(sapo, tmp_path, "stop")
        assert done.stdout.rstrip().endswith("To close it: sapo-desktop swarm stop")
    assert hosting.still_open(home) == ""


def written(home: Home) -> None:
    """Until the process of the node that is being started is known."""
    while supervisor.starting_pid(home) is None:
        continue


async def test_a_node_that_is_only_being_started_is_stopped_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody answers yet: its starter wrote down the process."""
    for name, value in environment(tmp_path).items():
        monkeypatch.setenv(name, value)
    await asyncio.to_thread(calm, tmp_path)
    home = Home.find()
    starting = asyncio.create_task(supervisor.launch_node(home, SLOW))
    await asyncio.to_thread(written, home)
    assert not home.socket.exists()
    starting.cancel()
    await asyncio.gather(starting, return_exceptions=True)
    status = await supervisor.shut_down_node(home)
    assert status is not None
    assert not await asyncio.to_thread(children.is_process_alive, status.pid)
    assert await supervisor.shut_down_node(home) is None


async def test_a_halted_node_is_said_to_be_silent_with_the_way_out_and_is_back_when_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control_api, "ANSWER_S", 1.0)
    monkeypatch.setattr("sapo_desktop.dashboard.feed._SILENCE_S", 2.0)
    async with node(tmp_path, *SLOW) as (client, process):
        feed = ControlFeed(client.socket)
        stream = feed.events()
        async for event in stream:
            if isinstance(event, Phase):
                break
        process.send_signal(signal.SIGSTOP)
        async for event in stream:
            if isinstance(event, NodeLink):
                break
        assert isinstance(event, NodeLink)
        assert (event.connected, event.ended) == (False, False)
        assert "The node is not answering for" in event.sentence
        assert f"kill -CONT {process.pid}" in event.sentence
        with pytest.raises(NodeNotAnswering) as silent:
            await client.status()
        assert silent.value.silent_s >= 1.0
        process.send_signal(signal.SIGCONT)
        async for event in stream:
            if isinstance(event, NodeLink) and event.connected:
                break
        assert (await client.status()).state in ("starting", "running")
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_verb_names_the_silent_node(tmp_path: Path) -> None:
    async with node(tmp_path, *SLOW) as (client, process):
        process.send_signal(signal.SIGSTOP)
        try:
            said = await asyncio.to_thread(sapo, tmp_path, "status")
        finally:
            process.send_signal(signal.SIGCONT)
        assert said.returncode == 3
        assert "The node is not answering for" in said.stderr
        assert f"it was halted, kill -CONT {process.pid} wakes it" in said.stderr
        async with ControlClient(client.socket) as again:
            assert (await again.status()).pid == process.pid


async def test_a_node_that_is_too_busy_to_answer_while_it_starts_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It listens and says nothing yet: no reason to give up on it, as long as its process lives."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setattr(control_api, "ANSWER_S", 0.2)
    home = Home.find()
    home.prepare()
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(home.socket))
        silent.listen()
        with pytest.raises(NodeNotAnswering):
            await supervisor.query_status(home)
        assert await supervisor._answer(home) is None
        stream = ControlFeed(home.socket).events()
        link = await anext(stream)
        assert isinstance(link, NodeLink)
        assert link.sentence.startswith("Waiting for the node, which is busy"), "no word of a fault"
        await stream.aclose()  # type: ignore[attr-defined]


async def test_a_node_that_takes_too_long_to_start_is_named_with_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setattr(supervisor, "START_LIMIT_S", 0.0)
    home = Home.find()
    with pytest.raises(AppError, match=r"still starting: wait for it .*, or end it with kill \d+\."):
        await supervisor.launch_node(home, SLOW)
    pid = supervisor.starting_pid(home)
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("left", ["node.starting", "node.lock"])
def test_a_process_that_has_the_number_of_a_node_which_ended_is_no_node(home: Home, left: str) -> None:
    """A server that runs under a program called node, say."""
    words = [sys.executable, "-c", "input(0)", "node"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as stranger:
        assert stranger.stdout is not None
        assert stranger.stdout.read(1) == b"0", "its command can be read from now on"
        for began, found in (
            (children.process_start_stamp(stranger.pid), stranger.pid),
            ("earlier", None),
        ):
            (home.runtime / left).write_text(f"{stranger.pid} {began}", "utf-8")
            assert supervisor.starting_pid(home) == found
        stranger.communicate(b"\n")


def test_a_node_that_was_started_this_moment_is_found_before_its_command_can_be_read(home: Home) -> None:
    """Linux shows an empty command while the process turns into its program."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        (home.runtime / "node.starting").write_text(children.format_pid_record(process.pid), "utf-8")
        assert supervisor.starting_pid(home) == process.pid
        process.communicate(b"\n")


def test_a_lock_tells_which_process_holds_it(home: Home) -> None:
    with NodeLock(home.lock):
        assert home.lock.read_text("ascii") == f"{os.getpid()} {children.process_start_stamp(os.getpid())}"
        with pytest.raises(AppError, match=rf"\(process {os.getpid()}\)"), NodeLock(home.lock):
            pass
