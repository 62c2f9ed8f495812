"""What the worker survives if a verifier itself is hostile: a real worker with planted ones, limits in force."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import pytest_asyncio

from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed
from sapo_swarm.scoring.worker import DEADLINE_S
from sapo_swarm.types import RewardRule, TaskRef

pytestmark = pytest.mark.asyncio(loop_scope="module")

WORKER = """
import decimal, hashlib, os, socket, subprocess, sys, threading, time
from sapo_swarm.scoring import verify as verifiers, worker

def loop(answer, entry):
    while True:
        pass

def stubborn(answer, entry):
    while True:
        try:
            while True:
                pass
        except:
            return 1.0

def below_python(answer, entry):
    return float(sum(range(10**13)))

def memory(answer, entry):
    return float(len(bytearray(2**34)))

def write(answer, entry):
    with open(answer, "w") as file:
        file.write("x")
    return 1.0

def low_level_write(answer, entry):
    os.close(os.open(answer, os.O_CREAT | os.O_WRONLY))
    return 1.0

def run(answer, entry):
    return float(subprocess.run(["touch", answer]).returncode == 0)

def shell(answer, entry):
    return float(os.system("touch " + answer) == 0)

def fork(answer, entry):
    return float(os.fork() >= 0)

def connect(answer, entry):
    return float(socket.socket() is not None)

def read_file(answer, entry):
    with open(answer) as file:
        return float(len(file.read()) > 0)

def fork_below(answer, entry):
    import _posixsubprocess
    error = os.pipe()
    made = _posixsubprocess.fork_exec(
        [b"/bin/true"], [b"/bin/true"], True, (error[1],), None, None, -1, -1, -1, -1, -1, -1, *error,
        True, False, 0, None, None, None, -1, None, False,
    )
    return float(made > 0)

def leave(answer, entry):
    sys.exit("bye")

def interrupt(answer, entry):
    raise KeyboardInterrupt

def recurse(answer, entry):
    return recurse(answer, entry)

def not_a_number(answer, entry):
    return float("nan")

def too_much(answer, entry):
    return 7.0

def chatter(answer, entry):
    print("x" * 100_000)
    os.write(1, b"y" * 100_000)
    return 1.0

def burn_on(answer, entry):
    def burn():
        while True:
            hashlib.sha256(bytes(2**22))
    threading.Thread(target=burn, daemon=True).start()
    return 1.0

def precision(answer, entry):
    return decimal.getcontext().prec / 100

def crash(answer, entry):
    os._exit(3)

def crash_in(answer, entry):
    return float(os.getpid() != int(answer)) or os._exit(3)

def by_name(answer, entry):
    name, _, rest = answer.partition(" ")
    return globals()[name](rest, entry)

verifiers.VERIFIERS["bf"] = by_name
raise SystemExit(worker.main())
"""
COMMAND = [sys.executable, "-P", "-c", WORKER]
REF = TaskRef("bf", "starter", 1)
PARTIAL = RewardRule(partial=True)
OTHER = TaskRef("basic_arithmetic", "starter", 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer() -> AsyncIterator[Scorer]:
    async with Scorer(margin_s=60.0, command=COMMAND) as started:
        await started.ready()
        yield started


@pytest_asyncio.fixture(autouse=True, loop_scope="module")
async def running(scorer: Scorer) -> None:
    """Every test begins with a live worker, whatever the last one did to it."""
    await scorer.ready()


async def attempt(scorer: Scorer, name: str, rest: str = "x") -> ScoredTexts | ScoringFailed:
    """The hostile group's result; a group scored right after it must be unharmed."""
    groups = [(REF, [f"<answer>{name} {rest}</answer>"]), (OTHER, ["<answer>no</answer>"])]
    hostile, innocent = await scorer.score_many(groups, PARTIAL)
    assert isinstance(innocent, ScoredTexts)
    assert innocent.rewards == (0.0,)
    return hostile


@pytest.mark.skipif(sys.platform == "win32", reason="no alarm inside the worker")
@pytest.mark.parametrize("name", ["loop", "stubborn"])
async def test_a_verifier_that_loops_in_python_is_stopped_after_a_second_without_losing_the_worker(
    scorer: Scorer, name: str
) -> None:
    before, start = scorer.worker.pid, time.monotonic()
    hostile = await attempt(scorer, name)
    assert isinstance(hostile, ScoringFailed)
    assert hostile.fault == "texts"
    assert "longer than 1 s" in hostile.reason
    assert time.monotonic() - start > DEADLINE_S
    assert scorer.worker.pid == before


async def test_a_verifier_that_hangs_below_python_costs_the_worker_and_nothing_else() -> None:
    """The event loop goes on meanwhile."""
    async with Scorer(margin_s=0.3, command=COMMAND) as scorer:
        await scorer.ready()
        before = scorer.worker.pid
        task = asyncio.create_task(scorer.score_many([(REF, ["<answer>below_python x</answer>"])]))
        ticks = 0
        while not task.done():
            await asyncio.sleep(0.01)
            ticks += 1
        (hostile,) = task.result()
        assert isinstance(hostile, ScoringFailed)
        assert ticks > 3
        assert hostile.fault == "worker"
        assert scorer.worker.pid != before


