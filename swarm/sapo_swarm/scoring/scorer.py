"""Questions and verdicts for a node, without ever blocking its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
import math
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, TypeVar

import msgspec
import psutil

from sapo_swarm.errors import SwarmError
from sapo_swarm.scoring.declared_verifiers import extract_answer
from sapo_swarm.scoring.environments import EpisodeStep
from sapo_swarm.scoring.messages import (
    START_S,
    ConnectionLost,
    ScoringJob,
    ScoringReply,
    WorkerHello,
    cap_completion,
    read_frame,
    write_frame,
)
from sapo_swarm.scoring.prompts import after_reasoning
from sapo_swarm.scoring.rubric import JudgeAway, RubricJudge
from sapo_swarm.scoring.sandbox import MEMORY_BYTES
from sapo_swarm.tasks.own import library
from sapo_swarm.types import STRICT, AnswerFormat, Finish, Question, RewardRule, TaskRef

# The parent's hold on one worker process: start, run batches, kill on deadline, start again. Blocking calls.

JOB_S = 1.0
"""The worker's own deadline per job, in processor time (worker.DEADLINE_S)."""
MARGIN_S = 9.0
"""This long past that deadline in wall time, the process is killed: a worker that yields to other programs may get only a
small part of a core for a while."""
STARVED_S = 60.0
"""Longest grace in wall time for a worker that had less than JOB_S of a processor by then, as beside much other work."""
JOBS_PER_FRAME = 64
REST_S = 10.0
WORK_AT_REST_S = 1.0
"""An idle worker that uses this much processor time within REST_S is still running something of a verifier's."""


class ScorerUnavailable(SwarmError):
    """The scorer worker does not start; the message says why and what to do."""


class EndedAtStart(ScorerUnavailable):
    """The worker ended before it reported that it is ready."""


def worker_command() -> list[str]:
    """The command that starts a worker: a module of this interpreter, or a switch of a frozen app (see
    sapo_desktop.__main__)."""
    if getattr(sys, "frozen", False):
        return [sys.executable, "--scorer-worker"]
    return [sys.executable, "-P", "-m", "sapo_swarm.scoring.worker"]


def worker_environment(memory_bytes: int, niceness: int = 0) -> dict[str, str]:
    """A small environment without the parent's secrets; the same import path and hash seed everywhere."""
    passed = ("PATH", "SYSTEMROOT", "TEMP", "TMP", "LANG", "LD_LIBRARY_PATH", "VIRTUAL_ENV")
    environment = {name: os.environ[name] for name in passed if name in os.environ}
    environment |= {
        "PYTHONHASHSEED": "0",
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "PYTHONUTF8": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "SAPO_SCORER_MEMORY": str(memory_bytes),
        "SAPO_SCORER_NICE": str(niceness),
    }
    if (own := library.task_folder()) is not None:
        environment[library.ENVIRONMENT] = str(own)
    return environment


_SCHEDULED = 2
"""Of the processor clocks of a process, the one that counts all its threads to the nanosecond (clock_getcpuclockid(3))."""


