"""Nodes with real verifiers exchange through a real coordinator: what is drawn is regenerated and scored here."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest
from tests.support.exchanging_node import Node, solved
from tests.support.simulated_nodes import sim_group

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeBackend
from sapo_swarm.coordinator.host import RunningCoordinator
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group


async def test_two_nodes_learn_of_each_other_and_the_shares_add_up(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """Groups arrive as external ones with this node's question and reward; shares add up to 1, uptake is counted."""
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    await ada.join("Ada")
    await bob.join("Bob")
    own = await ada.groups(1)
    await ada.round(1, own)
    group, other = await bob.round(1, await bob.groups(1))
    assert other.node == group.node, "all groups of the only source"
    assert (group.source, group.node, group.model) == ("external", ada.identity.node, "m")
    assert group.question in [own_group.question for own_group in own]
    assert group.rewards in [own_group.rewards for own_group in own]
    assert bob.exchange.prompts_to_sample(4, 4) == 6, "a tiny model's batch holds up to three of a source"
    news = bob.exchange.used([group], 8)
    assert news.external_share == pytest.approx(1 / 8)
    bob.exchange.used([other], 8)
    assert bob.exchange.prompts_to_sample(4, 4) == 8, "an external group is used once"
    await ada.round(2, await ada.groups(2))
    await bob.round(2, await bob.groups(2))
    first, second = ada.news(), bob.news()
    assert (first.connected, first.made, first.accepted) == (True, 4, 4)
    assert first.uptake >= 1
    assert second.share == pytest.approx(4 / 8)
    assert {peer.name for peer in second.peers} == {"Ada", "Bob"}
    assert sum(peer.share for peer in second.peers) == pytest.approx(1.0)
    assert second.unheard == ()
    bob.exchange.receiver.struck |= {ada.identity.node: None, "somebody who is gone": None}
    assert bob.news().unheard == (ada.identity.node,), "of the peers whom the screen lists"
    await ada.exchange.close()
    await bob.exchange.close()


