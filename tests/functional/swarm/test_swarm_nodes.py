"""A swarm as people use it: a coordinator and nodes in processes of their own, over real sockets."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.support.node_process import environment, node, reaches, sapo
from tests.support.swarm_process import TASKS, coordinator, journal, news, rounds

from sapo_desktop.services.swarms import membership, trial
from sapo_desktop.settings import Settings
from sapo_swarm.config import RunConfig
from sapo_swarm.coordinator.host import launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.events import Event, GroupRecorded, RoundFinished, RunStarted, SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.protocol.client import NodeClient, Unreachable
from sapo_swarm.protocol.identity import Identity, StoredIdentity
from sapo_swarm.protocol.invite import parse_invite
from sapo_swarm.protocol.wire import TaskOffer
from sapo_swarm.scoring.scorer import Scorer


def drew(event: Event) -> bool:
    return isinstance(event, RoundFinished) and event.external_groups > 0


def was_drawn(event: Event) -> bool:
    return isinstance(event, SwarmUpdated) and event.uptake > 0


async def test_three_unlike_nodes_train_together_and_their_shares_add_up(tmp_path: Path) -> None:
    """Models, group sizes and algorithms differ; each draws from the others, each is drawn from.

    The nodes train until that has happened to all of them, so that it does not matter who started first.
    """
    kinds = (
        ("fake:0.004", "--group-size", "4", "--algorithm", "grpo", "--sampling", "uniform"),
        ("fake:0.003", "--group-size", "8", "--algorithm", "rloo", "--epochs", "2", "--minibatches", "2"),
        ("fake:0.002", "--group-size", "6", "--algorithm", "gspo", "--local-groups", "3", "--external-groups", "2"),
    )
    homes = [tmp_path / name for name in ("a", "b", "c")]
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _), AsyncExitStack() as stack:
        clients = []
        for home, (model, *extra) in zip(homes, kinds, strict=True):
            flags = ("--join", invite, *TASKS, "--model", model, *extra)
            clients.append((await stack.enter_async_context(node(home, *flags)))[0])
        for client in clients:
            await reaches(client, ("round",), drew)
            await reaches(client, ("swarm",), was_drawn)
        peers = await leaderboard(
            parse_invite(invite).url, lambda rows: len(rows) == 3 and all(row["uptake"] > 0 for row in rows)
        )
    assert {peer["model"] for peer in peers} == {model for model, *_ in kinds}
    assert all(peer["groups"] > 0 for peer in peers)
    assert sum(peer["share"] for peer in peers) == pytest.approx(1.0)
    for home, (_, _, size, _, name, *_) in zip(homes, kinds, strict=True):
        story = journal(home)
        started = next(e for e in story if isinstance(e, RunStarted))
        assert (started.mode, started.algorithm, started.group_size) == ("swarm", name, int(size))
        whole = started.local_groups + started.external_groups
        least = started.local_groups + min(started.local_groups, started.external_groups)
        sizes = {r.local_groups + r.external_groups for r in rounds(story)}
        assert all(least <= size <= whole for size in sizes), "short pools are filled up"
        assert sum(r.external_groups for r in rounds(story)) > 0
        assert all((r.reward_external is not None) == (r.external_groups > 0) for r in rounds(story))
        authors = {e.group.node for e in story if isinstance(e, GroupRecorded) and e.group.external}
        assert authors
        assert authors <= {peer["node"] for peer in peers}
        assert all(0.0 <= n.share <= 1.0 for n in news(story))
        assert max(n.external_share for n in news(story)) > 0
        assert max(n.uptake for n in news(story)) > 0


Rows = list[dict[str, Any]]


async def leaderboard(url: str, wanted: Callable[[Rows], bool]) -> Rows:
    """The coordinator's own rows, once they are as wanted (it counts anew every few seconds)."""
    async with aiohttp.ClientSession(headers={"Sapo-Proto": "1"}) as session:
        while True:
            async with session.get(f"{url}/v1/leaderboard") as reply:
                rows: Rows = (await reply.json())["nodes"]
            if wanted(rows):
                return rows
            await asyncio.sleep(0.1)


async def test_a_node_that_only_generates_is_drawn_from_and_never_updates(tmp_path: Path) -> None:
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        generates = ("--join", invite, *TASKS, "--method", "none", "--model", "fake:0.002")
        takes = ("--join", invite, *TASKS, "--model", "fake:0.003", "--sampling", "uniform")
        async with node(tmp_path / "g", *generates) as (giver, process), node(tmp_path / "t", *takes) as (taker, _):
            await reaches(taker, ("round",), drew)
            await reaches(giver, ("swarm",), was_drawn)
            await giver.post("stop")
            assert await asyncio.to_thread(process.wait) == 0
    story = journal(tmp_path / "g")
    assert next(e for e in story if isinstance(e, RunStarted)).method == "none"
    assert all(r.tokens_trained == 0 and r.loss is None and "update" not in r.seconds for r in rounds(story))
    assert all(r.tokens_generated > 0 for r in rounds(story))


