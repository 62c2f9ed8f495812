"""The terminal that shows the dashboard: whether it is gone (a closed window, a dropped ssh, a closed browser tab), and what is
to be done when the program goes on after somebody stopped it.

A terminal may go without a signal. Reading it then gives nothing, at once and for ever, and Textual's input thread would
spin on it. So a thread looks twice a second, at next to no cost, and ends the dashboard; the node is not touched.
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
"""A dashboard that has not ended by then (its output may hang on the dead terminal) is ended."""


def hung_up(descriptor: int) -> bool:
    """Nothing will ever come from this terminal or pipe again: it is readable, and what it holds is nothing. Unix only."""
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
    """A driver that may be stopped from outside (SIGSTOP), where nothing gives the terminal back as Ctrl+Z does. Textual's begins
    once more when it goes on: two more threads each time, 80 KB, which divide the keys among them and never end."""

    _given_back = False

    def suspend_application_mode(self) -> None:
        super().suspend_application_mode()
        self._given_back = True

    def resume_application_mode(self) -> None:
        """Called by a signal's handler too, which may not wait for a thread."""
        if self._given_back:
            self._given_back = False
            super().resume_application_mode()
        else:
            asyncio.get_running_loop().call_soon_threadsafe(self._take_again)

    def _take_again(self) -> None:
        """The shell may have changed the terminal meanwhile."""
        self.suspend_application_mode()
        self.resume_application_mode()


def stoppable_driver(driver: type[Driver]) -> type[Driver]:
    """That driver, which takes the terminal again when it goes on."""
    return type(driver.__name__, (_Stoppable, driver), {})


def watch_terminal(gone: Callable[[], None], ended: Callable[[], None]) -> None:
    """Call `gone` on the running loop once the terminal is gone, `ended` at SIGHUP and SIGTERM. Main thread only."""
    loop = asyncio.get_running_loop()
    if sys.platform == "win32":  # a console that closes ends its programs
        return
    for number in (signal.SIGHUP, signal.SIGTERM):
        loop.add_signal_handler(number, ended)
    threading.Thread(target=_look, args=(loop, gone), name="lifeline", daemon=True).start()


def _look(loop: asyncio.AbstractEventLoop, gone: Callable[[], None]) -> None:
    outputs = [1, 2] if os.isatty(2) else [1]
    empty = 0
    while empty < 2:  # once may be chance: the input thread took the key between the two questions
        time.sleep(LOOK_S)
        empty = empty + 1 if hung_up(0) else 0
    to_nowhere(*outputs)
    with contextlib.suppress(RuntimeError):  # the loop has just closed: the dashboard was on its way out
        loop.call_soon_threadsafe(gone)
    time.sleep(GRACE_S)
    os._exit(0)