class Watchdog:
    """A thread that ends a process once its deadline passes; setting a later deadline costs no wake-up."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: float | None = None
        self._victim: subprocess.Popen[bytes] | None = None
        self._spent: float | None = None
        self._fed, self._grace_s = 0.0, 0.0
        self._thread: threading.Thread | None = None

    def guard(
        self, victim: subprocess.Popen[bytes], seconds: float, spent: float | None = None, grace_s: float = 0.0
    ) -> None:
        """Kill the process unless `extend` or `release` is called within this time. spent: its processor time; then it is
        killed only if it works on, now or later. grace_s: seconds that it gets besides, as long as it has had less than
        JOB_S of a processor."""
        with self._condition:
            self._victim, self._due, self._spent, self._grace_s = victim, time.monotonic() + seconds, spent, grace_s
            self._fed = _processor_seconds(victim) if grace_s else 0.0
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._watch, name="scorer-watchdog", daemon=True)
                self._thread.start()
            self._condition.notify()

    def rest(self, victim: subprocess.Popen[bytes]) -> None:
        """The process is idle from now on: kill it if it works on."""
        self.guard(victim, REST_S, _processor_seconds(victim))

    def works_on(self) -> bool:
        """Whether the idle process worked on, or is gone."""
        with self._condition:
            if self._victim is None or self._spent is None:
                return False
            return not _processor_seconds(self._victim) - self._spent <= WORK_AT_REST_S

    def extend(self, seconds: float) -> None:
        """Give the process this many more seconds, and a new grace."""
        victim = self._victim
        if self._grace_s and victim is not None:
            self._fed = _processor_seconds(victim)
        self._due = time.monotonic() + seconds

    def release(self) -> None:
        """Guard nothing."""
        with self._condition:
            self._due, self._victim, self._spent = None, None, None

    def _watch(self) -> None:
        with self._condition:
            while True:
                if self._due is None:
                    if not self._condition.wait(timeout=30) and self._due is None:
                        self._thread = None
                        return
                    continue
                left = self._due - time.monotonic()
                if left > 0:
                    self._condition.wait(left)
                elif self._victim is not None and self._spent is not None and not self.works_on():
                    self._due, self._spent = time.monotonic() + REST_S, _processor_seconds(self._victim)
                elif self._victim is not None and self._is_starved(self._victim, -left):
                    self._condition.wait(JOB_S)
                elif self._victim is not None:
                    self._victim.kill()
                    self._due = None

    def _is_starved(self, victim: subprocess.Popen[bytes], late_s: float) -> bool:
        """Whether it would work if it was let: it does not sleep, and was not halted."""
        if late_s >= self._grace_s or _processor_seconds(victim) - self._fed >= JOB_S:
            return False
        try:
            return psutil.Process(victim.pid).status() in (psutil.STATUS_RUNNING, psutil.STATUS_DISK_SLEEP)
        except psutil.Error:
            return False


def _processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """Infinite if it is gone."""
    if sys.platform == "linux":  # once a reply: psutil would take as long as scoring
        with contextlib.suppress(OSError):
            return time.clock_gettime(~process.pid << 3 | _SCHEDULED)
    try:
        spent = psutil.Process(process.pid).cpu_times()
    except psutil.Error:
        return math.inf
    return float(spent.user + spent.system)


class WorkerProcess:
    """One worker at a time, started on first use, replaced when it dies. For one calling thread; close from any."""

    def __init__(
        self, memory_bytes: int, margin_s: float = MARGIN_S, command: Sequence[str] = (), niceness: int = 0
    ) -> None:
        self.hello = WorkerHello()
        self.restarts = 0
        self._environment = worker_environment(memory_bytes, niceness)
        self._patience_s = JOB_S + margin_s
        self._read: set[str] = set()
        self._too_long: set[str] = set()
        self._command = list(command) or worker_command()
        self._process: subprocess.Popen[bytes] | None = None
        self._answered = 0
        self._watchdog = Watchdog()
        self._closed = False
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ScoringReply)

    @property
    def pid(self) -> int | None:
        """The worker's process id, None while none runs."""
        return self._process.pid if self._process else None

    def start(self) -> None:
        """Start the worker if none runs; retry once if it ends while starting, as on a starved machine.

        Raises ScorerUnavailable.
        """
        try:
            self._start()
        except EndedAtStart:
            self._start()

    def _start(self) -> None:
        with self._lock:
            if self._closed:
                raise ScorerUnavailable("The scorer was closed.")
            if self._process is not None:
                return
            try:
                process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.DEVNULL,
                    env=self._environment,
                )
            except OSError as error:
                raise ScorerUnavailable(f"The scorer worker does not start: {error}.") from error
            self._process = process
            self._read.clear()
            self._answered = 0
        self._greet(process)

    def run(self, jobs: Sequence[ScoringJob]) -> list[ScoringReply]:
        """One reply per job, in order. A job that kills or hangs the worker fails; the others are unaffected.

        If memory ran out, earlier jobs may have filled it: the job is retried in a fresh worker. Raises ScorerUnavailable.
        """
        replies: list[ScoringReply] = []
        suspects = 0  # jobs to send one by one: replies of a dead worker may be lost in its buffer
        while len(replies) < len(jobs):
            if self._watchdog.works_on():
                self.restarts += 1
                self._discard()
            self.start()
            frame = jobs[len(replies) : len(replies) + (1 if suspects > 0 else JOBS_PER_FRAME)]
            before = len(replies)
            if self._has_read(frame) and self._exchange(frame, replies, self._patience_s):
                self._answered += len(replies) - before
                if replies[-1].last:
                    self.restarts += 1
                    self._discard()
                    if self._answered > 1:
                        replies.pop()
                suspects -= len(replies) - before
                continue
            self.restarts += 1
            self._discard()
            if self._closed:
                raise ScorerUnavailable("The scorer was closed.")
            suspects = len(frame) - (len(replies) - before)
            if len(frame) == 1:
                replies.append(
                    ScoringReply(failure="The scorer worker had to be stopped.", stage="worker", seconds=JOB_S)
                )
        return replies

    def close(self) -> None:
        """End the worker for good."""
        with self._lock:
            self._closed = True
            self._discard()

    def _has_read(self, jobs: Sequence[ScoringJob]) -> bool:
        """Have the worker read the custom tasks that it does not know yet, within the time of a start: a large one takes
        long. False if it died; from then on that task gets the time of any other job."""
        for ref in (job.ref for job in jobs if library.is_own_ref(job.ref)):
            name = ref.dataset
            if name in self._read or name in self._too_long or not library.has_task(name):
                continue
            if not self._exchange([ScoringJob(ref, read=True)], [], START_S, 0.0):
                self._too_long.add(name)
                return False
            self._read.add(name)
        return True

    def _exchange(
        self,
        jobs: Sequence[ScoringJob],
        replies: list[ScoringReply],
        patience_s: float,
        grace_s: float = STARVED_S,
    ) -> bool:
        """Send one frame and append the replies, up to one after which the worker exits; False if it died before. patience_s,
        grace_s: for each reply, see Watchdog.guard."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return False
        frame = self._encoder.encode(tuple(jobs))
        self._watchdog.guard(process, patience_s, grace_s=grace_s)
        try:
            write_frame(process.stdin, frame)  # type: ignore[arg-type]
            process.stdin.flush()
            for _ in jobs:
                replies.append(self._decoder.decode(read_frame(process.stdout)))  # type: ignore[arg-type]
                if replies[-1].last:
                    break
                self._watchdog.extend(patience_s)
        except (ConnectionLost, OSError, ValueError):  # ValueError: closed from another thread, or a broken frame
            self._watchdog.release()
            return False
        except BaseException:  # replies left in the pipe would be taken for other jobs' replies
            self._discard()
            raise
        self._watchdog.rest(process)
        return True

    def _greet(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stdout is not None
        self._watchdog.guard(process, START_S)
        try:
            self.hello = msgspec.msgpack.decode(read_frame(process.stdout), type=WorkerHello)  # type: ignore[arg-type]
        except (ConnectionLost, OSError, ValueError) as error:
            self._discard()
            reason = f"The scorer worker ended while it started ({error})."
            raise EndedAtStart(f"{reason} Is there memory left? See: sapo-desktop doctor") from error
        except BaseException:
            self._discard()
            raise
        finally:
            self._watchdog.release()
        if self.hello.failure:
            self._discard()
            raise ScorerUnavailable(
                f"The scorer worker cannot load its tasks ({self.hello.failure}). "
                "Reinstall: pip install --force-reinstall reasoning-gym==0.1.25"
            )

    def _discard(self) -> None:
        process, self._process = self._process, None
        self._watchdog.release()
        if process is None:
            return
        process.kill()
        for pipe in (process.stdin, process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
        process.wait()


# Groups of judged tasks: which answers a judge is shown, and rewards from its verdicts.

Verdicts = tuple[tuple[float, ...], tuple[bool, ...]]
"""Rewards of a group's texts, and whether each holds an answer."""


