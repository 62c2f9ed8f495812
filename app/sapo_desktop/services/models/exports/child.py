"""The parent's side of a child process: start it, pass its progress on, end it when asked."""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import IO

import msgspec

from sapo_backends.base import CancelToken, Progress
from sapo_desktop.errors import AppError, EngineMissing, UsageError
from sapo_desktop.services.models.exports.formats import ExportFailed
from sapo_desktop.services.models.exports.job import Answered, Failed, Job, Missing, Progressed, Reply, Written

POLL_S = 0.1
"""How soon a cancel is noticed."""
QUIET = {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "TRANSFORMERS_VERBOSITY": "error", "TOKENIZERS_PARALLELISM": "false"}


class Crashed(ExportFailed):
    """The child process ended without an answer."""


def run(job: Job, progress: Progress, cancel: CancelToken) -> Written | Answered | Missing | Failed:
    """The child's last reply. Raises Cancelled (the child is gone then), Crashed."""
    with tempfile.TemporaryFile() as errors, _started(job, errors) as process:
        replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
        reader = threading.Thread(target=_pass_on, args=(process, replies), daemon=True)
        reader.start()
        while True:
            cancel.raise_if_cancelled()
            try:
                reply = replies.get(timeout=POLL_S)
            except queue.Empty:
                continue
            if reply is None:
                raise Crashed(_last_words(process.wait(), errors))
            if not isinstance(reply, Progressed):
                return reply
            progress(reply.fraction, reply.phrase)


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


def _pass_on(process: subprocess.Popen[bytes], replies: queue.SimpleQueue[Reply | None]) -> None:
    """Every reply of the child, None at its end. What a library prints between them, or a kill cuts off, is none."""
    assert process.stdout is not None
    decoder: msgspec.json.Decoder[Reply] = msgspec.json.Decoder(Reply)
    with process.stdout:
        for line in process.stdout:
            with contextlib.suppress(msgspec.DecodeError):
                replies.put(decoder.decode(line))
    replies.put(None)


def _last_words(code: int, errors: IO[bytes]) -> str:
    errors.seek(0)
    lines = errors.read().decode("utf-8", "replace").strip().splitlines()
    how = f"signal {-code}" if code < 0 else f"code {code}"
    return f"The process that did it ended with {how}" + (f": {lines[-1][:200]}" if lines else ".")


def refuse(failed: Failed, doing: str) -> AppError:
    """The error of a child that said why."""
    kinds: dict[int, type[AppError]] = {2: UsageError, 4: EngineMissing}
    return kinds.get(failed.code, ExportFailed)(f"{doing}{failed.message}")
