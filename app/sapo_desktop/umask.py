"""File permissions: the app's own files are private to their owner; files written to a path that a person named follow the umask
of the person's shell.
"""

from __future__ import annotations

import os

_shell = -1


def set_private_umask() -> None:
    """Call once at the start of the process; child processes inherit the umask. Windows has no such modes."""
    global _shell
    _shell = os.umask(0o077)


def as_in_the_shell() -> None:
    """Restore the shell's umask for the rest of a verb that writes to a path the person named."""
    if _shell >= 0:
        os.umask(_shell)


def of_the_shell() -> int:
    """The shell's umask, for starting another process; -1 leaves the umask unchanged."""
    return _shell
