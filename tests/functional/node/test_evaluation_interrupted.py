"""Evaluations under holds that never end coming, without enough memory, or without any answer: training goes on all the same."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import msgspec
import pytest
from tests.functional.node.test_interruptions import Interrupter, finished
from tests.functional.node.test_memory import SmallEngine
from tests.support.guarded_node import CONFIG as GUARDED
from tests.support.guarded_node import Pool
from tests.support.watched_node import CALM, CONFIG, CountingEngine, follow, make

from sapo_backends import fake
from sapo_backends.errors import BackendError, OutOfMemory
from sapo_swarm.events import Evaluated, ExternalSwitched, LogLine
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.setup import NodeSetup

EXAMINED = msgspec.structs.replace(CONFIG, eval_every=2, eval_items=48)
"""96 items: two batches."""
FOREVER = float("inf")
Told = TypeVar("Told", Evaluated, ExternalSwitched)


def timeless(event: Told) -> Told:
    """The same whenever and however quickly it happened."""
    return msgspec.structs.replace(event, seq=0, time=0.0)


def evaluations(folder: Path) -> list[Evaluated]:
    found = [e for e in read_only(folder / "journal.db", ("evaluation",)) if isinstance(e, Evaluated)]
    return [timeless(msgspec.structs.replace(e, seconds=0.0)) for e in found]


def logged(folder: Path, beginning: str) -> list[LogLine]:
    found = [e for e in read_only(folder / "journal.db", ("log",)) if isinstance(e, LogLine)]
    return [line for line in found if line.text.startswith(beginning)]


def switched(folder: Path) -> list[ExternalSwitched]:
    return [timeless(e) for e in read_only(folder / "journal.db", ("external",)) if isinstance(e, ExternalSwitched)]


@pytest.mark.timeout(120)
async def test_an_evaluation_under_a_hold_every_third_step_ends_as_if_it_was_undisturbed(tmp_path: Path) -> None:
    await make(tmp_path / "calm", CountingEngine(), EXAMINED).run()
    interrupter = Interrupter(3, FOREVER)
    interrupter.node = make(tmp_path / "held", CountingEngine(interrupter.step), EXAMINED)
    await follow(interrupter.node, interrupter.seen)
    assert interrupter.holds > 4
    assert len(finished(tmp_path / "held")) == EXAMINED.rounds
    assert evaluations(tmp_path / "held") == evaluations(tmp_path / "calm")
    assert [e.round for e in evaluations(tmp_path / "held")] == [0, 2]


async def test_an_evaluation_that_a_stop_prevented_is_made_at_the_next_start_and_only_then(tmp_path: Path) -> None:
    """Of a run whose rounds are all done, the last weights are measured too."""
    await make(tmp_path / "calm", CountingEngine(), EXAMINED).run()
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if node.activity.phase == "evaluate" and node.rounds_done == EXAMINED.rounds:
            node.host.cancel.cancel()
            loop.call_soon_threadsafe(node.command, "stop")

    node = make(tmp_path / "run", CountingEngine(stop), EXAMINED)
    await node.run()
    assert [e.round for e in evaluations(tmp_path / "run")] == [0]
    await make(tmp_path / "run", CountingEngine(), EXAMINED).run()
    assert evaluations(tmp_path / "run") == evaluations(tmp_path / "calm")
    engine = CountingEngine()
    await make(tmp_path / "run", engine, EXAMINED).run()
    assert engine.sampled == 0


async def test_an_evaluation_without_memory_asks_half_at_a_time_and_gets_the_same_answers(tmp_path: Path) -> None:
    await make(tmp_path / "calm", CountingEngine(), EXAMINED).run()
    engine = SmallEngine(32, lambda: OutOfMemory(2**34, 2**30, "Lower group_size."))
    await make(tmp_path / "small", engine, EXAMINED).run()
    assert engine.asked[:4] == [64, 32, 32, 32], "and stays at half"
    assert max(engine.asked[1:]) == 32
    assert evaluations(tmp_path / "small") == evaluations(tmp_path / "calm")
    assert not logged(tmp_path / "small", "Memory ran out"), "rounds of 32 rows are as they were"


class Breaking(CountingEngine):
    """Refuses to generate while the node does what `at` says."""

    def __init__(self, at: Callable[[], bool]) -> None:
        super().__init__()
        self._at = at

    def generate(self, *args, **kwargs):  # type: ignore[no-untyped-def]
        if self._at():
            raise BackendError("Broken.")
        return super().generate(*args, **kwargs)


async def test_an_evaluation_that_gets_no_answers_is_given_up_with_a_sentence(tmp_path: Path) -> None:
    node = make(tmp_path / "run", Breaking(lambda: node.activity.phase == "evaluate"), EXAMINED)
    await node.run()
    assert len(finished(tmp_path / "run")) == EXAMINED.rounds
    assert evaluations(tmp_path / "run") == []
    lines = logged(tmp_path / "run", "The held-out evaluation was given up and training goes on")
    assert len(lines) == 2, "at the start and after the second round"
    assert lines[0].level == "error"
    assert lines[0].text.endswith("Broken.")


ROUNDS = 12


def guarded(folder: Path, engine: CountingEngine) -> Node:
    """A node whose pool is poisoned from round 4 on."""
    config = msgspec.structs.replace(GUARDED, rounds=ROUNDS)
    setup = NodeSetup(
        config, "guarded", folder, lambda _: engine, lambda: CALM, exchange=Pool(4), node_key="me", swarm="swarm"
    )
    return Node(setup)


def looks(node: Node) -> bool:
    return node.activity.phase == "evaluate" and node.activity.sentence.startswith("Looking closer")


@pytest.fixture
def forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine learns, and forgets, in a few rounds."""
    monkeypatch.setattr(fake, "LARGEST_STEP", 2.0)


@pytest.mark.timeout(120)
@pytest.mark.usefixtures("forgets")
async def test_a_closer_look_under_holds_gives_the_verdict_of_an_undisturbed_one(tmp_path: Path) -> None:
    await guarded(tmp_path / "calm", CountingEngine()).run()
    interrupter = Interrupter(9, FOREVER)
    engine = CountingEngine(lambda: interrupter.step() if looks(interrupter.node) else None)
    interrupter.node = guarded(tmp_path / "held", engine)
    await follow(interrupter.node, interrupter.seen)
    assert interrupter.holds > 1
    assert switched(tmp_path / "held") == switched(tmp_path / "calm") != []
    assert len(finished(tmp_path / "held")) == len(finished(tmp_path / "calm")) > ROUNDS, "those undone do not count"


@pytest.mark.usefixtures("forgets")
async def test_a_closer_look_that_gets_no_answers_is_given_up_with_a_sentence(tmp_path: Path) -> None:
    node = guarded(tmp_path / "run", Breaking(lambda: looks(node)))
    await node.run()
    assert len(finished(tmp_path / "run")) == ROUNDS
    assert logged(tmp_path / "run", "The closer look was given up and training goes on")
    assert switched(tmp_path / "run") == []
