"""The scorer worker: verdicts, deadlines, limits and recovery, with the real process."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
import pytest_asyncio

from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.scoring import sandbox, worker
from sapo_swarm.scoring import scorer as scorer_module
from sapo_swarm.scoring.messages import ScoringJob
from sapo_swarm.scoring.scorer import (
    ScoredTexts,
    Scorer,
    ScorerUnavailable,
    ScoringFailed,
    UnanswerableQuestion,
    WorkerProcess,
    worker_command,
)
from sapo_swarm.tasks.questions import generate_entry
from sapo_swarm.types import Question, RewardRule, TaskRef

pytestmark = pytest.mark.asyncio(loop_scope="module")
REF = TaskRef("basic_arithmetic", "starter", 1)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer() -> AsyncIterator[Scorer]:
    async with Scorer() as started:
        await started.ready()
        yield started


def oracle(ref: TaskRef) -> str:
    entry = generate_entry(ref)[1]
    return str(entry["answer"] or entry["metadata"]["example_answer"])


@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("preset", ["starter", "paper", "hard"])
async def test_the_true_answer_scores_one_and_another_zero(scorer: Scorer, task: str, preset: str) -> None:
    """For all nine tasks of the paper, in every preset."""
    asked = await scorer.questions([TaskRef(task, preset, seed) for seed in range(500, 540)])
    refs = [question.ref for question in asked if isinstance(question, Question)][:30]
    groups = [(ref, (f"thus <answer>{oracle(ref)}</answer>", "<answer>no idea</answer>", "no tags")) for ref in refs]
    solved = 0
    for result in await scorer.score_many(groups):
        assert isinstance(result, ScoredTexts)
        assert result.rewards[1:] == (0.0, 0.0)
        assert result.well_formed == (True, True, False)
        solved += result.rewards[0] == 1.0
    assert solved >= (25 if task in {"propositional_logic", "base_conversion"} else 30)


async def test_only_the_last_answer_counts(scorer: Scorer) -> None:
    ref = TaskRef("basic_arithmetic", "starter", 3)
    right, wrong = oracle(ref), "no"
    texts = (f"<answer>{wrong}</answer> <answer>{right}</answer>", f"<answer>{right}</answer> <answer>{wrong}</answer>")
    assert (await scorer.score(ref, texts)).rewards == (1.0, 0.0)


async def test_partial_credit_is_given_only_when_asked_for(scorer: Scorer) -> None:
    ref = TaskRef("basic_arithmetic", "starter", 3)
    text = f"<answer>it is {oracle(ref)}</answer>"
    assert (await scorer.score(ref, [text])).rewards == (0.0,)
    assert 0.0 < (await scorer.score(ref, [text], RewardRule(partial=True))).rewards[0] < 1.0


async def test_what_passes_other_questions_of_its_task_too_earns_nothing_where_answers_are_contrasted(
    scorer: Scorer,
) -> None:
    shortcut, rule = "<answer>(P ∨ Q)</answer>", RewardRule(contrast=2)
    refs = [TaskRef("propositional_logic", "paper", seed) for seed in range(40)]
    plain = [(await scorer.score(ref, [shortcut])).rewards[0] for ref in refs]
    contrasted = [await scorer.score(ref, ["no answer", shortcut], rule) for ref in refs]
    assert sum(plain) > 20
    assert sum(scored.rewards[1] for scored in contrasted) < 8
    for reward, scored in zip(plain, contrasted, strict=True):
        assert scored.shortcut == ((1,) if scored.rewards[1] < reward else ())


async def test_a_question_to_contrast_with_that_does_not_exist_costs_nothing(scorer: Scorer) -> None:
    """Some base_conversion questions of the paper's preset have an empty true answer: no such question."""
    gone, ref = TaskRef("base_conversion", "paper", 2734), TaskRef("base_conversion", "paper", 1)
    assert isinstance((await scorer.questions([gone]))[0], UnanswerableQuestion)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker, "contrast_refs", lambda ref, count: [gone] * count)
        reply = worker.answer_job(ScoringJob(ref, (f"<answer>{oracle(ref)}</answer>",), RewardRule(contrast=2)))
    assert (reply.failure, reply.rewards, reply.shortcut) == ("", (1.0,), ())


