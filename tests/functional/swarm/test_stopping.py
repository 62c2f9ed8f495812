"""A coordinator that is asked to stop, also where no signal reaches it."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.support import node_process

from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import hosting


async def test_a_coordinator_that_is_asked_to_stop_without_signals_closes_its_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on Windows, where every signal but the console's ends a process half-way."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setenv("PYTHONPATH", node_process.environment(tmp_path)["PYTHONPATH"])
    home = Home.find()
    found = await hosting.start_coordinator(home, ["--port", "0"])
    log = home.data / "swarm.sqlite-wal"
    assert log.exists()
    signals: list[int] = []
    monkeypatch.setattr(hosting, "os", SimpleNamespace(kill=lambda pid, number: signals.append(pid)))
    try:
        assert await hosting.stop_coordinator(home) == found
    finally:
        if hosting.find_coordinator(home) is not None:
            os.kill(found.pid, signal.SIGTERM)
    assert signals == []
    assert not log.exists(), "SQLite removes it when the store is closed"
