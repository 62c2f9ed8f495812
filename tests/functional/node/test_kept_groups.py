"""Groups of others in a round that waits: switched off or too old by the time it goes on, they are not trained on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.support.guarded_node import CONFIG
from tests.support.guarded_node import node as guarded

from sapo_backends.base import LoadRequest, UpdateStats
from sapo_backends.errors import Cancelled
from sapo_backends.fake import FakeEngine
from sapo_swarm.events import LogLine, RoundFinished
from sapo_swarm.node import resume_log
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.loop import Node
from sapo_swarm.node.swarm_exchange import GROUP_LIFE_S

HEALTHY = 999


class InterruptedEngine(FakeEngine):
    """Its first update is interrupted before anything of it is in the weights, once `meanwhile` is done."""

    def __init__(self, meanwhile: Callable[[], object]) -> None:
        super().__init__(LoadRequest("fake"))
        self.external: list[int] = []
        self._meanwhile = meanwhile

    def update(self, batch: Any, *rest: Any) -> UpdateStats:
        self.external.append(sum(sample.external for sample in batch))
        if len(self.external) == 1:
            self._meanwhile()
            raise Cancelled
        return super().update(batch, *rest)


def interrupted(folder: Path, meanwhile: Callable[[Node], Any]) -> tuple[Node, InterruptedEngine]:
    """A node of one round, and its engine. meanwhile: gets the node, on its loop."""
    made, loop = guarded(folder, 1, HEALTHY, eval_every=0), asyncio.get_running_loop()

    async def on_loop() -> None:
        found = meanwhile(made)
        if asyncio.iscoroutine(found):
            await found

    engine = InterruptedEngine(lambda: asyncio.run_coroutine_threadsafe(on_loop(), loop).result())
    made.setup = replace(made.setup, build=lambda _progress: engine)
    return made, engine


def finished(folder: Path) -> RoundFinished:
    (found,) = read_only(folder / "journal.db", ("round",))
    assert isinstance(found, RoundFinished)
    return found


async def test_groups_switched_off_during_an_update_that_is_interrupted_are_not_in_the_next_try(tmp_path: Path) -> None:
    """Else they are trained on right after "groups of others are not taken any more"."""
    made, engine = interrupted(tmp_path, lambda node: node.switch_external(False))
    await made.run()
    assert engine.external[0] > 0
    assert engine.external[1:] == [0]
    assert finished(tmp_path).external_groups == finished(tmp_path).external_wanted == 0


async def test_an_update_that_is_interrupted_keeps_its_groups_of_others(tmp_path: Path) -> None:
    made, engine = interrupted(tmp_path, lambda node: None)
    await made.run()
    assert engine.external[0] == engine.external[1] > 0
    assert finished(tmp_path).external_groups > 0


def aged(kept: resume_log.InFlight) -> resume_log.InFlight:
    return msgspec.structs.replace(kept, taken=time.time() - GROUP_LIFE_S - 1)


def ahead(kept: resume_log.InFlight) -> resume_log.InFlight:
    return msgspec.structs.replace(kept, taken=time.time() + 3600)


def untouched(kept: resume_log.InFlight) -> resume_log.InFlight:
    return kept


@pytest.mark.parametrize(
    ("made", "used"), [(untouched, True), (aged, False), (ahead, False)], ids=["fresh", "too old", "clock set back"]
)
async def test_groups_that_waited_over_a_stop_are_used_as_long_as_a_pool_would_have_kept_them(
    tmp_path: Path, made: Callable[[resume_log.InFlight], resume_log.InFlight], used: bool
) -> None:
    first, _ = interrupted(tmp_path, lambda node: node.command("stop"))
    await first.run()
    kept = resume_log.load_in_flight(tmp_path)
    assert kept is not None
    assert len(kept.external or ()) == CONFIG.external_groups
    resume_log.save_in_flight(tmp_path, made(kept))
    await guarded(tmp_path, 1, HEALTHY, eval_every=0).run()
    assert (finished(tmp_path).external_groups > 0) == used


async def test_a_round_kept_by_an_older_version_keeps_its_rollouts_and_not_its_groups_of_others(tmp_path: Path) -> None:
    """It did not say when they were taken."""
    first, _ = interrupted(tmp_path, lambda node: node.command("stop"))
    await first.run()
    path = tmp_path / resume_log.NAME
    old = msgspec.msgpack.decode(path.read_bytes())
    assert old.pop("taken") > 0
    path.write_bytes(msgspec.msgpack.encode(old))
    await guarded(tmp_path, 1, HEALTHY, eval_every=0).run()
    assert finished(tmp_path).external_groups == 0
    told = [e.text for e in read_only(tmp_path / "journal.db", ("log",)) if isinstance(e, LogLine)]
    assert any("were kept and are used" in text for text in told)