async def test_an_answer_to_its_own_question_keeps_its_reward_where_answers_are_contrasted(scorer: Scorer) -> None:
    for seed in range(10):
        ref = TaskRef("basic_arithmetic", "paper", seed)
        texts = (f"<answer>{oracle(ref)}</answer>", "<answer>no</answer>")
        assert (await scorer.score(ref, texts, RewardRule(contrast=2))).rewards == (1.0, 0.0)


async def test_questions_are_those_that_any_node_regenerates(scorer: Scorer) -> None:
    refs = [TaskRef(task, "paper", 99) for task in PAPER_TASKS]
    for ref, question in zip(refs, await scorer.questions(refs), strict=True):
        assert isinstance(question, Question)
        assert question.prompt == generate_entry(ref)[1]["question"]


async def test_a_reference_of_another_generator_is_no_such_task(scorer: Scorer) -> None:
    foreign = TaskRef("bf", "paper", 1, 0, "reasoning-gym-9")
    unknown = TaskRef("countdown", "paper", 1)
    answers = await scorer.questions([foreign, unknown, TaskRef("bf", "paper", 1)])
    assert [type(answer) for answer in answers] == [UnanswerableQuestion, UnanswerableQuestion, Question]
    with pytest.raises(ScoringFailed, match="no task 'countdown'") as caught:
        await scorer.score(unknown, ["x"])
    assert caught.value.fault == "task"


async def test_calls_made_together_all_get_their_own_reply(scorer: Scorer) -> None:
    refs = [TaskRef("basic_arithmetic", "paper", seed) for seed in range(100)]
    results = await asyncio.gather(*(scorer.score(ref, [f"<answer>{oracle(ref)}</answer>"]) for ref in refs))
    assert [r.rewards for r in results] == [(1.0,)] * 100
    assert len({r.prompt for r in results}) > 90


async def test_the_verdict_does_not_depend_on_what_was_scored_before(scorer: Scorer) -> None:
    """decimal_arithmetic sets the process's decimal precision; nobody else may notice."""
    ref = TaskRef("decimal_arithmetic", "paper", 4)
    text = [f"<answer>{oracle(ref)}</answer>"]
    first = await scorer.score(ref, text)
    await scorer.questions(
        [TaskRef("decimal_arithmetic", preset, s) for preset in ("starter", "hard") for s in range(300)]
    )
    assert await scorer.score(ref, text) == first


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_a_stopped_worker_is_replaced_and_innocent_groups_get_their_verdicts() -> None:
    """Stopped from outside with three groups in hand: the new worker takes them one by one."""
    async with Scorer(margin_s=2.0) as scorer:
        await scorer.ready()
        before = scorer.worker.pid
        assert before is not None
        os.kill(before, signal.SIGSTOP)
        refs = [TaskRef("basic_arithmetic", "starter", seed) for seed in range(3)]
        results = await scorer.score_many([(ref, [f"<answer>{oracle(ref)}</answer>"]) for ref in refs])
        assert [r.rewards for r in results if isinstance(r, ScoredTexts)] == [(1.0,)] * 3
        assert scorer.worker.pid != before
        assert scorer.worker.restarts == 1


