"""Questions and verdicts for a node, without ever blocking its event loop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import logging
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import msgspec

from sapo_swarm.scoring.declared import extract_answer
from sapo_swarm.scoring.environments import EpisodeStep
from sapo_swarm.scoring.messages import ScoringJob, ScoringReply, cap_completion
from sapo_swarm.scoring.process import MARGIN_S, ScorerUnavailable, WorkerProcess
from sapo_swarm.scoring.prompts import after_reasoning
from sapo_swarm.scoring.rubric import JudgeAway, RubricJudge
from sapo_swarm.scoring.sandbox import MEMORY_BYTES
from sapo_swarm.tasks.own import library
from sapo_swarm.types import STRICT, AnswerFormat, Question, RewardRule, TaskRef

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
