"""Measures one engine on one model in a child process.

A child process, because then the peak memory is that of the measurement alone, because threads are set once per
process, and because a library that crashes on this computer must not take the bench down with it.

    python -m sapo_backends.measure.probe '{"engine": "torch", "model": "starter", ...}'    prints one line of JSON
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from sapo_backends import registry
from sapo_backends.base import CancelToken, Engine, LoadRequest, PolicyUpdate, Sampling
from sapo_backends.child_process import (
    AnswerStream,
    ChildProcess,
    child_environment,
    describe_end,
    last_line,
    open_child,
    python_command,
)
from sapo_backends.errors import BackendError, Cancelled
from sapo_backends.measure import machine_limits
from sapo_backends.measure.choice import WIDTHS, EngineCandidate, EngineMeasurement, decode_measurements
from sapo_backends.measure.machine_limits import CardMemory, MachineLimits
from sapo_backends.measure.precision import GROUP, synthetic_batch, synthetic_prompts

SECONDS = 2.0
LONGEST_S = 180.0
"""A child that overruns its time by this many seconds is killed."""
NEW_TOKENS = 64
LEAST_STEPS = 8
"""Minimum number of decode steps for a rate; with fewer, half a step more or less would distort it."""
TRAINED_TOKENS = 48
"""Tokens per completion in the measured update."""
TRAINED_GROUPS = (1, 2, 4, 8)
POLICY = PolicyUpdate(learning_rate=1e-6)


@dataclass
class _Pace:
    """Follows one generation: records (seconds, tokens) until time is up or a quarter of the rows has ended."""

    rows: int
    until: float
    cancel: CancelToken = field(default_factory=CancelToken)
    marks: list[tuple[float, int]] = field(default_factory=list)

    def __call__(self, finished: int, tokens: int) -> None:
        now = time.perf_counter()
        if tokens >= self.rows or self.marks:  # every row has begun: shards may start one after the other
            self.marks.append((now, tokens))
        enough = bool(self.marks) and tokens - self.marks[0][1] >= LEAST_STEPS * self.rows
        if enough and (now > self.until or finished > self.rows // 4):
            self.cancel.cancel()

    @property
    def rate(self) -> float | None:
        """Tokens/s after the first token; None if there were too few steps."""
        if len(self.marks) < 2:
            return None
        (began, first), (ended, last) = self.marks[0], self.marks[-1]
        return (last - first) / (ended - began) if last > first and ended > began else None


def _generation(engine: Engine, width: int, seconds: float) -> tuple[float, float]:
    """Tokens/s of decoding `width` rows and seconds to the first tokens, the best of the runs that fit into `seconds`:
    other load on the machine only makes both worse."""
    asked = synthetic_prompts(engine, max(1, width // GROUP))
    group, sampling = max(1, width // len(asked)), Sampling(max_new_tokens=NEW_TOKENS, for_training=True)
    rates, firsts = list[float](), list[float]()
    deadline, seed = time.perf_counter() + seconds, 0
    while not rates or (time.perf_counter() < deadline and seed < 200):
        began = time.perf_counter()
        pace = _Pace(width, deadline)
        with contextlib.suppress(Cancelled):
            engine.generate(asked, group, sampling, seed, pace.cancel, pace)
        if pace.rate is not None:
            rates.append(pace.rate)
            firsts.append(pace.marks[0][0] - began)
        seed += 1
        if seed > 5 and not rates:
            return 0.0, 0.0
    return max(rates), min(firsts)


def _update(engine: Engine, seconds: float) -> tuple[float, float]:
    """Tokens/s of an update, and the extra seconds in which a pair passes its weights on.

    The batch grows while it is quick; the very first update is a warm-up.
    """
    began, rate, around = time.perf_counter(), 0.0, list[float]()
    for groups in (TRAINED_GROUPS[0], *TRAINED_GROUPS):
        samples = synthetic_batch(engine, groups, TRAINED_TOKENS)
        done = list[float]()
        last = groups == TRAINED_GROUPS[-1]
        while not done or (last and time.perf_counter() - began < seconds):
            start = time.perf_counter()
            stats = engine.update(samples, POLICY, seed=len(done))
            around.append(time.perf_counter() - start - stats.seconds)
            done.append(sum(len(s.completion) for s in samples) / stats.seconds)
        rate = max(done)
        if time.perf_counter() - began > seconds / 2:
            break
    return rate, statistics.median(around)


def peak_memory() -> int:
    """Peak memory of this process in bytes; 0 if the system does not report it."""
    with contextlib.suppress(OSError, ValueError):  # ru_maxrss would start from the parent's peak
        lines = Path("/proc/self/status").read_text("ascii", "replace").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    with contextlib.suppress(ImportError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if sys.platform == "darwin" else peak * 1024
    import psutil

    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))


def measure_candidate(candidate: EngineCandidate, request: LoadRequest, seconds: float = SECONDS) -> EngineMeasurement:
    """Load the model and measure for about `seconds`. Raises BackendError."""
    asked = replace(request, precision=candidate.precision, threads=candidate.threads)
    backend = registry.get_backend(candidate.engine)
    engine = backend().load(asked)
    try:
        rates, first = {}, 0.0
        _generation(engine, WIDTHS[1], seconds / 10)  # warm up
        for width, share in zip(WIDTHS, (0.15, 0.15, 0.3), strict=True):
            rates[width], first = _generation(engine, width, share * seconds)
        trains = backend.CAN_TRAIN and engine.info.method != "none"
        update, around = _update(engine, 0.4 * seconds) if trains else (0.0, 0.0)
        return EngineMeasurement(
            candidate,
            device=engine.info.device,
            precision=engine.info.precision,
            generation=rates,
            first=first,
            update=update,
            hand_over=around if "+" in candidate.engine else 0.0,
            memory=peak_memory(),
            computed_by=engine.info.extra.get("computed_by", ""),
        )
    finally:
        engine.close()


def in_child(candidate: EngineCandidate, request: LoadRequest, seconds: float = SECONDS) -> EngineMeasurement:
    """measure_candidate in a child process; errors there become the measurement's `failure`."""
    try:
        return decode_measurements([_child(_job(candidate, request, seconds), seconds)["measured"]])[0]
    except BackendError as error:
        return EngineMeasurement(candidate, failure=str(error))


