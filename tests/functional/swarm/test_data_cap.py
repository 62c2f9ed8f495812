"""A day's data cap holds the exchange alone, with a real coordinator."""

from __future__ import annotations

from pathlib import Path

from tests.support.exchanging_node import Node

from sapo_swarm.coordinator.host import RunningCoordinator
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.governor.rules import DataCap, ResourceLimits
from sapo_swarm.scoring.scorer import Scorer


async def test_when_the_days_data_are_used_the_exchange_rests_over_a_restart_and_training_goes_on_alone(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread, tmp_path: Path
) -> None:
    limits, path = ResourceLimits(max_network_mb_a_day=0.012), tmp_path / "network.json"
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    await ada.join("Ada")
    await ada.round(1, await ada.groups(1))
    await bob.join("Bob")
    bob.exchange.data_cap = DataCap(path, lambda: limits).count
    number = 0
    while not bob.news().held:
        number += 1
        assert number < 20
        await bob.round(number, await bob.groups(number))
    sent = bob.client.bytes_sent + bob.client.bytes_received
    assert await bob.round(number + 1, await bob.groups(number + 1)), "what the pool holds serves as long as it lasts"
    assert bob.client.bytes_sent + bob.client.bytes_received == sent
    news = bob.news()
    assert not news.connected
    assert "MB of today's data are used · goes on after midnight" in news.sentence
    assert news.sentence.endswith("training goes on alone")
    again = Node(hosted, scorer, engine)
    await again.join("Bob's next session")
    again.exchange.data_cap = DataCap(path, lambda: limits).count
    before = again.client.bytes_sent
    assert await again.round(1, await again.groups(1)) == ()
    assert again.client.bytes_sent == before
    assert again.exchange.prompts_to_sample(2, 2) == 4, "the whole batch is its own"
    limits = ResourceLimits(max_network_mb_a_day=100)
    assert await again.round(2, await again.groups(2))
    assert again.news().connected
    for node in (ada, bob, again):
        await node.exchange.close()
