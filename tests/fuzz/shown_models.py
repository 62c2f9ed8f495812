"""What `models show` makes of a file, and an engine of one that it takes: by a command line, or by a fork that costs no start.

A fork is a fresh process for one file: it has imported the app and done nothing else with it. The child that reads foreign files
is a fork of the fork, under the same limits, with the same code. What is not the same as from the command line: no interpreter
starts, and what was imported lies in memory already.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SECONDS, MEMORY = 20.0, 2_000_000_000
CODES = (0, 1, 2, 3, 4)
PATIENCE = 3.0
"""A process is killed after so many times SECONDS."""
WAITING = 120_000_000
"""Bytes of a verb that waits for the child that reads files."""
COMMAND, FORK, ENGINE = "command line", "fork", "engine"


@dataclass(frozen=True)
class Outcome:
    """What a process did with a damaged model. wrong: what it should not have done, "" for nothing. way: how it was asked."""

    code: int
    seconds: float
    memory: int
    wrong: str
    way: str
    words: str = ""


def sentence_wrong(code: int, output: str, errors: str) -> str:
    """What is wrong with what a command wrote."""
    if code not in CODES:
        return f"exit code {code}"
    if "Traceback" in errors or "panicked" in errors:
        return "a traceback"
    lines = [line for line in errors.splitlines() if line.strip()]
    if code and (len(lines) != 1 or not 10 <= len(lines[0]) <= 1400):
        return f"{len(lines)} lines of errors, of {max(map(len, lines), default=0)} characters"
    if not code and lines:
        return "errors and exit code 0"
    if any(not letter.isprintable() and letter != "\n" for letter in output + errors):
        return "what a terminal obeys"
    return ""


def _judged(code: int, seconds: float, memory: int, out: IO[bytes], err: IO[bytes], way: str, ended: bool) -> Outcome:
    out.seek(0)
    err.seek(0)
    output, errors = (file.read().decode("utf-8", "replace") for file in (out, err))
    wrong = sentence_wrong(code, output, errors) if ended else "no end"
    if seconds > SECONDS:
        wrong = wrong or f"{seconds:.0f} s"
    if memory > MEMORY:
        wrong = wrong or f"{memory / 1e9:.1f} GB"
    return Outcome(code, seconds, memory, f"{wrong}: {errors[-1500:]!r}" if wrong else "", way, errors)


def show_by_command(model: Path, home: Path) -> Outcome:
    """`models show` as a person types it, in a process of its own, with what it and its children took together."""
    environment = {**os.environ, "SAPO_HOME": str(home), "NO_COLOR": "1"}
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        process = subprocess.Popen(
            [sys.executable, "-m", "sapo_desktop", "models", "show", str(model)],
            stdin=subprocess.DEVNULL, stdout=out, stderr=err, env=environment,
        )  # fmt: skip
        peak, ended = _peak_until_end(process, start + PATIENCE * SECONDS)
        return _judged(process.returncode, time.monotonic() - start, peak, out, err, COMMAND, ended)


def _peak_until_end(process: subprocess.Popen[bytes], until: float) -> tuple[int, bool]:
    """The most memory that the process and its children held together, and whether it ended by itself."""
    import psutil

    peak = 0
    while process.poll() is None:
        try:
            family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
            peak = max(peak, sum(member.memory_info().rss for member in family))
        except psutil.Error:
            pass
        if time.monotonic() > until:
            process.kill()
            process.wait()
            return peak, False
        try:
            process.wait(0.05)
        except subprocess.TimeoutExpired:
            continue
    return peak, True


def in_fork(work: Callable[[], int], way: str) -> Outcome:
    """What a fork of this process does. memory: of the largest of its family, and of one that waits for that."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        start = time.monotonic()
        pid = os.fork()
        if not pid:
            _be_the_fork(work, out, err)
        status, usage, ended = _reaped(pid, start + PATIENCE * SECONDS)
        seconds = time.monotonic() - start
        memory = 1024 * usage.ru_maxrss + WAITING
        return _judged(os.waitstatus_to_exitcode(status), seconds, memory, out, err, way, ended)


def _be_the_fork(work: Callable[[], int], out: IO[bytes], err: IO[bytes]) -> None:
    os.setsid()  # its children are killed with it
    code = 70
    try:
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        sys.stdout, sys.stderr = (
            os.fdopen(n, "w", encoding="utf-8", errors="backslashreplace", closefd=False) for n in (1, 2)
        )
        try:
            code = work()
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else 1
        except BaseException:  # as an interpreter ends
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _reaped(pid: int, until: float) -> tuple[int, resource.struct_rusage, bool]:
    """(status, what it took, whether it ended by itself)."""
    descriptor = os.pidfd_open(pid)
    try:
        import select

        ended = bool(select.select([descriptor], [], [], max(0.0, until - time.monotonic()))[0])
    finally:
        os.close(descriptor)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    _, status, usage = os.wait4(pid, 0)
    return status, usage, ended


