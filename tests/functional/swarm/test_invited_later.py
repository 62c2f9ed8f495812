"""Members that came into an open swarm and are invited later, and a ban that gives no reason."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from tests.functional.swarm.test_members import settings
from tests.support.own_tasks import sums

from sapo_desktop.cli import run_command_line
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting
from sapo_swarm.coordinator.admin_client import AdminClient, read_access
from sapo_swarm.coordinator.host import admin_path, launch_coordinator
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import build_task_upload
from sapo_swarm.tasks.own.folder import read_task


async def test_a_member_of_an_open_swarm_that_joins_by_invite_later_sees_the_shared_task(tmp_path: Path) -> None:
    upload, crowd = build_task_upload(read_task(sums(tmp_path / "my_sums")), False), Identity.generate()
    running = await launch_coordinator(settings(tmp_path, open=True))
    async with NodeClient(running.invite, crowd) as client:
        await client.join()
    await running.stop()
    running = await launch_coordinator(settings(tmp_path))
    async with (
        AdminClient(read_access(admin_path(settings(tmp_path)))) as host,
        NodeClient(running.invite, crowd) as client,
    ):
        await host.share(upload)
        assert await client.tasks() == ()
        await client.join()
        assert await client.tasks() == (upload.offer,)
    await running.stop()


async def test_an_empty_reason_bans_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SAPO_HOME", str(tmp_path / "home"))
    home = Home.find()
    home.prepare()
    running = await launch_coordinator(settings(tmp_path))
    state = hosting.this_process("s", False, str(admin_path(settings(tmp_path))))
    async with NodeClient(running.invite, Identity.generate()) as client:
        await client.join()
        with hosting.record_coordinator(home, state):
            assert await asyncio.to_thread(run_command_line, ["ban", client.identity.node, "--reason", ""]) == 0
        result = await client.exchange([], 0)
    await running.stop()
    assert result.code == "banned"