@pytest.fixture
def process(request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun to do what the parameter says."""
    code = f"print(flush=True)\n{request.param}"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as started:
        assert started.stdout is not None
        started.stdout.readline()
        yield started


@pytest.mark.skipif(sys.platform != "linux", reason="other systems call a sleeping process running")
@pytest.mark.parametrize(
    ("process", "waits"),
    [("while True: pass", True), ("import time; time.sleep(60)", False)],
    indirect=["process"],
    ids=["works", "sleeps"],
)
async def test_a_worker_that_got_little_of_a_processor_beside_other_work_gets_more_time(
    monkeypatch: pytest.MonkeyPatch, process: subprocess.Popen[bytes], waits: bool
) -> None:
    """That it got little is pretended; the processes are real."""
    monkeypatch.setattr(scorer_module, "_processor_seconds", lambda _: 0.1)
    watchdog, began = scorer_module.Watchdog(), time.monotonic()
    watchdog.guard(process, 0.1, grace_s=2.5)
    await asyncio.to_thread(process.wait)
    assert (time.monotonic() - began >= 2.5) == waits


@pytest.mark.skipif(sys.platform == "win32", reason="signals")
async def test_a_worker_that_is_killed_from_outside_is_replaced() -> None:
    async with Scorer() as scorer:
        await scorer.ready()
        assert scorer.worker.pid is not None
        os.kill(scorer.worker.pid, signal.SIGKILL)
        results = await scorer.questions([TaskRef("bf", "starter", 1), TaskRef("bf", "starter", 2)])
        assert all(isinstance(result, Question) for result in results)


async def test_a_worker_that_ends_while_it_starts_is_started_once_more(tmp_path: Path) -> None:
    first = tmp_path / "started"
    dies_once = f"""
import os, pathlib, sys
path = pathlib.Path({str(first)!r})
if not path.exists():
    path.touch()
    sys.exit(1)
os.execv(sys.executable, {worker_command()!r})
"""
    process = WorkerProcess(sandbox.MEMORY_BYTES, command=[sys.executable, "-c", dies_once])
    try:
        await asyncio.to_thread(process.start)
        assert first.exists()
        assert not process.hello.failure
    finally:
        process.close()


async def test_a_worker_without_room_to_start_says_so() -> None:
    """Where the memory cap is smaller than the library, the error says what to do; nothing hangs."""
    async with Scorer(memory_bytes=2**20) as scorer:
        ref = TaskRef("basic_arithmetic", "starter", 1)
        with pytest.raises((ScorerUnavailable, ScoringFailed)):
            await scorer.score(ref, ["<answer>1</answer>"] * 8)


async def test_closing_leaves_no_process_and_later_calls_fail_clearly() -> None:
    scorer = Scorer()
    async with scorer:
        await scorer.ready()
        pid = scorer.worker.pid
    assert pid is not None
    assert not psutil.pid_exists(pid)
    with pytest.raises(ScorerUnavailable, match="closed"):
        scorer.worker.run([ScoringJob(TaskRef("bf", "starter", 1))])


@pytest.mark.skipif(sys.platform != "linux", reason="what Linux can limit")
async def test_linux_puts_every_limit_in_force(scorer: Scorer) -> None:
    applied, missing = await scorer.ready()
    assert missing == ()
    assert "memory 1.61 GB" in applied


LONG = TaskRef("basic_arithmetic", "paper", 548564769)
"""Its generator tries to find a question for more than the second that a job may take (one seed in 20,000 does)."""


async def test_a_question_that_takes_too_long_is_tried_once(scorer: Scorer) -> None:
    """The second time it is known: nothing is generated, and the node picks another of its own at once."""
    spent: list[float] = []
    (first,) = await scorer.questions([LONG], spent)
    assert isinstance(first, UnanswerableQuestion)
    assert first.costly
    assert spent[0] > 0.5
    began = time.perf_counter()
    again, other = await scorer.questions([LONG, REF], spent)
    assert spent[1] == 0.0
    assert isinstance(again, UnanswerableQuestion)
    assert isinstance(other, Question)
    assert time.perf_counter() - began < 0.5


async def test_scoring_local_groups_never_waits_for_those_of_others(scorer: Scorer) -> None:
    """A second worker is busy with questions that take too long; this one answers meanwhile."""
    await scorer.ready()
    async with Scorer(niceness=5) as external:
        await external.ready()
        refs = [msgspec.structs.replace(LONG, seed=seed) for seed in (548564769, 548568234, 548583384, 548584652)]
        busy = asyncio.create_task(external.questions(refs))
        began = time.perf_counter()
        for seed in range(20):
            await scorer.score(TaskRef("basic_arithmetic", "starter", seed), ["<answer>1</answer>"])
        took = time.perf_counter() - began
        assert not busy.done(), f"20 groups took {took:.2f} s, the others' four questions less"
        await busy
