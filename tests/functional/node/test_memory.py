"""Memory that runs out: once more with half, then a pause with the reason; and what the last session's end says of it."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec import structs
from tests.support.device_tree import write
from tests.support.model_folder import weights
from tests.support.node_process import FAKE, sapo
from tests.support.watched_node import CALM, CONFIG, CountingEngine, follow, make

from sapo_backends.errors import OutOfMemory
from sapo_swarm.events import Event, LogLine, RoundFinished, StateChanged
from sapo_swarm.node.governor import machine
from sapo_swarm.node.loop import Node
from sapo_swarm.node.rollouts import BatchSizer
from sapo_swarm.node.setup import NodeSetup


class SmallEngine(CountingEngine):
    """Has memory for so many rows of a generation; says so in one of the ways that engines have."""

    def __init__(self, room: int, error: Callable[[], Exception]) -> None:
        super().__init__()
        self.room, self._error = room, error
        self.asked, self.shares = list[int](), list[float]()

    def generate(self, prompts, group_size, *args, **kwargs):  # type: ignore[no-untyped-def]
        self.asked.append(len(prompts) * group_size)
        if self.asked[-1] > self.room:
            raise self._error()
        return super().generate(prompts, group_size, *args, **kwargs)

    def use_share(self, share: float) -> None:
        self.shares.append(share)


ERRORS: dict[str, Callable[[], Exception]] = {
    "torch, llama.cpp": lambda: OutOfMemory(2**34, 2**30, "Lower group_size."),
    "Python, NumPy": MemoryError,
    "MLX": lambda: RuntimeError("[malloc] Unable to allocate 68719476736 bytes."),
    "torch, by itself": lambda: RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried"),
}
ROWS = CONFIG.local_groups * CONFIG.group_size


def started(folder: Path, engine: SmallEngine, deaths: int = 0) -> Node:
    return Node(NodeSetup(CONFIG, "small", folder, lambda _: engine, lambda: CALM, deaths=deaths))


@pytest.mark.parametrize("way", ERRORS)
async def test_a_round_without_memory_is_done_with_half(way: str, tmp_path: Path) -> None:
    engine, said = SmallEngine(ROWS // 2, ERRORS[way]), list[str]()
    node = started(tmp_path / "run", engine)

    def step(event: Event) -> None:
        assert not (isinstance(event, StateChanged) and event.state == "paused"), "it would wait for a person"
        if isinstance(event, LogLine):
            said.append(event.text)
        if isinstance(event, RoundFinished):
            assert "half batches, because memory ran out" in node.status().sentence

    await follow(node, step)
    assert engine.asked == [ROWS, ROWS // 2, ROWS // 2, ROWS // 2, ROWS // 2], "and stays at half"
    assert engine.shares[:1] == [0.5]
    assert any("once more with half" in text for text in said)
    assert node.rounds_done == 2


async def test_where_half_has_no_memory_either_the_node_pauses_with_the_reason(tmp_path: Path) -> None:
    engine, sentences = SmallEngine(ROWS // 4, ERRORS["torch, llama.cpp"]), list[str]()
    node = started(tmp_path / "run", engine)

    def step(event: Event) -> None:
        if isinstance(event, StateChanged) and event.state == "paused":
            assert event.reason == "failure"
            assert engine.asked == [ROWS, ROWS // 2]
            sentences.append(event.sentence)
            node.command("resume")

    await follow(node, step)
    assert sentences == [
        "Paused: Needs about 17.18 GB of memory, 1.07 GB is free. Lower group_size. · space tries again"
    ]
    assert node.rounds_done == 2, "and space tried again, with a quarter"


async def test_after_a_death_for_want_of_memory_a_session_begins_with_half(tmp_path: Path) -> None:
    engine = SmallEngine(ROWS // 2, ERRORS["MLX"])
    await started(tmp_path / "run", engine, deaths=1).run()
    assert max(engine.asked) == ROWS // 2
    assert engine.shares[:1] == [0.5]


async def test_after_two_deaths_in_a_row_it_waits_for_the_person(tmp_path: Path) -> None:
    engine, seen = SmallEngine(ROWS, ERRORS["MLX"]), list[str]()
    node = started(tmp_path / "run", engine, deaths=2)

    def step(event: Event) -> None:
        if isinstance(event, StateChanged) and event.state == "paused":
            assert not engine.asked
            seen.append(event.sentence)
            node.command("resume")

    await follow(node, step)
    assert "2 times in a row for want of memory" in seen[0]
    assert node.rounds_done == 2


class HalfUpdated(CountingEngine):
    """Has no memory for the second minibatch of the second round, once."""

    steps = 0

    def _step(self, *args):  # type: ignore[no-untyped-def]
        self.steps += 1
        if self.steps == 4:
            raise OutOfMemory(2**34, 2**30, "Lower group_size.")
        return super()._step(*args)


@pytest.mark.parametrize("stops", [False, True])
async def test_memory_that_runs_out_in_the_second_minibatch_leaves_the_weights_of_before_the_round(
    tmp_path: Path, stops: bool
) -> None:
    """The round is done again from them, by this node or, where it is stopped then, by the next one."""
    config = structs.replace(CONFIG, minibatches=2, seed=1)
    await make(tmp_path / "calm", CountingEngine(), config).run()
    node = make(tmp_path / "run", HalfUpdated(), config)

    def step(event: Event) -> None:
        if stops and isinstance(event, LogLine) and "Memory ran out" in event.text:
            node.command("stop")

    await follow(node, step)
    if stops:
        assert node.rounds_done == 1
        await make(tmp_path / "run", CountingEngine(), config).run()
    assert weights(tmp_path / "run", 2) == weights(tmp_path / "calm", 2)


def system(proc: Path, kills: int, boot: str = "b1") -> Path:
    write(proc / "sys" / "kernel" / "random", boot_id=boot)
    write(proc, vmstat=f"pgfault 1\noom_kill {kills}\nswap_ra 0")
    return proc


def dies(folder: Path, rounds: int, proc: Path) -> int:
    """A session that is killed: its note stays."""
    with machine.track_oom_deaths(folder, rounds, proc) as deaths:
        note = (folder / machine.FILE).read_bytes()
    (folder / machine.FILE).write_bytes(note)
    return deaths


def test_only_a_session_that_ended_as_the_system_took_memory_back_counts(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    assert dies(tmp_path, 0, system(proc, 5)) == 0
    assert dies(tmp_path, 0, system(proc, 5)) == 0, "a kill by a person, or a power cut"
    assert dies(tmp_path, 0, system(proc, 6)) == 1
    assert dies(tmp_path, 0, system(proc, 7)) == 2
    assert dies(tmp_path, 9, system(proc, 8)) == 1, "it had come further meanwhile"
    assert dies(tmp_path, 9, system(proc, 9, boot="b2")) == 0, "counted since another start of the system"
    assert dies(tmp_path, 9, system(proc, 10, boot="b2")) == 1
    with machine.track_oom_deaths(tmp_path, 9, system(proc, 10, boot="b2")):
        pass
    assert not (tmp_path / machine.FILE).exists()
    assert dies(tmp_path, 9, system(proc, 11, boot="b2")) == 0, "the last one ended by itself"
    (tmp_path / machine.FILE).write_bytes(b"\xff{")
    assert dies(tmp_path, 9, system(proc, 12, boot="b2")) == 0, "a damaged note says nothing"
    with machine.track_oom_deaths(tmp_path / "gone", 0, system(proc, 13)) as deaths:
        assert deaths == 0, "a disk that refuses the note is no obstacle"


def test_rows_for_which_there_was_no_memory_are_never_asked_for_again() -> None:
    portion = BatchSizer()
    portion.refused(64)
    assert portion.of(64) == 32
    portion.interrupted(32)
    portion.completed(8)
    for _ in range(4):
        portion.completed(portion.of(64))
    assert portion.of(64) == 32
    portion.refused(1)
    assert portion.of(64) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="the wall is Linux'")
def test_behind_a_wall_memory_is_refused_and_the_rest_of_the_process_lives(tmp_path: Path) -> None:
    code = (
        "import numpy as np; from sapo_swarm.node.governor import machine as memory\n"
        "assert memory.limit_process_memory(0.75)\n"
        "try: np.ones(2**27); print('no wall')\n"
        "except MemoryError: print('refused')\n"
        "memory.limit_process_memory(0); print(np.ones(2**20).sum())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["refused", "1048576.0"]


def test_a_plan_beyond_the_wall_is_refused_before_there_is_a_model(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text("[limits]\nmax_memory = 0.05\nmin_free_disk = 0\n")
    done = sapo(tmp_path, "node", "--silo", "--rounds", "1", "--trainer", "torch")
    assert done.returncode == 1
    assert re.search(r"\d+ MB is free", done.stderr)
    assert not list((tmp_path / "data" / "models").iterdir())
    assert sapo(tmp_path, "node", *FAKE, "--rounds", "1").returncode == 0, "what needs less works"
