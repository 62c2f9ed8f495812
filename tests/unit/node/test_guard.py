"""The guard beside its journal, its checkpoints and a disk that is full: what it remembers is what was told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sapo_backends.base import LoadRequest
from sapo_backends.fake import FakeEngine
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, ExternalSwitched, GreedyScore
from sapo_swarm.node.checkpoints import CheckpointInfo, CheckpointStore, NoRoom, rounds_of
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import Evaluator
from sapo_swarm.node.guard import RollbackGuard
from sapo_swarm.node.journal import EventBus, Journal
from sapo_swarm.sapo import held_out_tripwire
from sapo_swarm.scoring.scorer import Scorer

CONFIG = RunConfig(tasks=("basic_arithmetic",), local_groups=2, external_groups=2)


@pytest.fixture
async def guard(tmp_path: Path) -> AsyncIterator[RollbackGuard]:
    """Of a node in a swarm that keeps one checkpoint besides the best one."""
    host, journal = EngineThread(), Journal(tmp_path / "journal.db")
    engine = await host.load(lambda: FakeEngine(LoadRequest("fake")))
    checkpoints = CheckpointStore(tmp_path / "checkpoints", keep=1)

    def save(rounds: int, rollbacks: int) -> Path:
        return checkpoints.write(engine, CheckpointInfo(rounds, "evaluation", rollbacks=rollbacks)).path

    examiner = Evaluator(CONFIG, host, Scorer(), tmp_path / "evaluations")
    yield RollbackGuard(CONFIG, host, checkpoints, examiner, None, journal, EventBus(journal), save, in_swarm=True)
    journal.close()
    await host.close()


async def test_a_person_who_switches_groups_off_while_the_tripwire_trips_takes_nothing_from_the_verdict(
    guard: RollbackGuard,
) -> None:
    trip = ExternalSwitched(
        round=10, taking=False, by="tripwire", sentence="It fell.", restored=4, best=0.5, now=0.1, items=100
    )
    await asyncio.gather(guard._publish(trip), guard.switch(False, 10))
    told = guard.journal.read(0, held_out_tripwire.KINDS)
    assert [event.by for event in told if isinstance(event, ExternalSwitched)] == ["tripwire", "person"]
    assert guard.watch == held_out_tripwire.watch_of(told, guard.regular_items, guard.tolerance)
    assert (guard.watch.trips, guard.watch.restored) == (1, 4)


def evaluation(guard: RollbackGuard, rounds_done: int, pass_at_1: float, greedy: float | None = None) -> Evaluated:
    """A regular one that asked all it should."""
    return Evaluated(
        round=rounds_done,
        temperature=1.0,
        items=guard.regular_items,
        pass_at_1=pass_at_1,
        low=0.0,
        high=1.0,
        delta=None,
        delta_low=None,
        delta_high=None,
        tasks=(),
        seconds=1.0,
        greedy=None if greedy is None else GreedyScore(guard.regular_items, greedy, 0.0, 1.0),
    )


async def test_a_new_best_that_does_not_fit_leaves_the_old_best_checkpoint_on_the_disk_and_the_evaluation_is_told(
    guard: RollbackGuard,
) -> None:
    checkpoints, engine = guard.checkpoints, guard.host.engine

    def kept() -> list[int]:
        return [rounds_of(path) for path in checkpoints.complete()]

    await guard.evaluated(evaluation(guard, 25, 0.4), 25)
    for rounds in (40, 49):
        checkpoints.write(engine, CheckpointInfo(rounds, "time"))
    checkpoints.budget = 1  # other files of the model have taken the rest
    with pytest.raises(NoRoom):
        await guard.evaluated(evaluation(guard, 50, 0.6), 50)
    assert kept() == [25, 40, 49], "nothing goes for one that does not fit anyway"
    told = guard.journal.read(0, ("evaluation",))
    assert [event.round for event in told if isinstance(event, Evaluated)] == [25, 50]
    checkpoints.budget = 0
    for rounds in range(60, 130, 10):
        checkpoints.write(engine, CheckpointInfo(rounds, "time"))
    assert 49 in kept(), "the nearest to the best that there is: a rollback takes it"


async def test_the_best_checkpoint_at_each_temperature_is_saved_and_outlives_thinning(guard: RollbackGuard) -> None:
    """Until there is a better one; the best sampled one is named first, because the tripwire needs it."""
    checkpoints, engine = guard.checkpoints, guard.host.engine
    for rounds, sampled, greedy in ((10, 0.5, 0.5), (20, 0.4, 0.7), (30, 0.45, 0.6)):
        await guard.evaluated(evaluation(guard, rounds, sampled, greedy), rounds)
    assert [rounds_of(path) for path in checkpoints.complete()] == [10, 20], "30 is no best one"
    assert checkpoints.pinned == (10, 20)
    for rounds in range(100, 400, 10):
        checkpoints.write(engine, CheckpointInfo(rounds, "time"))
    assert {10, 20} <= {rounds_of(path) for path in checkpoints.complete()}
    await guard.evaluated(evaluation(guard, 400, 0.8, 0.8), 400)
    assert checkpoints.pinned == (400,)
    await guard.open(0)
    assert checkpoints.pinned == (400,), "the journal says so after a restart"


async def test_weights_that_the_tripwire_took_back_are_no_best_greedy_ones(guard: RollbackGuard) -> None:
    await guard.evaluated(evaluation(guard, 10, 0.5, 0.5), 10)
    await guard.evaluated(evaluation(guard, 20, 0.4, 0.7), 20)
    await guard._publish(
        ExternalSwitched(
            round=20, taking=False, by="tripwire", sentence="It fell.", restored=10, best=0.5, now=0.1, items=100
        )
    )
    assert guard.watch.best_greedy is None
    assert guard.checkpoints.pinned == (10,)
