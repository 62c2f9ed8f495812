"""What a person did that cannot work, with the exit code the shell gets.

Tree::

    AppError (1)
    ├── UsageError (2)       a wrong name, flag or value
    ├── NotRunning (3)       no node answers
    └── EngineMissing (4)    no engine can run the request

The lower floors have trees of their own: `known()` is all of them together.
"""

from __future__ import annotations

import sys
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


_CODES = {
    "sapo_desktop.errors:AppError": 1,
    "sapo_swarm.node.control_api:NodeNotRunning": 3,
    "sapo_swarm.node.control_api:NodeError": 1,
    "sapo_backends.errors:BackendUnavailable": 4,
    "sapo_backends.errors:BackendError": 1,
    "sapo_swarm.tasks.catalogue:UnknownTask": 2,
    "sapo_swarm.tasks.own.spec:BadTask": 2,
    "sapo_lab.schema:BadExperiment": 2,
    "sapo_swarm.scoring.process:ScorerUnavailable": 1,
    "sapo_swarm.protocol.client:CoordinatorError": 1,
    "sapo_swarm.coordinator.store.base:StoreError": 1,
    "sapo_swarm.node.journal:JournalError": 1,
    "builtins:OSError": 1,
}
"""Module and class of every error whose message is a sentence for the person -> exit code; of two that fit the first counts."""


def user_errors() -> tuple[type[Exception], ...]:
    """What a service may raise on purpose, for `except known() as error`. Imports nothing: an error that is raised has its
    module in memory already."""
    return tuple(kind for kind, _ in _loaded())


def code_of(error: Exception) -> int | None:
    """The exit code; None for a bug."""
    if isinstance(error, AppError):
        return error.exit_code
    return next((code for kind, code in _loaded() if isinstance(error, kind)), None)


def _loaded() -> list[tuple[type[Exception], int]]:
    found = []
    for place, code in _CODES.items():
        module, _, name = place.partition(":")
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None:
            found.append((kind, code))
    return found
