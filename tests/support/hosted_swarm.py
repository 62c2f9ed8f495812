"""Coordinators on free ports in this process, with the embedded store, for tests."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import msgspec
import pytest
from tests.support.simulated_nodes import sim_group

from sapo_swarm.coordinator.host import RunningCoordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import SignedGroup

Make = Callable[..., "asyncio.Future[RunningCoordinator]"]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Callable[..., object]]:
    """Starts coordinators on free ports and stops them after the test."""
    running: list[RunningCoordinator] = []

    async def build(**changes: object) -> RunningCoordinator:
        fast = {"port": 0, "store": f"sqlite:{tmp_path}/swarm.sqlite", "round_every_s": 0.01, "round_burst": 1000}
        hosted = await launch_coordinator(msgspec.convert(fast | changes, CoordinatorSettings))
        hosted.coordinator.stats.ttl_s = 0.0
        running.append(hosted)
        return hosted

    yield build
    for hosted in running:
        await hosted.stop()


@pytest.fixture
async def hosted(make: Callable[..., object]) -> RunningCoordinator:
    return await make()  # type: ignore[misc]


def groups_of(identity: Identity, swarm: str, number: int, count: int = 4) -> list[SignedGroup]:
    return [sim_group(identity, swarm, number, slot) for slot in range(count)]