async def test_a_coordinator_that_stops_in_mid_run_stops_nobody_and_is_not_flooded_when_it_is_back(
    tmp_path: Path,
) -> None:
    """Rounds go on alone, after the return nothing old is sent, and nothing that was acknowledged is lost.

    At what speed is measured by tests/benchmarks/away.py.
    """
    seen: list[SwarmUpdated] = []

    def away(event: SwarmUpdated) -> bool:
        seen.append(event)
        return not event.connected and event.made > 8

    def back(event: SwarmUpdated) -> bool:
        seen.append(event)
        return event.connected

    async with coordinator(tmp_path / "host", "--port", "0") as (invite, process):
        port = str(parse_invite(invite).port)
        async with node(tmp_path / "n", "--join", invite, *TASKS, "--model", "fake:0.005") as (client, _):
            await reaches(client, ("swarm",), lambda e: e.connected and e.made > 8)
            process.send_signal(signal.SIGTERM)
            await asyncio.to_thread(process.wait)
            await reaches(client, ("swarm",), away)
            left, gone = (await client.status()).round, seen[-1]
            await reaches(client, ("round",), lambda e: e.round >= left + 8)
            async with coordinator(tmp_path / "host", "--port", port):
                await reaches(client, ("swarm",), back, after=gone.seq)
                accepted = seen[-1].accepted
                url = parse_invite(invite).url
                await leaderboard(url, lambda rows: rows[0]["groups"] >= accepted)
    assert "training goes on alone" in gone.sentence
    assert gone.share == pytest.approx(1.0), "the figures of before stay"
    sent = seen[-1].made - seen[-2].made
    assert 0 < sent <= 3 * 9, "a burst of three rounds at most; eight rounds of backlog were 64 groups"
    assert accepted > gone.accepted


async def test_a_person_s_attempts_travel_as_a_group_and_reach_a_node(tmp_path: Path) -> None:
    """contribute --answer: typed attempts are scored, signed and drawn by others."""
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        command = (sys.executable, "-m", "sapo_desktop", "contribute")
        typed = "1234567\nit is <answer>7654321</answer>\n\n"  # never right by chance: what follows must not vary
        done = await asyncio.to_thread(
            subprocess.run,
            [*command, "--answer", "--join", invite, "--questions", "1", "--tasks", "basic_arithmetic"],
            env=environment(tmp_path / "person"),
            input=typed,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "reward 0.00" in done.stdout
        assert "Shared: the swarm holds your 2 attempts." in done.stdout
        assert not (tmp_path / "person" / "data" / "written-answers.jsonl").exists()  # right ones are kept there
        takes = ("--join", invite, *TASKS, "--model", "fake:0.002", "--sampling", "uniform")
        async with node(tmp_path / "n", *takes) as (client, _):
            await reaches(client, ("group",), lambda e: getattr(getattr(e, "group", None), "model", "") == "person")
            await client.post("stop")


async def test_host_verbs_reach_the_coordinator_of_the_same_home(tmp_path: Path) -> None:
    """invite, invite list, revoke, swarm, export, import: each as a person types it."""
    home = tmp_path / "host"
    async with coordinator(home, "--port", "0"):
        made = await asyncio.to_thread(sapo, home, "invite", "--label", "Ada", "--uses", "2", "--hours", "1")
        assert made.returncode == 0, made.stderr
        first = made.stdout.splitlines()[0]
        assert parse_invite(first.split()[0]).token
        listed = await asyncio.to_thread(sapo, home, "invite", "list")
        assert "Ada" in listed.stdout
        assert "used 0 of 2" in listed.stdout
        gone = await asyncio.to_thread(sapo, home, "invite", "revoke", "Ada")
        assert "Revoked" in gone.stdout
        refused = await asyncio.to_thread(sapo, tmp_path / "late", "node", "--join", first.split()[0], *TASKS)
        assert refused.returncode == 2
        assert "revoked" in refused.stderr
        twice = await asyncio.to_thread(sapo, home, "coordinator", "--port", "0")
        assert twice.returncode == 1
        assert "swarm stop" in twice.stderr
        exported = await asyncio.to_thread(sapo, home, "swarm", "export", str(tmp_path / "swarm.bin"))
        assert exported.returncode == 0, exported.stderr
    assert (tmp_path / "swarm.bin").stat().st_mode & 0o077 == 0
    moved = await asyncio.to_thread(sapo, tmp_path / "friend", "swarm", "import", str(tmp_path / "swarm.bin"))
    assert moved.returncode == 0, moved.stderr
    assert (await asyncio.to_thread(sapo, home, "invite")).returncode == 3


async def test_a_swarm_that_its_host_opens_is_a_trial_for_its_members_until_they_stay(tmp_path: Path) -> None:
    """An invite lets in whom the host chose; in an open swarm that says nothing any more."""
    home, store = tmp_path / "n", f"sqlite:{tmp_path}/s"
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=store))
    join, port = str(hosted.invite), hosted.port
    await hosted.stop()
    for rounds_done, opened in enumerate((False, True, True), 1):
        hosted = await launch_coordinator(CoordinatorSettings(port=port, store=store, open=opened))
        done = await asyncio.to_thread(
            sapo, home, "node", "--join", join, *TASKS, "--model", "fake:0.002", "--rounds", str(rounds_done)
        )
        assert done.returncode == 0, done.stderr
        if rounds_done == 2:
            assert "Trial in an open swarm" in done.stdout
            stays = await asyncio.to_thread(sapo, home, "stay")
            assert stays.returncode == 0, stays.stderr
        await hosted.stop()
    started = [event for event in journal(home) if isinstance(event, RunStarted)]
    assert [(bool(event.trial), event.external_groups) for event in started] == [(False, 8), (True, 2), (False, 8)]


