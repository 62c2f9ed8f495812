"""What a node hands over to its swarm: what teaches first, nothing private, nothing old."""

from __future__ import annotations

import asyncio

from tests.support.exchanging_node import Node, solved

from sapo_swarm.coordinator.host import RunningCoordinator
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Group, Question, TaskRef


async def test_groups_of_an_own_task_never_leave_the_machine(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """Not even their number: what the coordinator is told of is the group of a task that the swarm knows."""
    ada, bob = Node(hosted, scorer, engine), Node(hosted, scorer, engine)
    await ada.join("Ada")
    await bob.join("Bob")
    (shared,) = await ada.groups(1, 1)
    ref = TaskRef("my_task", "own", 7, 0, "task-" + "0" * 32)
    secret = "9" * 64
    private = Group(Question(ref, "a secret", secret), shared.rollouts, model="m")
    await ada.round(1, [private, shared, private])
    (group,) = await bob.round(1, [], 4)
    assert group.question == shared.question
    assert ada.news().made == 1
    await ada.exchange.close()
    await bob.exchange.close()


async def test_of_many_groups_non_zero_advantage_ones_are_handed_over_first(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """An upload carries nine; whoever solved only the last question of twelve still shares that one."""
    author, reader = Node(hosted, scorer, engine), Node(hosted, scorer, engine, "uniform_nonzero")
    await author.join("author")
    await reader.join("reader")
    own = await author.groups(1, 12, ("no", "neither"))
    own[-1] = solved(own[-1])
    await author.round(1, own)
    for number in range(1, 20):
        if found := await reader.round(number, []):
            break
    (group,) = found
    assert group.question == own[-1].question
    assert group.rewards == (1.0, 0.0)
    await author.exchange.close()
    await reader.exchange.close()


async def test_what_a_fast_node_makes_between_two_uploads_goes_out_with_the_next(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """Its rounds take 2 s and uploads come every 5: a reader gets what teaches of all of them, each with its own round."""
    author, reader, awake = (
        Node(hosted, scorer, engine),
        Node(hosted, scorer, engine, "uniform_nonzero"),
        asyncio.Event(),
    )
    await author.join("author")
    await reader.join("reader")

    async def pace(_seconds: float) -> None:
        await awake.wait()
        author.client.next_at = 0.0

    author.exchange.sleep = pace
    made = [(number, solved((await author.groups(number, 1))[0])) for number in (1, 2, 3)]
    for number, group in made:
        await author.exchange.exchange(number, [group, *await author.groups(10 + number, 1, ("no", "neither"))], 0)
    awake.set()
    await author.exchange.settled()
    assert author.exchange.stats.accepted == 4, "and what teaches nothing of the newest round"
    found: dict[str, int] = {}
    for number in range(1, 20):
        found |= {group.question.prompt_sha256: group.step for group in await reader.round(number, [], 8)}
        if len(found) == len(made):
            break
    assert found == {group.question.prompt_sha256: number for number, group in made}
    await author.exchange.close()
    await reader.exchange.close()


async def test_a_coordinator_that_goes_away_stops_nothing_and_gets_no_backlog(
    hosted: RunningCoordinator, scorer: Scorer, engine: EngineThread
) -> None:
    """Rounds go on with a sentence and the figures of before; after its return the newest groups are sent, and of the
    three rounds before those with a non-zero advantage."""
    node, awake = Node(hosted, scorer, engine), asyncio.Event()
    await node.join("node")
    await node.round(1, await node.groups(1, 1))
    await hosted.coordinator.store.close()
    await node.round(2, await node.groups(2, 1))
    away = node.news()
    assert (away.connected, away.share) == (False, 1.0)
    assert "training goes on alone" in away.sentence

    async def back_off(seconds: float) -> None:
        await awake.wait()
        node.client.next_at = 0.0

    node.exchange.sleep = back_off
    for number in (3, 4, 5):
        await node.exchange.exchange(number, [solved(group) for group in await node.groups(number, 1)], 2)
    await hosted.coordinator.store.open()
    await node.exchange.exchange(7, await node.groups(7, 1, ("no", "neither")), 2)
    awake.set()
    await node.exchange.settled()
    assert node.news().connected
    assert node.exchange.stats.accepted == 4, "rounds 1, 4, 5 and 7: what is older is never sent late"
    await node.exchange.close()
