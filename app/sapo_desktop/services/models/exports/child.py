"""The parent's side of a child process: start it, pass its progress on, end it whatever happens."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO

import msgspec

from sapo_backends.base import Progress
from sapo_desktop.errors import AppError, EngineMissing, UsageError
from sapo_desktop.services.models.exports.formats import ExportFailed
from sapo_desktop.services.models.exports.job import Answered, Failed, Job, Missing, Progressed, Reply, Written

QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class Crashed(ExportFailed):
    """The child process ended without an answer."""


def run(job: Job, progress: Progress) -> Written | Answered | Missing | Failed:
    """The child's last reply; an interrupt or an error of progress ends the child. Raises Crashed."""
    with tempfile.TemporaryFile() as errors, _started(job, errors) as process:
        assert process.stdout is not None
        with process.stdout as lines:
            for reply in replies(lines):
                if not isinstance(reply, Progressed):
                    return reply
                progress(reply.fraction, reply.phrase)
        raise Crashed(_last_words(process.wait(), errors))


@contextlib.contextmanager
def _started(job: Job, errors: IO[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "sapo_desktop.services.models.exports.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=errors,
        env={**os.environ, **QUIET, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
    )
    try:
        assert process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it ended at once: what it said last is told
            process.stdin.write(msgspec.json.encode(job))
            process.stdin.close()
        yield process
    finally:
        process.kill()
        process.wait()


def replies(lines: Iterable[bytes]) -> Iterator[Reply]:
    """Every reply of the child. What a library prints between them, or a kill cuts off, is none."""
    decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
    for line in lines:
        with contextlib.suppress(msgspec.DecodeError):
            yield decoder.decode(line)


def _last_words(code: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return f"The process that did it ended with {how}" + (f": {lines[-1][:200]}" if lines else ".")


def refuse(failed: Failed, doing: str) -> AppError:
    """The error of a child that said why."""
    kinds: dict[int, type[AppError]] = {2: UsageError, 4: EngineMissing}
    return kinds.get(failed.code, ExportFailed)(f"{doing}{failed.message}")
