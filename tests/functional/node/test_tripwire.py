"""The held-out tripwire in a node that trains: a poisoned pool, a healthy one, and kill -9 in the middle of a rollback."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.guarded_node import CONFIG
from tests.support.guarded_node import node as guarded
from tests.support.node_process import environment, node, reaches, sapo
from tests.support.swarm_process import TASKS, coordinator

from sapo_swarm.events import CheckpointSaved, Evaluated, Event, ExternalSwitched, RoundFinished
from sapo_swarm.node.checkpoints import read_state
from sapo_swarm.node.journal import read_only
from sapo_swarm.resolve_run import EXTERNAL_GROUPS

POISONED_FROM, ROUNDS = 4, 12


def play(folder: Path, rounds: int, poisoned_from: int, *die_at: str) -> int:
    """Run the node to its end, or to its death: the exit code."""
    arguments = [str(folder), str(rounds), str(poisoned_from), *die_at]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.guarded_node", *arguments],
        env=environment(folder) | {"PYTHONPATH": ":".join([str(Path(__file__).parents[3]), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode in (0, -signal.SIGKILL), done.stderr
    return done.returncode


def story(folder: Path) -> list[Event]:
    return read_only(folder / "journal.db", ("round", "evaluation", "external"))


def switches(events: list[Event]) -> list[ExternalSwitched]:
    return [event for event in events if isinstance(event, ExternalSwitched) and not event.taking]


@pytest.mark.parametrize("deaths", [(), ("verdict", "saving")], ids=["undisturbed", "killed twice"])
def test_a_poisoned_pool_is_shut_and_the_best_weights_come_back(tmp_path: Path, deaths: tuple[str, ...]) -> None:
    """Once, wherever the node is killed; afterwards it trains on alone from there."""
    for death in deaths:
        assert play(tmp_path, ROUNDS, POISONED_FROM, death) == -signal.SIGKILL
    assert play(tmp_path, ROUNDS, POISONED_FROM) == 0
    events = story(tmp_path)
    (trip,) = switches(events)
    evaluations = [event for event in events if isinstance(event, Evaluated)]
    best = max(evaluations, key=lambda event: event.pass_at_1 if event.round < trip.round else 0.0)
    assert trip.restored == best.round
    assert trip.now < (1 - CONFIG.tripwire) * trip.best
    assert f"the weights of checkpoint {best.round} are back" in trip.sentence
    assert "sapo-desktop external on" in trip.sentence
    total = ROUNDS + trip.round - trip.restored  # what was undone does not count towards the planned rounds
    before, after, newest = (
        read_state(tmp_path / "checkpoints" / f"round-{number:06d}") for number in (best.round, trip.round, total)
    )
    assert after.weights == before.weights, "bit by bit, although the best is older than what is usually kept"
    assert (after.parent, after.reason) == (before.weights, "rollback"), "a link of the hash chain"
    assert (before.rollbacks, after.rollbacks, newest.rollbacks) == (0, 1, 1)
    played = [event for event in events if isinstance(event, RoundFinished)]
    assert [event.round for event in played] == list(range(total))
    assert sum(event.external_groups for event in played if event.round < trip.round) > 0
    alone = [event for event in played if event.round >= trip.round]
    assert alone
    assert all(event.external_groups == event.external_wanted == 0 for event in alone)
    assert all(event.local_groups == CONFIG.local_groups + CONFIG.external_groups for event in alone), (
        "batches stay whole"
    )


def test_a_rollback_that_a_kill_left_over_is_done_although_other_tasks_are_asked_by_then(tmp_path: Path) -> None:
    """The best checkpoint is the oldest, only one is kept, and the session has no best of its own yet."""
    assert play(tmp_path, ROUNDS, POISONED_FROM, "verdict") == -signal.SIGKILL
    (trip,) = switches(story(tmp_path))
    tasks = ("basic_arithmetic", "calendar_arithmetic")
    asyncio.run(guarded(tmp_path, trip.round + 1, 999, tasks=tasks, keep_checkpoints=1).run())
    saved = read_only(tmp_path / "journal.db", ("checkpoint",))
    links = [event for event in saved if isinstance(event, CheckpointSaved)]
    (back,) = [link for link in links if link.reason == "rollback"]
    best = next(link for link in links if link.round == trip.restored)
    assert back.weights == back.parent == best.weights
    assert len(switches(story(tmp_path))) == 1


def test_a_healthy_pool_trips_nothing(tmp_path: Path) -> None:
    assert play(tmp_path, 20, 999) == 0
    events = story(tmp_path)
    assert switches(events) == []
    assert sum(isinstance(event, Evaluated) for event in events) == 11
    played = [event for event in events if isinstance(event, RoundFinished)]
    assert played[-1].external_wanted == CONFIG.external_groups


async def test_the_person_switches_groups_of_others_off_and_on_and_it_outlives_kill_9(tmp_path: Path) -> None:
    """external off | on, seen in the status, in the rounds and after a restart."""
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        home = tmp_path / "n"
        joins = ("--join", invite, *TASKS, "--model", "fake:0.002")
        async with node(home, *joins) as (client, _):
            off = await asyncio.to_thread(sapo, home, "external", "off")
            assert off.returncode == 0, off.stderr
            assert "sapo-desktop external on" in off.stdout
            seq = (await client.status()).seq
            await reaches(client, ("round",), lambda e: e.external_wanted == 0, after=seq)
        async with node(home, *joins) as (client, _):
            await reaches(client, ("run_started",), lambda e: True, after=seq)
            assert "external on" in (await client.status()).external
            on = await asyncio.to_thread(sapo, home, "external", "on")
            assert "sapo-desktop external" not in on.stdout
            seq = (await client.status()).seq
            await reaches(client, ("round",), lambda e: e.external_wanted == EXTERNAL_GROUPS, after=seq)


async def test_a_node_in_no_swarm_has_nothing_to_switch(tmp_path: Path) -> None:
    async with node(tmp_path, "--silo", *TASKS, "--model", "fake:0.02") as (client, _):
        await reaches(client, ("run_started",), lambda e: True)
        refused = await asyncio.to_thread(sapo, tmp_path, "external", "on")
    assert refused.returncode == 1
    assert "in no swarm" in refused.stderr
