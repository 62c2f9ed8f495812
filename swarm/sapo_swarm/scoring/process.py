"""The parent's hold on one worker process: start, run batches, kill on deadline, start again. Blocking calls."""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import Sequence

import msgspec
import psutil

from sapo_swarm.errors import SwarmError
from sapo_swarm.scoring.messages import (
    START_S,
    ConnectionLost,
    ScoringJob,
    ScoringReply,
    WorkerHello,
    read_frame,
    write_frame,
)
from sapo_swarm.tasks.own import library

JOB_S = 1.0
"""The worker's own deadline per job, in processor time (worker.DEADLINE_S)."""
MARGIN_S = 9.0
"""This long past that deadline in wall time, the process is killed: a worker that yields to other programs may get only a
small part of a core for a while."""
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


class Watchdog:
    """A thread that ends a process once its deadline passes; setting a later deadline costs no wake-up."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._due: float | None = None
        self._victim: subprocess.Popen[bytes] | None = None
        self._spent: float | None = None
        self._thread: threading.Thread | None = None

    def guard(self, victim: subprocess.Popen[bytes], seconds: float, spent: float | None = None) -> None:
        """Kill the process unless `extend` or `release` is called within this time. spent: its processor time; then it is
        killed only if it works on, now or later."""
        with self._condition:
            self._victim, self._due, self._spent = victim, time.monotonic() + seconds, spent
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
        """Give the process this many more seconds."""
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
                elif self._victim is not None:
                    self._victim.kill()
                    self._due = None


def _processor_seconds(process: subprocess.Popen[bytes]) -> float:
    """Infinite if it is gone."""
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
        for ref in (job.ref for job in jobs if library.is_own(job.ref)):
            name = ref.dataset
            if name in self._read or name in self._too_long or not library.has_task(name):
                continue
            if not self._exchange([ScoringJob(ref, read=True)], [], START_S):
                self._too_long.add(name)
                return False
            self._read.add(name)
        return True

    def _exchange(self, jobs: Sequence[ScoringJob], replies: list[ScoringReply], patience_s: float) -> bool:
        """Send one frame and append the replies, up to one after which the worker exits; False if it died before. patience_s:
        for each reply."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            return False
        frame = self._encoder.encode(tuple(jobs))
        self._watchdog.guard(process, patience_s)
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