async def measure_async(candidate: EngineCandidate, request: LoadRequest, seconds: float) -> EngineMeasurement:
    """in_child for callers that may not block: when cancelled, it kills the process. A bundle cannot do this and
    returns a failure."""
    if getattr(sys, "frozen", False):
        return EngineMeasurement(candidate, failure="A bundle measures with sapo-desktop bench.")
    command = _command(_job(candidate, request, seconds))
    try:
        async with open_child(command, child_environment(), grace_s=0.0) as child:
            output, errors = await child.communicate()
        return decode_measurements(
            [_parse_answer(child.returncode, output, errors.decode("utf-8", "replace"))["measured"]]
        )[0]
    except BackendError as error:
        return EngineMeasurement(candidate, failure=str(error))


def limits_in_child(engine: str, threads: int, device: str = "auto") -> MachineLimits:
    """The machine's limits as reached by that engine's library; empty if they cannot be measured."""
    try:
        return MachineLimits(**_child({"limits": engine, "threads": threads, "device": device}, SECONDS)["limits"])
    except BackendError:
        return MachineLimits()


def card_memory_in_child(device: str) -> CardMemory | None:
    """machine_limits.card_memory from a child process, taking as long as importing torch; None if torch has no such
    GPU."""
    try:
        return CardMemory(**_child({"card": device}, SECONDS)["card"])
    except BackendError:
        return None


def _job(candidate: EngineCandidate, request: LoadRequest, seconds: float) -> dict[str, Any]:
    return {"candidate": asdict(candidate), "request": asdict(request), "seconds": seconds}


def _command(job: dict[str, Any]) -> list[str]:
    """The command of a child process for this job."""
    return python_command(__name__, json.dumps(job))


def _child(job: dict[str, Any], seconds: float) -> dict[str, Any]:
    """The answer to a job. Raises BackendError.

    In a bundle the executable is the app and cannot run modules, so the work is done in this process.
    """
    if getattr(sys, "frozen", False):
        return _answered(job)
    with ChildProcess(_command(job), child_environment()) as child:
        if not child.ends_within(LONGEST_S + seconds):
            raise BackendError(f"It took longer than {LONGEST_S:.0f} s.")
        return _parse_answer(child.code, child.read_output(), child.read_errors())


def _parse_answer(code: int | None, output: bytes, errors: str) -> dict[str, Any]:
    """Parses a child's output. Raises BackendError."""
    if code:
        raise BackendError(last_line(errors) or f"It ended with {describe_end(code)}.")
    answer: dict[str, Any] = json.loads(output)
    if "failure" in answer:
        raise BackendError(answer["failure"])
    return answer


def _answered(job: dict[str, Any]) -> dict[str, Any]:
    """The answer as JSON values. Raises BackendError for any failure: it counts as one failed measurement."""
    try:
        answer: dict[str, Any] = json.loads(json.dumps(_answer(job)))
    except Exception as error:
        raise BackendError(str(error) or type(error).__name__) from error
    return answer


def main(arguments: Sequence[str]) -> None:
    """The child's entry point."""
    job, answers = json.loads(arguments[0]), AnswerStream()
    try:
        answer = _answered(job)
    except BackendError as error:
        answer = {"failure": str(error)}
    answers.send_line(json.dumps(answer).encode())


def _answer(job: dict[str, Any]) -> dict[str, Any]:
    if "card" in job:
        return {"card": asdict(machine_limits.card_memory(job["card"]))}
    if "limits" in job:
        return {"limits": asdict(machine_limits.measure_limits(job["limits"], job["threads"], job["device"]))}
    return {
        "measured": asdict(
            measure_candidate(EngineCandidate(**job["candidate"]), LoadRequest(**job["request"]), job["seconds"])
        )
    }


if __name__ == "__main__":
    main(sys.argv[1:])
