"""A node alone that learns again from its own successes: the settings reach the rounds, and a restart changes nothing."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.functional.node.test_node import only_run, weights
from tests.support import node_process
from tests.support.node_process import sapo
from tests.support.own_tasks import library_in, write_folder
from tests.support.watched_node import CONFIG, CountingEngine, make

from sapo_backends.base import Completion, Sampling, TokenSequence, TrainSample, UpdateStats
from sapo_swarm.events import RoundFinished
from sapo_swarm.node.journal import read_only

ALONE = (
    *node_process.FAKE,
    "--final-rate",
    "1",
    "--local-groups",
    "8",
    "--algorithm",
    "maxrl",
    "--curriculum",
    "tasks",
)
REPLAY = ("--replay-groups", "3", "--replay-half-life", "2")


def test_an_interrupted_run_with_replay_and_a_curriculum_ends_with_the_same_weights(tmp_path: Path) -> None:
    sapo(tmp_path / "straight", "node", *ALONE, *REPLAY, "--rounds", "6")
    sapo(tmp_path / "broken", "node", *ALONE, *REPLAY, "--rounds", "3")
    done = sapo(tmp_path / "broken", "node", *ALONE, *REPLAY, "--rounds", "6")
    assert "goes on with round 4" in done.stdout
    straight, broken = only_run(tmp_path / "straight"), only_run(tmp_path / "broken")
    assert weights(straight, 6) == weights(broken, 6)
    rounds = [e for e in read_only(straight / "journal.db") if isinstance(e, RoundFinished)]
    assert max(e.figures.get("replayed", 0.0) for e in rounds) > 0
    assert "replayed" not in rounds[0].figures, "there is nothing to replay in the first round"


def half_right(folder: Path) -> Path:
    """A task of the person's own that the fake engine answers right about half of the time."""
    rows = [{"question": f"Calculate {n} + {n}.", "answer": n + n} for n in range(40)]
    return write_folder(folder, '[[verifier]]\nkind = "number"\nabs = 60\n', rows[:30], rows[30:])


async def test_the_speed_of_a_round_counts_what_it_generates(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, tasks=("mine",), group_size=16)
    with library_in(tmp_path / "tasks") as folder:
        half_right(folder / "mine")
        node = make(tmp_path / "run", engine := CountingEngine(), config)
        await node.run()
    rounds = [e for e in read_only(tmp_path / "run" / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    assert sum(e.tokens_generated for e in rounds) == engine.sampled
    assert node.pace.tokens_per_s == pytest.approx(rounds[-1].tokens_generated / rounds[-1].seconds["generate"])


async def test_an_update_is_told_what_another_engine_gave_the_samples_of_its_round_and_of_no_replayed_ones(
    tmp_path: Path,
) -> None:
    updates: list[Sequence[TrainSample]] = []

    class Pair(CountingEngine):
        separate_generator = True

        def update(self, batch: Sequence[TrainSample], *more: Any) -> UpdateStats:
            for sample in batch:
                if sample.behaviour_logprobs is not None:
                    asked = TokenSequence(sample.prompt, sample.completion)
                    assert sample.behaviour_logprobs == pytest.approx(self.logprobs([asked])[0])
            updates.append(batch)
            return super().update(batch, *more)

    config = msgspec.structs.replace(CONFIG, tasks=("mine",), rounds=3, group_size=16, replay_groups=2)
    with library_in(tmp_path / "tasks") as folder:
        half_right(folder / "mine")
        await make(tmp_path / "run", Pair(), config).run()
    told = [sum(sample.behaviour_logprobs is not None for sample in batch) for batch in updates]
    assert told == [config.local_groups * config.group_size] * 3
    assert len(updates[-1]) > told[-1], "replayed ones are among them"


async def test_only_rollouts_are_generated_for_training(tmp_path: Path) -> None:
    """An engine may round those; what an evaluation asks is exact at both temperatures."""
    asked: set[tuple[bool, float]] = set()

    class Watched(CountingEngine):
        def generate(self, *request: Any) -> list[list[Completion]]:
            sampling: Sampling = request[2]
            asked.add((sampling.for_training, sampling.temperature))
            return super().generate(*request)

    config = msgspec.structs.replace(CONFIG, tasks=("mine",), rounds=2, group_size=16, eval_every=1, eval_items=4)
    with library_in(tmp_path / "tasks") as folder:
        half_right(folder / "mine")
        await make(tmp_path / "run", Watched(), config).run()
    assert asked == {(True, 1.0), (False, 0.0), (False, 1.0)}


async def test_a_node_goes_on_with_other_tasks_when_one_of_its_own_is_gone(tmp_path: Path) -> None:
    config = msgspec.structs.replace(CONFIG, tasks=("mine",), rounds=2, group_size=16, replay_groups=2)
    with library_in(tmp_path / "tasks") as folder:
        mine = half_right(folder / "mine")
        await make(tmp_path / "run", CountingEngine(), config).run()
    shutil.rmtree(mine)
    with library_in(folder):
        other = msgspec.structs.replace(config, tasks=CONFIG.tasks, rounds=4)
        await make(tmp_path / "run", CountingEngine(), other).run()
    rounds = [e.round for e in read_only(tmp_path / "run" / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    assert rounds == [0, 1, 2, 3]
