"""The terminal that shows the dashboard: detects that it is gone (a closed window, a dropped ssh, a closed browser tab), and
restores it when the program continues after being stopped.

A terminal may disappear without a signal. Reads then return nothing, immediately and for ever, and Textual's input thread would
spin on it. So a thread checks twice a second, at next to no cost, and ends the dashboard; the node is not affected.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable

from textual.driver import Driver

from sapo_desktop.streams import to_nowhere

LOOK_S = 0.5
GRACE_S = 5.0
"""Seconds until a dashboard that has not ended (its output may hang on the dead terminal) is killed."""


def hung_up(descriptor: int) -> bool:
    """Whether this terminal or pipe will never deliver input again: it is readable but holds no bytes. Unix only."""
    import fcntl
    import termios

    try:
        if not select.select([descriptor], [], [], 0)[0]:
            return False
        waiting = fcntl.ioctl(descriptor, termios.FIONREAD, bytes(4))
    except (OSError, ValueError):
        return True
    return not any(waiting)


class _Stoppable(Driver):
    """A driver that survives being stopped from outside (SIGSTOP), which does not release the terminal as Ctrl+Z does. Textual's
    driver starts again on each resume: two more threads and 80 KB each time, which compete for the keys and never end."""

    _given_back = False

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._given_back = True

    def resume_application_mode(self) -> None:
        """Also called from a signal handler, which must not wait for a thread."""
        if self._given_back:
            self._given_back = False
            super().resume_application_mode()
        else:
            asyncio.get_running_loop().call_soon_threadsafe(self._take_again)

    def _take_again(self) -> None:
        """Set the terminal up again: the shell may have changed it meanwhile."""
        self.suspend_application_mode()
        self.resume_application_mode()


def stoppable_driver(driver: type[Driver]) -> type[Driver]:
    """The driver class, extended to set the terminal up again after a stop."""
    return type(driver.__name__, (_Stoppable, driver), {})


def watch_terminal(gone: Callable[[], None], ended: Callable[[], None]) -> None:
    """Call `gone` on the running loop once the terminal is gone, `ended` on SIGHUP and SIGTERM. Main thread only."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":  # closing a console ends its programs
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        loop.add_signal_handler(number, ended)
    threading.Thread(target=_look, args=(loop, gone), name="lifeline", daemon=True).start()


def _look(loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
    outputs = [1, 2] if os.isatty(2) else [1]
    empty = 0
    while empty < 2:  # one may be chance: the input thread can read the key between the two checks
        time.sleep(LOOK_S)
        empty = empty + 1 if hung_up(0) else 0
    to_nowhere(*outputs)
    with contextlib.suppress(RuntimeError):  # the loop has just closed: the dashboard was exiting anyway
        loop.call_soon_threadsafe(gone)
    time.sleep(GRACE_S)
    os._exit(0)