async def test_groups_without_an_advantage_are_counted_and_not_kept(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """The paper's filter: equal rewards teach nothing."""
    author, reader = Node(hosted, scorer, engine), Node(hosted, scorer, engine, "uniform_nonzero")
    await author.join("author")
    await reader.join("reader")
    await author.round(1, await author.groups(1, 1, ("no", "neither")))
    await reader.round(1, [])
    assert reader.news().rejected == {"no_signal": 1}
    assert reader.exchange.prompts_to_sample(4, 4) == 8
    await author.exchange.close()
    await reader.exchange.close()


async def test_made_up_groups_are_rejected_by_their_prompt_hash(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """A node that knows nothing of the questions passes the coordinator, and no receiver."""
    liar, reader = Identity.generate(), Node(hosted, scorer, engine)
    await reader.join("reader")
    async with NodeClient(hosted.invite, liar) as client:
        await client.join("liar")
        sent = await client.exchange([sim_group(liar, reader.swarm, 1, 0)], 0)
    assert sent.accepted == 1
    await reader.round(1, [])
    assert reader.news().rejected == {"prompt_hash": 1}
    assert reader.exchange.pool.groups() == ()
    await reader.exchange.close()


async def test_a_coordinator_that_forgot_the_node_is_joined_again(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """A node that started while the coordinator was away never joined; the first answer makes it join."""
    late = Node(hosted, scorer, engine)
    await late.client.__aenter__()
    await late.round(1, await late.groups(1))
    assert not late.news().connected
    late.client.next_at = 0.0
    await late.round(2, await late.groups(2))
    assert late.news().connected
    assert late.news().accepted == 2
    await late.exchange.close()


async def test_a_node_that_takes_no_groups_of_others_shares_its_own_all_the_same(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """Nothing is asked for, what waited is dropped; taking again fills the pool again."""
    giver, shy = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    await giver.join("giver")
    await shy.join("shy")
    await giver.round(1, await giver.groups(1))
    assert len(await shy.round(1, await shy.groups(1))) == 2
    shy.exchange.take(False)
    assert shy.exchange.prompts_to_sample(4, 4) == 8
    assert await shy.round(2, await shy.groups(2)) == ()
    assert (shy.news().connected, shy.news().accepted) == (True, 4)
    drawn = {row.member.node: row.sampled for row in (await hosted.store.stats(time.time(), 10)).rows}
    assert drawn[giver.identity.node] == 2, "nothing was drawn the second time"
    shy.exchange.take(True)
    assert await shy.round(3, await shy.groups(3)) == (), "it has what the giver has sent"
    await giver.round(2, await giver.groups(2))
    assert len(await shy.round(4, await shy.groups(4))) == 2
    await giver.exchange.close()
    await shy.exchange.close()


async def test_the_phrase_memory_of_a_model_outlives_its_session(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread, tmp_path: Path
) -> None:
    """Written while the exchange runs and at its end; the next session of this model begins with it."""
    ada = Node(hosted, scorer, engine)
    await ada.join("Ada")
    ada.exchange.memory = tmp_path
    await ada.round(1, await ada.groups(1))
    phrases = ada.exchange.receiver.phrases
    phrases.count_taken(
        phrases.phrases_allowed(["hail to the thief"], (await ada.groups(2))[0].question) or frozenset()
    )
    ada.exchange.receiver.quota.judged(Identity.generate().node, "", False, 0.0)
    await ada.exchange.close()
    known = ada.exchange.receiver.phrases
    again = Node(hosted, scorer, engine)
    again.exchange.memory = tmp_path
    again.exchange.attach(engine, scorer)
    assert again.exchange.receiver.phrases == known
    (source,) = again.exchange.receiver.quota.packed().values()
    assert (source.taken, source.refused) == (0, 1), "trust in sources does too"
    assert known.packed().observed > 0


async def test_a_node_whose_next_upload_is_far_takes_groups_from_a_snapshot(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """In a large swarm nodes upload seldom; what they train on must not be as seldom. They are judged like all others."""
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    await ada.join("Ada")
    await bob.join("Bob")
    own = await ada.groups(1)
    await ada.round(1, own)
    taken: list[tuple[Group, ...]] = []

    async def time_passes(_seconds: float) -> None:
        if bob.client.wait_s:
            taken.append(bob.exchange.pool.groups())
            bob.client.next_at = 0.0

    bob.exchange.sleep = time_passes
    bob.client.next_at = time.monotonic() + 60.0
    await bob.round(1, await bob.groups(1))
    ((group, *_),) = taken
    assert (group.source, group.node) == ("external", ada.identity.node)
    assert bob.client.failures == 0
    await ada.exchange.close()
    await bob.exchange.close()


async def test_a_node_that_cannot_judge_for_once_goes_on_talking_with_its_swarm(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread, caplog: pytest.LogCaptureFixture
) -> None:
    """Its engine has no memory left, say, while groups of a snapshot are judged: its own groups go out, then others' come in."""
    late = EngineThread()
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, late)
    await ada.join("Ada")
    await bob.join("Bob")
    await ada.round(1, [solved(group) for group in await ada.groups(1)])

    async def time_passes(_seconds: float) -> None:
        bob.client.next_at = 0.0

    bob.exchange.sleep = time_passes
    bob.client.next_at = time.monotonic() + 60.0
    async with asyncio.timeout(60):
        assert await bob.round(1, await bob.groups(1)) == ()
        assert bob.exchange.stats.accepted == 2
        assert "groups of a snapshot were not taken" in caplog.text
        await late.load(lambda: FakeBackend().load(LoadRequest(model="fake")))
        number = 2
        while not bob.exchange.pool.groups():  # a draw may bring only what was refused for once
            await ada.round(number, await ada.groups(number))
            await bob.round(number, await bob.groups(number))
            number += 1
    await ada.exchange.close()
    await bob.exchange.close()
    await late.close()
