"""The scorer worker: regenerates questions and scores texts for one parent, over stdin and stdout.

Start it as `python -m sapo_swarm.scoring.worker` with PYTHONHASHSEED=0 (some generators iterate over sets). It ends when its
stdin does. Each job has an internal deadline (an alarm, if the platform has one); the parent enforces another.
"""

from __future__ import annotations

import contextlib
import decimal
import faulthandler
import os
import signal
import sys
import time
import warnings
from pathlib import Path
from typing import Any, BinaryIO, ClassVar, NoReturn

import msgspec

from sapo_swarm.scoring import declared_verifiers, python_runner, sandbox
from sapo_swarm.scoring.declared_verifiers import enclose_answer, load_reward
from sapo_swarm.scoring.environments import EpisodeStep, load_environment_spec, replay_episode, start_environment
from sapo_swarm.scoring.messages import (
    START_S,
    ConnectionLost,
    ScoringJob,
    ScoringReply,
    Stage,
    WorkerHello,
    read_frame,
    write_frame,
)
from sapo_swarm.scoring.verify import DeadlineExceeded, fresh_context, score_episode, score_text
from sapo_swarm.tasks.catalogue import contrast_refs
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, declares_verifier
from sapo_swarm.tasks.own.spec import JsonSchema, PythonTests, right_answer
from sapo_swarm.types import MAX_COMPLETION_BYTES, TaskRef

DEADLINE_S = 1.0
"""Processor time, not wall time: on a busy machine an honest job may wait through no fault of its own."""
ORPHAN_GRACE_S = 10.0
"""How long a worker whose parent died may hang in C code before it ends itself."""
FLUSH_S = 0.002
"""Replies younger than this wait in the pipe's buffer: waking the parent costs more than scoring a group."""
CACHED_ENTRIES = 256
_entries: dict[TaskRef, tuple[Any, dict[str, Any]]] = {}
_HAS_ALARM = hasattr(signal, "setitimer")


def take_over_pipes() -> tuple[BinaryIO, BinaryIO]:
    """Private copies of stdin and stdout; what a generator prints goes nowhere."""
    source, sink = os.dup(0), os.dup(1)
    if sys.platform == "win32":
        import msvcrt

        msvcrt.setmode(source, os.O_BINARY)
        msvcrt.setmode(sink, os.O_BINARY)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(nothing, descriptor)
    return os.fdopen(source, "rb"), os.fdopen(sink, "wb")


class _Deadline:
    """Raises DeadlineExceeded in the block after DEADLINE_S, and again every 50 ms in case a bare except swallowed it."""

    rang: ClassVar[bool] = False

    @classmethod
    def on_alarm(cls, _signal: int, _frame: object) -> None:
        cls.rang = True
        raise DeadlineExceeded

    def __enter__(self) -> None:
        _Deadline.rang = False
        self._start = time.process_time()
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, DEADLINE_S, 0.05)

    def __exit__(self, *_: object) -> None:
        self.clear()

    def clear(self) -> None:
        if sys.platform != "win32":
            signal.setitimer(signal.ITIMER_PROF, 0.0)

    @property
    def passed(self) -> bool:
        """The block took too long, whether or not the alarm was noticed."""
        return self.rang or self.seconds > DEADLINE_S

    @property
    def seconds(self) -> float:
        """Processor seconds since the block was entered."""
        return time.process_time() - self._start


def _regenerate(ref: TaskRef) -> tuple[Any, dict[str, Any]]:
    """Dataset and entry of a reference, from the cache if the question was asked for a moment ago."""
    from sapo_swarm.tasks.questions import generate_entry

    entry = _entries.pop(ref, None)
    if entry is None:
        decimal.setcontext(fresh_context())
        entry = generate_entry(ref)
        if library.is_own_ref(ref):
            _open(ref, *entry)
        if len(_entries) >= CACHED_ENTRIES:
            del _entries[next(iter(_entries))]
    _entries[ref] = entry
    decimal.setcontext(fresh_context())  # a verdict must not depend on whether the cache was hit
    return entry