async def judged_groups(
    judge: RubricJudge | None, groups: Sequence[tuple[TaskRef, str, Sequence[str]]], rule: RewardRule
) -> list[Verdicts]:
    """groups: (reference, text of its question, texts). A text without an answer earns nothing and is not shown to the judge,
    nor is any text whose question is "". Raises JudgeAway, BadTask."""
    if judge is None:
        raise JudgeAway(
            f"Task {groups[0][0].dataset!r} is judged by a model, and none is set. See: sapo-desktop tasks judge --help"
        )
    table = []
    for ref, question, texts in groups:
        spec = library.load_task(ref.dataset).spec
        answers = [after_reasoning(cap_completion(text), rule.in_reasoning) if question else "" for text in texts]
        table.append(
            [(spec.rubric, question, extract_answer(spec.extract, text, rule.answer_format) or "") for text in answers]
        )
    cases = [case for row in table for case in row if case[2]]
    passed = dict(zip(cases, await judge.verdicts(cases), strict=True))
    return [
        (tuple(float(passed.get(case) is True) for case in row), tuple(bool(case[2]) for case in row)) for row in table
    ]


# Questions and verdicts for a node, without ever blocking its event loop.
#
# Error tree::
#
#     ScoringFailed       this group's texts (or the worker under them) failed: strike its source
#     ScorerUnavailable   no worker starts here; the message carries the fix


