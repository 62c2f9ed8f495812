"""What a person did that cannot work, with the exit code the shell gets.

Tree::

    AppError (1)
    ├── UsageError (2)       a wrong name, flag or value
    ├── NotRunning (3)       no node answers
    └── EngineMissing (4)    no engine can run the request
"""

from __future__ import annotations

from typing import ClassVar


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
    """The node did not take a command; the message says why and what to do."""