class _ForkedChild:
    """The app's child that reads foreign files, as a fork: in place of a ChildProcess."""

    def __init__(self, folder: Path) -> None:
        import io

        from sapo_backends.checkpoints import inspection_child

        read, write = os.pipe()
        errors = self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the child
        self.returncode: int | None = None
        self.stdout = io.FileIO(read, "rb")
        self.pid = os.fork()
        if not self.pid:
            code = 70
            try:
                os.dup2(write, 1)
                os.dup2(errors.fileno(), 2)
                sys.stdout, sys.stderr = (os.fdopen(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))
                code = inspection_child.main(str(folder))
            except BaseException:  # as an interpreter ends
                traceback.print_exc()
                code = 1
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(code)
        os.close(write)

    def poll(self) -> int | None:
        """As of Popen."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def __enter__(self) -> _ForkedChild:
        return self

    def __exit__(self, *_: object) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)
            self.ends_within(PATIENCE * SECONDS)
        self.stdout.close()
        self._errors.close()

    def ends_within(self, seconds: float, look: Callable[[], None] | None = None) -> bool:
        """As of ChildProcess."""
        import select

        if self.poll() is None:
            descriptor = os.pidfd_open(self.pid)
            try:
                if not select.select([descriptor], [], [], seconds)[0]:
                    return False
            finally:
                os.close(descriptor)
        return self.poll() is not None

    @property
    def code(self) -> int:
        """As of ChildProcess."""
        assert self.returncode is not None
        return self.returncode

    def read_output(self, most: int = -1) -> bytes:
        """As of ChildProcess."""
        return self.stdout.read(most) or b""

    def read_errors(self, most: int = -1) -> str:
        """As of ChildProcess."""
        self._errors.seek(0)
        return self._errors.read(most).decode("utf-8", "replace")


def prepare(good: Path, home: Path) -> None:
    """Import what `models show` imports, by having it show a good model in this process; measure the machine, once."""
    os.environ |= {"SAPO_HOME": str(home), "NO_COLOR": "1", "TOKENIZERS_PARALLELISM": "false", "RUST_BACKTRACE": "0"}
    os.environ |= dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "RAYON_NUM_THREADS"), "1")
    first = show_by_command(good, home)
    if first.code or first.wrong:
        raise SystemExit(f"A good model is not shown: {first.wrong or first.words}")
    from sapo_backends.checkpoints import inspection, inspection_child
    from sapo_desktop import cli

    with contextlib.redirect_stdout(open(os.devnull, "w")):
        cli.run_command_line(["models", "show", str(good)])
    inspection_child.read_small_files(
        Path(inspection_child.__file__).parents[3] / "assets/sapo_assets/models/starter-1m"
    )
    inspection._start_child = _ForkedChild
    gc.freeze()
    again = good.with_name("again.gguf")
    again.write_bytes(good.read_bytes() + b"\0")  # not the one that is remembered
    if (forked := show_by_fork(again)).code or forked.wrong:
        raise SystemExit(f"A good model is not shown by a fork: {forked.wrong or forked.words}")


def show_by_fork(model: Path) -> Outcome:
    """The verb in a fork of this process, after prepare()."""
    from sapo_desktop import cli

    return in_fork(lambda: cli.run_command_line(["models", "show", str(model)]), FORK)


def load_by_fork(model: Path, engine: str = "torch") -> Outcome:
    """An engine loads the model, answers a question and learns from its answer; or says in one sentence why not."""
    from sapo_backends import registry
    from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TrainSample
    from sapo_backends.errors import BackendError
    from sapo_swarm.protocol.safe_text import safe_text

    def work() -> int:
        try:
            request = LoadRequest(str(model), method="lora", device="cpu", threads=1, lora_rank=4, lora_alpha=8.0)
            loaded = registry.get_backend(engine)().load(request)
            prompt = loaded.tokenizer.encode_chat([{"role": "user", "content": "Hello, 12 + 5?"}])
            answer = loaded.generate([prompt], 2, Sampling(max_new_tokens=4), 0)[0][0]
            loaded.tokenizer.decode(answer.tokens)
            if engine == "torch" and answer.tokens:
                loaded.update([TrainSample(tuple(prompt), tuple(answer.tokens), 1.0)], PolicyUpdate(1e-3), 0)
        except BackendError as error:
            print(safe_text(str(error)), file=sys.stderr)  # as every screen and command writes it
            return 1
        return 0

    return in_fork(work, ENGINE)