def answer_job(job: ScoringJob) -> ScoringReply:
    """The reply to one job; never raises, except where the machine is out of memory for the reply itself."""
    deadline = _Deadline()
    rewards: list[float] = []
    well_formed: list[bool] = []
    shortcut: list[int] = []
    prompt = truth = ""
    stage: Stage = "generate"
    others: list[tuple[Any, dict[str, Any]]] | None = None
    try:
        with deadline:
            dataset, entry = _regenerate(job.ref)
            prompt, stage = str(entry["question"]), "score"
            if library.is_own_ref(job.ref) and dataset.spec.turns:
                return _episode(job, dataset, entry, deadline)
            if job.truth and entry.get("answer") is not None:
                truth = str(entry["answer"])[:MAX_COMPLETION_BYTES]
            if job.example:
                truth = _example(job, dataset, entry)
            for text in job.texts:
                reward, formed = score_text(text, job.ref.dataset, dataset, entry, job.rule, job.ref.preset)
                if reward and others is None:
                    stage = "generate"
                    others = _others(job)
                    stage = "score"
                if reward and others:
                    scores = (
                        score_text(text, job.ref.dataset, *other, job.rule, job.ref.preset)[0] for other in others
                    )
                    elsewhere = max(scores)
                    if elsewhere:
                        reward = max(0.0, reward - elsewhere)
                        shortcut.append(len(rewards))
                rewards.append(reward)
                well_formed.append(formed)
    except BaseException as error:  # a bad job is data, not a crash; the alarm may fire anywhere in the block
        deadline.clear()  # again, in case it fired inside __exit__
        full = isinstance(error, MemoryError)
        costly = full or isinstance(error, DeadlineExceeded)
        return ScoringReply(failure=_reason(error), stage=stage, costly=costly, seconds=deadline.seconds, last=full)
    if deadline.passed:
        return ScoringReply(failure=_reason(DeadlineExceeded()), stage=stage, costly=True, seconds=deadline.seconds)
    return ScoringReply(
        prompt, tuple(rewards), tuple(well_formed), shortcut=tuple(shortcut), seconds=deadline.seconds, truth=truth
    )


def _example(job: ScoringJob, dataset: Any, entry: dict[str, Any]) -> str:
    """The task's own answer as a completion, if the task's own verifier gives it the full reward; else "". Raises as a
    verifier does."""
    own = dataset if isinstance(dataset, OwnTask) else None
    answer = entry.get("answer") if own is None else right_answer(own.spec, entry["row"])
    if answer is None or not str(answer).strip():
        return ""
    text = enclose_answer("tags" if own is None else own.spec.extract, str(answer), job.rule.answer_format)
    whole = len(text.encode("utf-8", "replace")) <= MAX_COMPLETION_BYTES
    right = whole and score_text(text, job.ref.dataset, dataset, entry, job.rule, job.ref.preset)[0] == 1.0
    return text if right else ""


def _open(ref: TaskRef, task: OwnTask, entry: dict[str, Any]) -> None:
    """Load the task's code and check its schema: what cannot work is reported, not used for judging. An environment adds to
    the question what it says when it is reset."""
    if declares_verifier(task.spec, PythonTests):
        declared_verifiers.require_runner()
    if declares_verifier(task.spec, JsonSchema):
        declared_verifiers.require_sound_schema(task.schema)
    if task.spec.turns:
        row = entry["row"]
        entry["question"] = start_environment(load_environment_spec(task.code), row, task.spec.fill(row), ref.label)[1]
    elif task.code:
        load_reward(task.code)


def _episode(job: ScoringJob, task: OwnTask, entry: dict[str, Any], deadline: _Deadline) -> ScoringReply:
    """The question with its tools, or the environment's answer to the model's last turn; a text is an episode of one turn.
    Raises as the environment does."""
    spec, prompt, row = load_environment_spec(task.code), str(entry["question"]), entry["row"]

    def played(turns: tuple[str, ...], final: bool) -> EpisodeStep:
        step = replay_episode(spec, row, prompt, job.ref.label, turns, task.spec.turns, final)
        if not step.over:
            return step
        reward, formed = score_episode(task, row, turns[-1], step.reward, job.rule)
        return msgspec.structs.replace(step, reward=reward, well_formed=formed)

    if job.turns:
        return ScoringReply(prompt, step=played(job.turns, job.final), seconds=deadline.seconds)
    ends = [played((text,), True) for text in job.texts]
    rewards, formed = tuple(step.reward for step in ends), tuple(step.well_formed for step in ends)
    tools = msgspec.json.encode(list(spec.schemas.values())).decode()
    return ScoringReply(prompt, rewards, formed, tools=tools, seconds=deadline.seconds)


