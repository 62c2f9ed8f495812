"""Errors caused by what a person typed or by the state of the machine, with their exit codes.

Tree::

    AppError (1)
    ├── UsageError (2)       a wrong name, flag or value
    ├── NotRunning (3)       no node answers
    └── EngineMissing (4)    no engine can run the request

The packages below have separate trees; `USER_ERRORS` combines them all.
"""

from __future__ import annotations

from typing import ClassVar

from sapo_backends.errors import BackendError
from sapo_swarm.errors import SwarmError


class AppError(Exception):
    """The message is one sentence that says what to do."""

    exit_code: ClassVar[int] = 1


class UsageError(AppError):
    """A wrong name, flag or value."""

    exit_code: ClassVar[int] = 2


class NotRunning(AppError):
    """No node answers."""

    exit_code: ClassVar[int] = 3


class EngineMissing(AppError):
    """No engine can run the request."""

    exit_code: ClassVar[int] = 4


class CommandFailed(Exception):
    """The node refused a command; the message says why and what to do."""


USER_ERRORS: tuple[type[Exception], ...] = (AppError, SwarmError, BackendError, OSError)
"""Errors whose message is a sentence for the person, for `except USER_ERRORS as error`. Everything else is a bug."""


def exit_code_of(error: Exception) -> int | None:
    """The exit code for the error; None for a bug."""
    return int(getattr(error, "exit_code", 1)) if isinstance(error, USER_ERRORS) else None