async def test_an_open_swarm_is_a_trial_also_where_its_own_tasks_cannot_be_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(_client: NodeClient) -> tuple[TaskOffer, ...]:
        raise Unreachable("gone meanwhile")

    monkeypatch.setattr(NodeClient, "tasks", away)
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=f"sqlite:{tmp_path}/s", open=True))
    who, saved = StoredIdentity(Identity.generate(), "file", ""), tmp_path / "invite"
    exchange, _ = await membership.join_swarm(hosted.invite, who, Settings(), RunConfig(), saved=saved)
    assert trial.find_trial(saved, hosted.invite.swarm)
    assert exchange.policy == trial.trial_rules(exchange.policy), "the rules of a trial"
    await exchange.client.__aexit__(None, None, None)
    await hosted.stop()


async def test_a_swarm_that_turns_out_to_be_open_during_the_run_gets_and_gives_nothing_before_its_trial(
    tmp_path: Path, scorer: Scorer, engine: EngineThread
) -> None:
    """The coordinator was away when the node started, so nothing said that the swarm is open."""
    store, saved = f"sqlite:{tmp_path}/s", tmp_path / "invite"
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=store))
    await hosted.stop()
    who = StoredIdentity(Identity.generate(), "file", "")
    exchange, _ = await membership.join_swarm(hosted.invite, who, Settings(), RunConfig(), saved=saved)
    exchange.attach(engine, scorer)
    hosted = await launch_coordinator(CoordinatorSettings(port=hosted.port, store=store, open=True))
    for number in (1, 2, 3):
        exchange.client.next_at = 0.0
        await exchange.exchange(number, (), 2)
        await exchange.settled()
    news = exchange.news()
    assert (news.connected, news.held) == (False, "trial at the next start")
    assert "when the node starts again · training goes on alone" in news.sentence
    assert trial.find_trial(saved, hosted.invite.swarm)
    await exchange.close()
    await hosted.stop()


async def test_a_member_that_started_while_the_coordinator_was_away_shares_the_part_that_the_swarm_asks_for(
    tmp_path: Path, scorer: Scorer, engine: EngineThread
) -> None:
    store, who = f"sqlite:{tmp_path}/s", StoredIdentity(Identity.generate(), "file", "")
    hosted = await launch_coordinator(CoordinatorSettings(port=0, store=store))
    async with NodeClient(hosted.invite, who.identity) as client:
        await client.join()
    await hosted.stop()
    exchange, _ = await membership.join_swarm(hosted.invite, who, Settings(), RunConfig())
    exchange.attach(engine, scorer)
    hosted = await launch_coordinator(CoordinatorSettings(port=hosted.port, store=store, share_fraction=0.25))
    exchange.client.next_at = 0.0
    await exchange.exchange(1, (), 2)
    await exchange.settled()
    assert exchange.news().connected
    assert exchange.share_fraction == 0.25
    await exchange.close()
    await hosted.stop()


async def test_leaving_forgets_the_invite_and_the_node_trains_alone(tmp_path: Path) -> None:
    home = tmp_path / "n"
    async with coordinator(tmp_path / "host", "--port", "0") as (invite, _):
        async with node(home, "--join", invite, *TASKS, "--model", "fake:0.002") as (client, _):
            await reaches(client, ("swarm",), lambda e: isinstance(e, SwarmUpdated) and e.connected)
            left = await asyncio.to_thread(sapo, home, "leave")
            assert left.returncode == 0, left.stderr
            assert "The invite is forgotten" in left.stdout
        assert not (home / "invite").exists()
        status = await asyncio.to_thread(sapo, home, "status", "--json")
        assert msgspec.json.decode(status.stdout)["mode"] == "silo"
        await asyncio.to_thread(sapo, home, "stop")
