"""What `status` and the metrics say of a node in a swarm."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.records import in_a_swarm, opened

from sapo_desktop.commands.nodes.control import _news, describe_status
from sapo_desktop.commands.swarms.directory import _lines
from sapo_desktop.dashboard.screens.swarm.find import _state
from sapo_desktop.services.swarms.interface import SwarmDirectory
from sapo_swarm.events import Event
from sapo_swarm.node.control_api import NodeStatus
from sapo_swarm.node.journal import Journal

STATUS = NodeStatus(
    "running", "Training", "", 0.0, 7, "r", "", "swarm", "fake", "fake", "cpu", 3, 0, None, 0.0, -1.0, 0, 0.0, "0.1.0"
)  # fmt: skip


class Stored:
    """A node's events, from a journal."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    async def events(self, kinds: Sequence[str], tail: int, **_more: Any) -> AsyncIterator[Event]:
        for event in self.journal.read(kinds=kinds, tail=tail):
            yield event


@pytest.mark.parametrize("now", [2000.0, 500.0], ids=["as ever", "the clock was set back"])
async def test_the_news_of_the_swarm_are_those_since_the_model_was_opened(tmp_path: Path, now: float) -> None:
    journal, status = Journal(tmp_path / "journal.db"), msgspec.structs.replace(STATUS, started=1000.0)
    node: Any = Stored(journal)
    journal.append([in_a_swarm(900.0), opened(0)])
    assert await _news(node, status) is None, "of the process before"
    journal.append([in_a_swarm(now)])
    found = await _news(node, status)
    assert found is not None
    assert found.time == now
    assert await _news(node, msgspec.structs.replace(status, state="starting")) is None
    journal.close()


def test_a_node_that_is_paused_reports_no_coordinator_as_connected() -> None:
    swarm = msgspec.structs.replace(in_a_swarm(time.time() - 7140), window=10_000.0)
    paused = msgspec.structs.replace(STATUS, state="paused")
    assert "\nConnected: 3 nodes" in describe_status(STATUS, swarm)
    assert "\nAs it was 2 h ago: Connected: 3 nodes" in describe_status(paused, swarm)
    old = msgspec.structs.replace(swarm, window=3600.0)
    assert "\nAs it was 2 h ago: Connected: 3 nodes" in describe_status(STATUS, old)


def test_the_size_of_a_model_is_the_one_on_screen_4_with_its_exports(tmp_path: Path) -> None:
    for name, size in (("journal.db", 2_000_000), ("exports/a.gguf", 5_000_000)):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(bytes(size))
    status = msgspec.structs.replace(STATUS, folder=str(tmp_path), disk=2_000_000, disk_budget=10**10)
    assert "7 MB on disk (2 MB of its budget of 10 GB)" in describe_status(status, None)


def test_the_verb_and_the_dialog_say_the_same_age_of_a_list() -> None:
    """It was "65 min" on `f` and "1 h 5 min" by the verb."""
    read = SwarmDirectory("example.org/list.json", "Directory", read=time.time() - 3900)
    assert _lines(read) == ["Directory (example.org/list.json), read 65 min ago"]
    assert _state((read,)).plain.startswith("Directory (example.org/list.json, read 65 min ago)")