@pytest.mark.skipif(sys.platform == "win32", reason="no zombies there")
@pytest.mark.parametrize("asked", [False, True], ids=["nothing more is asked", "something is asked"])
async def test_a_worker_that_works_on_between_jobs_is_ended_and_the_next_job_is_not_blamed(
    asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that a verifier left behind has no deadline of its own."""
    monkeypatch.setattr("sapo_swarm.scoring.scorer.REST_S", 3600.0 if asked else 1.0)
    monkeypatch.setattr("sapo_swarm.scoring.scorer.WORK_AT_REST_S", 0.05)
    async with Scorer(command=COMMAND) as scorer:
        await scorer.ready()
        assert (await scorer.score(OTHER, ["<answer>no</answer>"])).rewards == (0.0,)
        first = psutil.Process(scorer.worker.pid)
        await scorer.score(REF, ["<answer>burn_on x</answer>"], PARTIAL)
        before = sum(first.cpu_times()[:2])
        while True:
            await asyncio.sleep(0.01)
            if sum(first.cpu_times()[:2]) > before + 0.1 if asked else first.status() == psutil.STATUS_ZOMBIE:
                break
        result = await scorer.score(REF, ["<answer>precision x</answer>"], PARTIAL)
        assert (result.rewards, scorer.worker.restarts) == ((0.28,), 1)
        assert scorer.worker.pid != first.pid
        assert not first.is_running()


@pytest.mark.skipif(sys.platform != "linux", reason="RLIMIT_AS")
async def test_a_verifier_that_eats_memory_fails_its_group_only_and_its_worker_is_replaced(scorer: Scorer) -> None:
    before = scorer.worker.pid
    hostile = await attempt(scorer, "memory")
    assert isinstance(hostile, ScoringFailed)
    assert (hostile.fault, "memory" in hostile.reason) == ("texts", True)
    assert scorer.worker.pid != before


@pytest.mark.parametrize("name", ["write", "low_level_write", "run", "shell"])
async def test_nothing_is_written_or_run(scorer: Scorer, name: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    hostile = await attempt(scorer, name, str(canary))
    assert isinstance(hostile, ScoredTexts)
    assert hostile.rewards == (0.0,)
    assert not canary.exists()


@pytest.mark.parametrize("name", ["fork", "connect", "leave", "interrupt", "recurse", "not_a_number"])
async def test_every_exception_is_a_verdict_of_zero(scorer: Scorer, name: str) -> None:
    before = scorer.worker.pid
    hostile = await attempt(scorer, name)
    assert isinstance(hostile, ScoredTexts)
    assert hostile.rewards == (0.0,)
    assert scorer.worker.pid == before


async def test_a_reward_above_one_is_cut_and_not_strictly_right(scorer: Scorer) -> None:
    text = ["<answer>too_much x</answer>"]
    assert (await scorer.score(REF, text, PARTIAL)).rewards == (1.0,)
    assert (await scorer.score(REF, text)).rewards == (0.0,)


async def test_a_verifier_that_prints_does_not_corrupt_the_pipe(scorer: Scorer) -> None:
    hostile = await attempt(scorer, "chatter")
    assert isinstance(hostile, ScoredTexts)
    assert hostile.rewards == (1.0,)


async def test_no_group_sees_the_decimal_precision_that_another_set(scorer: Scorer) -> None:
    """decimal_arithmetic sets the process's precision when it generates."""
    text = ["<answer>precision x</answer>"]
    for _ in range(2):
        assert (await scorer.score(REF, text, PARTIAL)).rewards == (0.28,)
        await scorer.questions([TaskRef("decimal_arithmetic", "starter", 1)])


async def test_a_worker_that_dies_is_replaced_for_the_next_group(scorer: Scorer) -> None:
    before = scorer.worker.pid
    hostile = await attempt(scorer, "crash")
    assert isinstance(hostile, ScoringFailed)
    assert hostile.fault == "worker"
    assert scorer.worker.pid != before


async def test_own_text_is_scored_again_when_the_worker_ended_for_a_passing_reason(scorer: Scorer) -> None:
    """As after the computer slept; the worker that comes next gives the verdict, and the others keep theirs."""
    first = scorer.worker.pid
    texts = [(REF, [f"<answer>crash_in {first}</answer>"]), (OTHER, ["<answer>no</answer>"])]
    assert [result.rewards for result in await scorer.score_local(texts)] == [(1.0,), (0.0,)]
    assert scorer.worker.pid != first


async def test_own_text_that_no_worker_survives_is_no_right_answer(scorer: Scorer) -> None:
    """A run does not end over it."""
    (result,) = await scorer.score_local([(REF, ["<answer>crash x</answer>", "no"])])
    assert result == ScoredTexts((0.0, 0.0), (False, False))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")
async def test_the_kernel_denies_what_python_would_let_pass(scorer: Scorer, tmp_path: Path) -> None:
    """Reading a key beside the program, and starting a process below the audit hook."""
    limits, missing = await scorer.ready()
    if any("files" in phrase or "programs" in phrase for phrase in missing):
        pytest.skip(f"this kernel lacks {missing}")
    assert "reads nothing but the program's own files and your tasks" in limits
    secret = tmp_path / "node.key"
    secret.write_text("secret")
    for name in ("read_file", "fork_below"):
        found = await attempt(scorer, name, str(secret))
        assert isinstance(found, ScoredTexts), name
        assert found.rewards == (0.0,), name
