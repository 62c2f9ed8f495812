"""Nodes whose clocks are wrong, or set back while they exchange."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

from tests.support.exchanging_node import Node

from sapo_swarm.coordinator.host import RunningCoordinator
from sapo_swarm.node import aha_trail
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.swarm_exchange import GROUP_LIFE_S, PHRASES_S
from sapo_swarm.scoring.scorer import Scorer


async def test_a_node_whose_clock_is_wrong_takes_part_all_the_same(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """Its groups are dated, and others' judged, by the coordinator's clock: half an hour off was silence in both directions."""
    right, wrong = Node(hosted, scorer, engine), Node(hosted, scorer, engine, clock_s=-5400.0)
    await right.join("right")
    await wrong.join("wrong")
    await right.round(1, await right.groups(1))
    assert len(await wrong.round(1, await wrong.groups(1))) == 2
    assert wrong.exchange.stats.accepted == 2
    assert len(await right.round(2, await right.groups(2))) == 2
    for node in (right, wrong):
        await node.exchange.close()


async def test_a_wall_clock_that_is_set_back_holds_no_news_of_the_swarm_back(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread, tmp_path: Path
) -> None:
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    ada.exchange.memory = tmp_path
    await ada.join("Ada")
    await ada.round(1, await ada.groups(1))
    assert [peer.name for peer in ada.news().peers] == ["Ada"]
    await bob.join("Bob")
    await bob.round(1, await bob.groups(1))
    ada.clock_s, ada.passed_s = -3600.0, PHRASES_S + 1.0
    await ada.round(2, await ada.groups(2))
    assert {peer.name for peer in ada.news().peers} == {"Ada", "Bob"}
    assert await asyncio.to_thread((tmp_path / aha_trail.NAME).exists), "written every minute"
    await ada.exchange.close()
    await bob.exchange.close()


async def test_the_phrase_memory_is_written_every_minute_also_while_the_coordinator_is_away(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread, tmp_path: Path
) -> None:
    ada = Node(hosted, scorer, engine)
    ada.exchange.memory = tmp_path
    await ada.join("Ada")
    ada.client.next_at = time.monotonic() + 3600.0
    ada.passed_s = PHRASES_S + 1.0
    await ada.exchange.exchange(1, await ada.groups(1), 2)
    assert aha_trail.load_swarm_memory(tmp_path)[0].packed().observed > 0
    await ada.exchange.close()


async def test_groups_of_others_that_waited_too_long_are_dropped_though_the_wall_clock_is_set_back(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    await bob.join("Bob")
    await bob.round(1, await bob.groups(1))
    await ada.join("Ada")
    assert len(await ada.round(1, await ada.groups(1))) == 2
    ada.clock_s, ada.passed_s = -3600.0, GROUP_LIFE_S + 1.0
    assert ada.exchange.prompts_to_sample(2, 2) == 4, "all of the batch: nothing is there for it"
    await ada.exchange.close()
    await bob.exchange.close()
