"""Whom files are for: what the app keeps is its owner's only; what is written to a place that a person named goes by the umask of
the person's shell.
"""

from __future__ import annotations

import os

_shell = -1


def set_private_umask() -> None:
    """Once, at the start of the process; its children inherit it. Windows has no such modes."""
    global _shell
    _shell = os.umask(0o077)


def as_in_the_shell() -> None:
    """For the rest of a verb that writes to a place that was named."""
    if _shell >= 0:
        os.umask(_shell)


def of_the_shell() -> int:
    """For a process that is started; -1 leaves it as it is."""
    return _shell