@dataclass(frozen=True, slots=True)
class UnanswerableQuestion:
    """A reference that regenerates no question here: treat as "no such task". costly: finding that out took all of a job's
    time or memory, or the worker."""

    ref: TaskRef
    reason: str
    costly: bool = False


@dataclass(frozen=True, slots=True)
class ScoredTexts:
    """Rewards in [0, 1] and whether each text held an answer, in the order of the texts; the question's text; indices of the
    texts whose reward was reduced because they also answer other questions (RewardRule.contrast)."""

    rewards: tuple[float, ...]
    well_formed: tuple[bool, ...]
    prompt: str = ""
    shortcut: tuple[int, ...] = ()

    def finished_only(self, ref: TaskRef, finishes: Sequence[Finish]) -> ScoredTexts:
        """The same with nothing for a text that was cut off, where no mark ends the answer: what fills all the room that there
        is can keep every rule, and a model soon finds out. The library's answers end with their mark."""
        if "length" not in finishes or not library.answers_elsewhere(ref):
            return self
        ended = [finish != "length" for finish in finishes]
        return replace(
            self,
            rewards=tuple(reward * over for reward, over in zip(self.rewards, ended, strict=True)),
            well_formed=tuple(formed and over for formed, over in zip(self.well_formed, ended, strict=True)),
        )


_log = logging.getLogger(__name__)
V = TypeVar("V")
MAX_TURN = 2**16
"""Characters of a model's turn that an environment gets to see."""
REMEMBERED = 4096
"""References that are remembered as useless."""


class ScoringFailed(Exception):
    """A group could not be scored. fault: "task" (no such question), "texts" or "worker" (strike the source)."""

    def __init__(self, ref: TaskRef, reason: str, fault: str) -> None:
        super().__init__(f"{ref.label} was not scored: {reason}")
        self.ref = ref
        self.reason = reason
        self.fault = fault


