"""`sapo-desktop swarm`: what it tells the host."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import msgspec
import pytest
from tests.support.node_process import sapo
from tests.support.simulated_nodes import sim_group
from tests.support.swarm_process import coordinator

from sapo_desktop import cli
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting
from sapo_swarm.coordinator.admin import export_swarm
from sapo_swarm.coordinator.admin_client import write_access
from sapo_swarm.coordinator.records import SwarmRecord
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import parse_invite


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "me"))
    found = Home.find()
    found.prepare()
    return found


async def exported(folder: Path, is_open: bool) -> bytes:
    store = SQLiteStore(folder / "old.sqlite")
    await store.open()
    await store.found(SwarmRecord(swarm="a" * 16, name="x", open=is_open, certificate=b"c", key=b"k", created=1.0))
    data = await export_swarm(store)
    await store.close()
    return data


async def test_swarm_status_names_the_nodes_that_exchange(home: Home, tmp_path: Path) -> None:
    """With the ids that ban wants. A coordinator that does not answer is still told of as far as it is known."""
    node = Identity.generate()
    async with coordinator(home.config, "--port", "0") as (invite, _):
        async with NodeClient(parse_invite(invite), node) as client:
            await client.join("Ada", "starter")
            await client.exchange([sim_group(node, client.invite.swarm, 1, slot) for slot in range(3)], 0)
        told = ""
        while "1 node" not in told:  # the figures are two seconds old at most
            told = (await asyncio.to_thread(sapo, home.config, "swarm")).stdout
        access = hosting.require_coordinator(home)
        write_access(Path(access.admin), msgspec.structs.replace(access.access(), url="http://127.0.0.1:1", port=1))
        away = await asyncio.to_thread(sapo, home.config, "swarm", "status")
    assert "Seen in the last 5 minutes: 1 node. Groups in the last hour: 3\n" in told
    assert f"{node.node}        3 groups, taken 0 times  Ada, starter\n" in told
    assert away.returncode == 0
    assert "is hosted by process" in away.stdout
    assert "Seen in" not in away.stdout


@pytest.mark.parametrize(("is_open", "flags"), [(True, "--host 0.0.0.0 --open\n"), (False, "--host 0.0.0.0\n")])
def test_an_import_names_the_command_that_hosts_the_swarm_as_it_was(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_open: bool, flags: str
) -> None:
    """Members reach it, and an open one stays open."""
    file = tmp_path / "x.swarm"
    file.write_bytes(asyncio.run(exported(tmp_path, is_open)))
    assert cli.run_command_line(["swarm", "import", str(file)]) == 0
    assert f"Host it with: sapo-desktop coordinator {flags}" in capsys.readouterr().out


def test_an_export_for_which_the_disk_had_no_room_is_made_under_the_same_name_once_there_is_some(
    home: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = tmp_path / "old.swarm", str(tmp_path / "new.swarm")
    old.write_bytes(asyncio.run(exported(tmp_path, False)))
    assert cli.run_command_line(["swarm", "import", str(old)]) == 0

    def full(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(os, "fsync", full)
        assert cli.run_command_line(["swarm", "export", new]) == 1
    assert not list(tmp_path.glob("*new.swarm*"))
    assert cli.run_command_line(["swarm", "export", new]) == 0
    assert cli.run_command_line(["swarm", "export", new]) == 2
    assert "exists already: choose another name." in capsys.readouterr().err
