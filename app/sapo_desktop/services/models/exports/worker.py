"""The child process of an export: one job as JSON on standard input, replies as JSON lines on standard output.

Output of libraries goes to standard error, which the parent keeps off the terminal.
"""

from __future__ import annotations

import errno
import sys
from pathlib import Path

import msgspec

from sapo_backends.child_process import AnswerStream
from sapo_backends.errors import BackendError, BackendUnavailable
from sapo_desktop.errors import AppError
from sapo_desktop.services.models.exports.job import (
    Job,
    JobFailure,
    JobProgress,
    LibraryMissing,
    ReadResult,
    Reply,
    WriteJob,
    WriteResult,
)
from sapo_swarm.scoring.scorer import ScorerUnavailable
from sapo_swarm.tasks.catalogue import UnknownTask
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.spec import BadTask


class ReplyStream(AnswerStream):
    """The stream to the parent."""

    def send(self, reply: Reply) -> None:
        """Send one line. Raises BrokenPipeError when the parent is gone."""
        self.send_line(msgspec.json.encode(reply))

    def report(self, fraction: float, phrase: str) -> None:
        """Report progress, with the signature that engines call."""
        self.send(JobProgress(fraction, phrase))


def _work(job: Job, outlet: ReplyStream) -> WriteResult | ReadResult | LibraryMissing:
    if isinstance(job, WriteJob):
        from sapo_desktop.services.models.exports.writing import write_export

        if job.own_tasks:
            library.set_task_folder(Path(job.own_tasks))
        return write_export(job, outlet.report)
    from sapo_desktop.services.models.exports.foreign import answer_with_library

    return answer_with_library(job, outlet.report)


def _failure(error: Exception) -> JobFailure:
    """The error as the parent reports it."""
    if isinstance(error, OSError) and error.errno == errno.ENOSPC:
        return JobFailure("The disk is full. Free some space, or name a folder on another disk with --to.")
    if isinstance(error, AppError):
        return JobFailure(str(error), code=error.exit_code)
    if isinstance(error, BackendUnavailable):
        return JobFailure(str(error), code=4)
    foreseen = isinstance(error, (BackendError, ScorerUnavailable, UnknownTask, BadTask, OSError))
    return JobFailure(str(error) if foreseen else f"{type(error).__name__}: {error}", bug=not foreseen)


def main() -> int:
    """Run one job. If the parent is gone, the next report ends it."""
    outlet = ReplyStream()
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    try:
        outlet.send(_work(job, outlet))
    except BrokenPipeError:
        return 1
    except Exception as error:
        outlet.send(_failure(error))
    return 0


if __name__ == "__main__":
    sys.exit(main())
