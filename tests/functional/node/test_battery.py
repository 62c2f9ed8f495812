"""A real node beside a fake Linux device tree, as its battery drains and is charged; and a suspended one."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from itertools import count
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.support import device_tree, node_process
from tests.support.device_tree import linux
from tests.support.watched_node import CALM, CONFIG, CountingEngine, follow

from sapo_backends.base import Engine, Progress
from sapo_swarm.events import Event, RoundFinished, StateChanged
from sapo_swarm.node.governor import rules
from sapo_swarm.node.governor.rules import MachineMonitor
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup

pytestmark = linux
LIMITS = msgspec.structs.replace(CALM, slow_celsius=0.0, min_charge=30.0)


async def test_battery_slows_a_node_ten_percent_pause_it_and_mains_bring_it_back_with_its_rollouts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        rules, "RULES", tuple(msgspec.structs.replace(rule, dwell=rule.dwell / 40) for rule in rules.RULES)
    )
    seen = list[str]()
    device_tree.power(tmp_path, plugged=True, charge=80)
    engine = CountingEngine(lambda: engine_waits())
    config = msgspec.structs.replace(CONFIG, rounds=0)

    def engine_waits() -> None:
        node.host.cancel.wait(0.02)  # a model that takes its time, so that a round is in flight when something happens

    def build(progress: Progress) -> Engine:
        return engine

    node = Node(
        NodeSetup(
            config, "held", tmp_path / "run", build, lambda: LIMITS, lambda run: MachineMonitor(run, tmp_path / "sys")
        )
    )

    def step(event: Event) -> None:
        if isinstance(event, RoundFinished) and not seen:
            seen.append("round")
            device_tree.power(tmp_path, plugged=False, charge=60)
        if not isinstance(event, StateChanged):
            return
        if "slower: on battery, full speed once plugged in" in event.sentence and seen == ["round"]:
            seen.append("slower")
            assert node.host._duty < 1.0
            device_tree.power(tmp_path, plugged=False, charge=10)
        if (event.state, event.reason) == ("paused", "charge"):
            seen.append("paused")
            device_tree.power(tmp_path, plugged=True, charge=11)
        if event.state == "running" and seen[-1:] == ["paused"]:
            seen.append("back")
            node.command("stop")

    await follow(node, step)
    assert seen == ["round", "slower", "paused", "back"]
    assert node.host._duty == 1.0
    fresh = CountingEngine()
    done = node.rounds_done
    again = Node(
        NodeSetup(
            msgspec.structs.replace(config, rounds=done + 1), "held", tmp_path / "run", lambda _: fresh, lambda: CALM
        )
    )
    await again.run()
    finished = [e for e in read_only(tmp_path / "run" / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    assert engine.sampled + fresh.sampled == sum(event.tokens_generated for event in finished)


async def test_a_node_goes_on_after_a_suspend_and_stops_with_everything_on_the_disk(tmp_path: Path) -> None:
    """SIGSTOP is what a suspended computer looks like to a process: nothing runs, and then the clock has moved."""
    async with node_process.node(tmp_path, *node_process.FAKE, "--model", "fake:0.01") as (client, process):

        def another(count: int) -> Callable[[Event], bool]:
            return lambda event: isinstance(event, RoundFinished) and event.round >= count

        await node_process.reaches(client, ("round",), another(0))
        done = (await client.status()).round
        process.send_signal(signal.SIGSTOP)
        for _ in count():
            if await asyncio.to_thread(psutil.Process(process.pid).status) == psutil.STATUS_STOPPED:
                break
        process.send_signal(signal.SIGCONT)
        await node_process.reaches(client, ("round",), another(done + 1))
        status = await client.status()
        assert status.state == "running"
        process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(process.wait, 60) == 0
    (model,) = (tmp_path / "data" / "models").iterdir()
    rounds = [e.round for e in read_only(model / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    assert rounds == list(range(len(rounds)))
    assert len(rounds) >= status.round
