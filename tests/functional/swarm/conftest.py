"""A coordinator, a scorer and an engine for nodes that exchange."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest
from tests.support.stores import redis_url  # noqa: F401 - a fixture

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeBackend
from sapo_swarm.coordinator.host import RunningCoordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.scoring.scorer import Scorer


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    fast = {"port": 0, "store": f"sqlite:{tmp_path}/s.sqlite", "round_every_s": 0.001, "round_burst": 1000}
    running = await launch_coordinator(msgspec.convert(fast, CoordinatorSettings))
    running.coordinator.stats.ttl_s = 0.0
    yield running
    await running.stop()


@pytest.fixture
async def scorer() -> AsyncIterator[Scorer]:
    async with Scorer() as running:
        yield running


@pytest.fixture
async def engine() -> AsyncIterator[EngineThread]:
    host = EngineThread()
    await host.load(lambda: FakeBackend().load(LoadRequest(model="fake")))
    yield host
    await host.close()