class Scorer:
    """A pool of one limited worker. Calls made together share a round-trip through the pipe.

    `async with Scorer() as scorer:` starts the worker in the background (0.8 s, once). command: another way to start a worker
    than this interpreter (tests start one with hostile verifiers). niceness: of the worker's process, so that judging
    external groups yields to everything else. answer_format: where every answer that this scorer judges stands, whatever the
    other settings of a rule. judge: for tasks that are judged by a rubric. in_reasoning: see RewardRule; set once the model
    is known.
    """

    def __init__(
        self,
        memory_bytes: int = MEMORY_BYTES,
        margin_s: float = MARGIN_S,
        command: Sequence[str] = (),
        niceness: int = 0,
        answer_format: AnswerFormat = "tags",
        judge: RubricJudge | None = None,
    ) -> None:
        self.judge = judge
        self.answer_format: AnswerFormat = answer_format
        self.in_reasoning = False
        self.worker = WorkerProcess(memory_bytes, margin_s, command, niceness)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="scorer")
        self._pending: list[tuple[Sequence[ScoringJob], asyncio.Future[list[ScoringReply]]]] = []
        self._runner: asyncio.Task[None] | None = None
        self._warm: asyncio.Future[None] | None = None
        self._hopeless: OrderedDict[TaskRef, ScoringReply] = OrderedDict()
        self._tools: dict[str, tuple[dict[str, Any], ...]] = {}

    async def __aenter__(self) -> Scorer:
        self._warm = asyncio.get_running_loop().run_in_executor(self._thread, self._prewarm)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self.worker.close)
        if self._runner is not None:
            await asyncio.wait([self._runner])
        if self._warm is not None:
            await asyncio.wait([self._warm])
        await asyncio.to_thread(self._thread.shutdown)

    async def ready(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """The worker's limits: (in force, missing on this platform). Raises ScorerUnavailable."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self.worker.start)
        return self.worker.hello.limits, self.worker.hello.missing

    async def questions(
        self, refs: Sequence[TaskRef], spent: list[float] | None = None
    ) -> list[Question | UnanswerableQuestion]:
        """Regenerate questions, in order. spent: receives the processor seconds of each. Raises ScorerUnavailable."""
        replies = await self._submit([ScoringJob(ref) for ref in refs])
        _tell(spent, replies)
        return [_question(ref, reply) for ref, reply in zip(refs, replies, strict=True)]

    async def truth(self, question: Question) -> str:
        """The task's own answer; "" if it gives none, or the reference makes another question here.

        Raises ScorerUnavailable.
        """
        reply = (await self._submit([ScoringJob(question.ref, truth=True)]))[0]
        return reply.truth if reply.prompt == question.prompt else ""

    async def examples(self, refs: Sequence[TaskRef]) -> list[tuple[Question, str] | None]:
        """For each reference its question and a completion that earns the full reward, in the form that its prompt asks for;
        None if the task gives no answer that passes its own verifier, or has no such question. Raises ScorerUnavailable."""
        jobs = [ScoringJob(ref, rule=self._rule(STRICT), example=True) for ref in refs]
        replies = await self._submit(jobs)
        return [
            (question, reply.truth) if isinstance(question := _question(ref, reply), Question) and reply.truth else None
            for ref, reply in zip(refs, replies, strict=True)
        ]

    async def score(self, ref: TaskRef, texts: Sequence[str], rule: RewardRule = STRICT) -> ScoredTexts:
        """Score the completions of one question. Raises ScoringFailed, ScorerUnavailable."""
        result = (await self.score_many([(ref, texts)], rule))[0]
        if isinstance(result, ScoringFailed):
            raise result
        return result

    async def score_many(
        self,
        groups: Sequence[tuple[TaskRef, Sequence[str]]],
        rule: RewardRule = STRICT,
        spent: list[float] | None = None,
    ) -> list[ScoredTexts | ScoringFailed]:
        """Score many groups in one round-trip; a failed group is its ScoringFailed. spent: see questions. Raises
        ScorerUnavailable."""
        rule = self._rule(rule)
        jobs = [ScoringJob(ref, tuple(map(cap_completion, texts)), rule) for ref, texts in groups]
        replies = await self._submit(jobs)
        _tell(spent, replies)
        return [_scored(job.ref, reply) for job, reply in zip(jobs, replies, strict=True)]

    async def score_local(
        self, groups: Sequence[tuple[TaskRef, Sequence[str]]], rule: RewardRule = STRICT
    ) -> list[ScoredTexts]:
        """Score what this machine's own model wrote. Raises ScorerUnavailable, JudgeAway.

        Groups of judged tasks go to the judge instead of the worker. A worker may have been stopped for a reason that no
        longer applies (the computer slept, memory was short), so its groups are tried once more. What still cannot be scored
        counts as wrong.
        """
        if any(library.is_judged(ref) for ref, _ in groups):  # all of them: a run holds judged tasks or verified ones
            return await self._judged(groups)
        scored = await self.score_many(groups, rule)
        again = [i for i, result in enumerate(scored) if isinstance(result, ScoringFailed) and result.fault == "worker"]
        if again:
            for i, result in zip(again, await self.score_many([groups[i] for i in again], rule), strict=True):
                scored[i] = result
        for failure in (result for result in scored if isinstance(result, ScoringFailed)):
            _log.warning("%s It counts as wrong.", failure)
        return [
            result if isinstance(result, ScoredTexts) else ScoredTexts((0.0,) * len(texts), (False,) * len(texts))
            for result, (_, texts) in zip(scored, groups, strict=True)
        ]

    async def _judged(self, groups: Sequence[tuple[TaskRef, Sequence[str]]]) -> list[ScoredTexts]:
        questions = await self.questions([ref for ref, _ in groups])
        prompts = [question.prompt if isinstance(question, Question) else "" for question in questions]
        asked = [(ref, prompt, texts) for (ref, texts), prompt in zip(groups, prompts, strict=True)]
        return [ScoredTexts(*verdicts) for verdicts in await judged_groups(self.judge, asked, self._rule(STRICT))]

    def _rule(self, rule: RewardRule) -> RewardRule:
        return msgspec.structs.replace(rule, answer_format=self.answer_format, in_reasoning=self.in_reasoning)

    async def play(
        self, episodes: Sequence[tuple[TaskRef, Sequence[str]]], final: bool = False, rule: RewardRule = STRICT
    ) -> list[EpisodeStep]:
        """Each environment's answer to the model's turns so far. final: there is no further turn, only a reward.

        An episode that cannot be played (an environment that raises, hangs or takes all memory) is over, without a reward.
        Raises ScorerUnavailable.
        """
        rule = self._rule(rule)
        jobs = [
            ScoringJob(ref, rule=rule, turns=tuple(turn[:MAX_TURN] for turn in turns), final=final)
            for ref, turns in episodes
        ]
        replies = await self._submit(jobs)
        again = [i for i, reply in enumerate(replies) if reply.stage == "worker"]
        for i, reply in zip(again, await self._submit([jobs[i] for i in again]) if again else (), strict=True):
            replies[i] = reply
        for job, reply in zip(jobs, replies, strict=True):
            if reply.step is None:
                _log.warning("An episode of %s ended without a reward: %s", job.ref.dataset, reply.failure)
        return [EpisodeStep(well_formed=False) if reply.step is None else reply.step for reply in replies]

    def tools(self, ref: TaskRef) -> tuple[dict[str, Any], ...]:
        """The tools of the environment that a question comes from, as JSON Schema; known once the question was asked for."""
        return self._tools.get(ref.generator, ())

    async def _submit(self, jobs: Sequence[ScoringJob]) -> list[ScoringReply]:
        """One reply per job. A question known to exceed a job's limits is not generated again."""
        failures = [self._hopeless.get(job.ref) for job in jobs]
        fresh = [job for job, reply in zip(jobs, failures, strict=True) if reply is None]
        replies = iter(await self._run(fresh) if fresh else ())
        return [next(replies) if reply is None else reply for reply in failures]

    async def _run(self, jobs: Sequence[ScoringJob]) -> list[ScoringReply]:
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[ScoringReply]] = loop.create_future()
        self._pending.append((jobs, future))
        if self._runner is None or self._runner.done():
            self._runner = loop.create_task(self._drain())
        replies = await future
        for job, reply in zip(jobs, replies, strict=True):
            if reply.tools:
                self._tools[job.ref.generator] = tuple(msgspec.json.decode(reply.tools))
            if reply.costly and reply.stage == "generate":
                _remember(self._hopeless, job.ref, msgspec.structs.replace(reply, seconds=0.0))
        return replies

    async def _drain(self) -> None:
        """Run everything that was submitted, batch by batch."""
        loop = asyncio.get_running_loop()
        while self._pending:
            batch, self._pending = self._pending, []
            try:
                replies = await loop.run_in_executor(
                    self._thread, self.worker.run, [job for jobs, _ in batch for job in jobs]
                )
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
                continue
            start = 0
            for jobs, future in batch:
                if not future.done():
                    future.set_result(replies[start : start + len(jobs)])
                start += len(jobs)

    def _prewarm(self) -> None:
        with contextlib.suppress(ScorerUnavailable):  # the first real call raises it to its caller
            self.worker.start()


def _remember(values: OrderedDict[TaskRef, V], ref: TaskRef, value: V) -> None:
    values[ref] = value
    while len(values) > REMEMBERED:
        values.popitem(last=False)


def _tell(spent: list[float] | None, replies: Sequence[ScoringReply]) -> None:
    if spent is not None:
        spent.extend(reply.seconds for reply in replies)


def _question(ref: TaskRef, reply: ScoringReply) -> Question | UnanswerableQuestion:
    if reply.failure:
        return UnanswerableQuestion(ref, reply.failure, reply.costly or reply.stage == "worker")
    return Question(ref, reply.prompt, hashlib.sha256(reply.prompt.encode()).hexdigest())


def _scored(ref: TaskRef, reply: ScoringReply) -> ScoredTexts | ScoringFailed:
    if not reply.failure:
        return ScoredTexts(reply.rewards, reply.well_formed, reply.prompt, reply.shortcut)
    fault = {"generate": "task", "score": "texts"}.get(reply.stage, "worker")
    return ScoringFailed(ref, reply.failure, fault)
