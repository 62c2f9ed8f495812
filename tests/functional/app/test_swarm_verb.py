"""`sapo-desktop swarm`: what it tells the host."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from sapo_desktop import cli
from sapo_desktop.paths import Home
from sapo_swarm.coordinator.admin.transfer import export_swarm
from sapo_swarm.coordinator.domain.records import SwarmRecord
from sapo_swarm.coordinator.store.sqlite import SQLiteStore


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


@pytest.mark.parametrize(("is_open", "flags"), [(True, "--host 0.0.0.0 --open\n"), (False, "--host 0.0.0.0\n")])
def test_an_import_names_the_command_that_hosts_the_swarm_as_it_was(
    home: Home, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_open: bool, flags: str
) -> None:
    """Members reach it, and an open one stays open."""
    file = tmp_path / "x.swarm"
    file.write_bytes(asyncio.run(exported(tmp_path, is_open)))
    assert cli.run(["swarm", "import", str(file)]) == 0
    assert f"Host it with: sapo-desktop coordinator {flags}" in capsys.readouterr().out
