"""The control API over loopback TCP with a token file, as on Windows: chosen here with SAPO_CONTROL."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import stat
from pathlib import Path

import aiohttp
import psutil
import pytest
from tests.support import node_process
from tests.support.node_process import node, reaches, sapo

from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import children, supervisor
from sapo_swarm.events import RoundFinished
from sapo_swarm.node import control_api
from sapo_swarm.node.control_api import ControlClient, NodeNotRunning
from sapo_swarm.servers import MOST

SLOW = (*node_process.FAKE, "--local-groups", "4", "--model", "fake:0.01")


@pytest.fixture(autouse=True)
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_CONTROL", "tcp")


async def test_node_status_pause_and_stop_work_over_tcp(tmp_path: Path) -> None:
    async with node(tmp_path, *SLOW) as (client, process):
        await reaches(client, ("round",), lambda e: isinstance(e, RoundFinished))
        file = tmp_path / "run" / "node.sock"
        facts = await asyncio.to_thread(file.stat)
        assert stat.S_ISREG(facts.st_mode)
        assert stat.S_IMODE(facts.st_mode) == 0o600
        status = await asyncio.to_thread(sapo, tmp_path, "status")
        assert status.stdout.startswith("Running"), status
        paused = await asyncio.to_thread(sapo, tmp_path, "pause")
        assert paused.stdout.startswith("Paused"), paused
        stopped = await asyncio.to_thread(sapo, tmp_path, "stop")
        assert stopped.stdout.startswith("Stopped"), stopped
        assert await asyncio.to_thread(process.wait) == 0
        assert not file.exists()
    assert (await asyncio.to_thread(sapo, tmp_path, "status")).returncode == 3


async def test_who_does_not_show_the_token_is_told_nothing(tmp_path: Path) -> None:
    async with node(tmp_path, *SLOW) as (client, _):
        file = tmp_path / "run" / "node.sock"
        place = json.loads(await asyncio.to_thread(file.read_bytes))
        url = f"http://127.0.0.1:{place['port']}/v1/status"
        async with aiohttp.ClientSession() as session:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Authorization": "Bearer \xff"}):
                async with session.get(url, headers=headers) as reply:
                    assert reply.status == 401
                    assert "pid" not in await reply.text()
        assert (await client.status()).pid
        other = tmp_path / "other.sock"
        await asyncio.to_thread(other.write_text, json.dumps(place | {"token": "of another node"}))
        async with ControlClient(other) as stranger:
            with pytest.raises(NodeNotRunning):
                await stranger.status()


async def test_silent_connections_of_another_account_use_up_no_files_of_the_node(tmp_path: Path) -> None:
    async with node(tmp_path, *SLOW) as (client, process):
        file = tmp_path / "run" / "node.sock"
        port = json.loads(await asyncio.to_thread(file.read_bytes))["port"]
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2 * MOST)]
        for reader, _ in silent[: MOST - 2]:
            assert await reader.read(1) == b"", "it gave way"
        assert (await client.status()).pid == process.pid
        held = [c for c in psutil.Process(process.pid).net_connections() if c.status == "ESTABLISHED"]
        assert len(held) <= MOST
        for _, writer in silent:
            writer.close()


async def test_a_node_in_the_background_is_started_found_and_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", node_process.environment(tmp_path)["PYTHONPATH"])
    node_process.calm(tmp_path)
    home = Home.find()
    status = await supervisor.launch_node(home, SLOW)
    assert children.is_process_alive(status.pid)
    stopped = await supervisor.shut_down_node(home)
    assert stopped is not None
    assert not children.is_process_alive(stopped.pid)


@pytest.mark.parametrize("content", [b'{"port": 9, "token": "x"}', b'{"port": 0, "token": "x"}', b"{", b"\xff" * 5000])
def test_what_a_dead_node_left_behind_is_no_node(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "run" / "node.sock"
    file.parent.mkdir()
    file.write_bytes(content)
    status = sapo(tmp_path, "status")
    assert status.returncode == 3
    assert "No node is running" in status.stderr


async def test_without_unix_sockets_and_without_a_token_file_no_name_is_looked_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows: whoever in the network has the name would answer as this person's node."""
    asked: list[object] = []

    def look_up(host: object, *more: object, **named: object) -> None:
        asked.append(host)
        raise socket.gaierror(socket.EAI_NONAME, "nobody")

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.delattr(socket, "AF_UNIX", raising=False)
    async with ControlClient(tmp_path / "node.sock") as client:
        with pytest.raises(NodeNotRunning):
            await client.status()
        with pytest.raises(NodeNotRunning):
            await anext(client.events())
    assert asked == []


def test_an_unknown_transport_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_CONTROL", "pigeon")
    refused = sapo(tmp_path, "node", *SLOW)
    assert refused.returncode == 1
    assert "'pigeon'. Set it to unix or tcp" in refused.stderr
    monkeypatch.delenv("SAPO_CONTROL")
    assert control_api.transport_kind() == ("unix" if os.name == "posix" else "tcp")