def _others(job: ScoringJob) -> list[tuple[Any, dict[str, Any]]]:
    """Datasets and entries of the questions that a right answer is contrasted with; those that do not exist are left out."""
    entries: list[tuple[Any, dict[str, Any]]] = []
    question = _regenerate(job.ref)[1]["question"]
    for ref in contrast_refs(job.ref, job.rule.contrast):
        try:
            other = _regenerate(ref)
            # few rows: the seed may draw the same one
            if not library.is_own_ref(ref) or other[1]["question"] != question:
                entries.append(other)
        except MemoryError:
            raise
        except Exception:  # not the deadline's: a generator may raise anything
            continue
    return entries


def _reason(error: BaseException) -> str:
    if isinstance(error, DeadlineExceeded):
        return f"It took longer than {DEADLINE_S:g} s."
    if isinstance(error, MemoryError):
        return "It needed more memory than the scorer may use."
    return (str(error) or type(error).__name__)[:500]


def _prepare(ref: TaskRef) -> None:
    """Read the task of a reference and load its reward function before the clock of its job starts: both may take a while."""
    from sapo_swarm.tasks.questions import preload_task

    task = preload_task(ref)
    if task is not None and task.code:
        with contextlib.suppress(BaseException):  # reported, without a reward, when the first text is judged
            load_environment_spec(task.code) if task.spec.turns else load_reward(task.code)


def serve_jobs(source: BinaryIO, sink: BinaryIO, orphan_log: BinaryIO) -> None:
    """Answer batches until the parent goes away: one frame of jobs in, one frame per job out."""
    decoder = msgspec.msgpack.Decoder(tuple[ScoringJob, ...])
    encoder = msgspec.msgpack.Encoder()
    read: set[str] = set()
    while True:
        try:
            jobs = decoder.decode(read_frame(source))
        except ConnectionLost:
            return
        own = {job.ref.dataset for job in jobs if library.is_own_ref(job.ref)}
        limit = len(jobs) * 2 * DEADLINE_S + ORPHAN_GRACE_S + START_S * len(own - read)
        read |= own
        faulthandler.dump_traceback_later(limit, exit=True, file=orphan_log)
        flushed = time.monotonic()
        for job in jobs:
            _prepare(job.ref)
            reply = ScoringReply() if job.read else answer_job(job)
            write_frame(sink, encoder.encode(reply))
            if reply.last:  # what filled the memory may stay, and would fail others' jobs
                sink.flush()
                return
            if time.monotonic() - flushed > FLUSH_S:
                sink.flush()
                flushed = time.monotonic()
        sink.flush()
        faulthandler.cancel_dump_traceback_later()


def main() -> int:
    """Serve until the parent goes away; the exit code."""
    source, sink = take_over_pipes()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    folders = [Path(own)] if (own := os.environ.get(library.ENVIRONMENT)) else []
    for folder in folders:
        library.set_task_folder(folder)
    if library.runs_generated():
        python_runner.start_python_runner(
            (source.fileno(), sink.fileno())
        )  # now: later neither processes nor memory are available
    if sys.platform != "win32":
        signal.signal(signal.SIGPROF, _Deadline.on_alarm)
    try:
        import sapo_swarm.tasks.questions  # noqa: F401  (loads reasoning_gym before the limits are in force)
    except Exception as error:
        write_frame(sink, msgspec.msgpack.encode(WorkerHello(failure=f"{type(error).__name__}: {error}")))
        sink.flush()
        return 1
    warnings.simplefilter("ignore")
    if (niceness := int(os.environ.get("SAPO_SCORER_NICE", "0"))) and hasattr(os, "nice"):
        os.nice(niceness)
    orphan_log = open(os.devnull, "wb")  # noqa: SIM115  (open for the life of the process)
    applied, missing = sandbox.apply_limits(int(os.environ.get("SAPO_SCORER_MEMORY", sandbox.MEMORY_BYTES)), folders)
    if not _HAS_ALARM:
        missing.append("alarm inside the worker (the parent's deadline holds)")
    write_frame(sink, msgspec.msgpack.encode(WorkerHello(tuple(applied), tuple(missing))))
    sink.flush()
    serve_jobs(source, sink, orphan_log)
    return 0


def serve_and_exit() -> NoReturn:
    """Serve until the parent goes away, then end without the interpreter's farewell."""
    try:
        code = main()
    except BrokenPipeError:
        code = 0
    os._exit(code)


if __name__ == "__main__":
    serve_and_exit()
