"""A terminal for tests: a program in a pty, its raw bytes, and the screen that an emulator makes of them."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import pty
import signal
import struct
import subprocess
import termios
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pyte
from tests.support.node_process import environment, kernels


class Terminal:
    """raw: every byte the program wrote. text(): the screen now. process: the program itself."""

    def __init__(self, process: subprocess.Popen[bytes], master: int, columns: int, rows: int) -> None:
        self.raw = bytearray()
        self.process = process
        self._master = master
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)
        self._changed = asyncio.Event()

    def text(self) -> str:
        return "\n".join(self._screen.display)

    @property
    def title(self) -> str:
        return str(self._screen.title)

    @property
    def echoes(self) -> bool:
        """What is typed is shown and comes in lines, as a shell wants it."""
        wanted = termios.ECHO | termios.ICANON
        return termios.tcgetattr(self._master)[3] & wanted == wanted

    def press(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    async def shows(self, wanted: Callable[[str], bool], keys: str = "") -> str:
        """Wait until the screen is as wanted; keys are pressed again after every change."""
        try:
            async with asyncio.timeout(100):
                while not wanted(self.text()):
                    self._changed.clear()
                    if keys:
                        self.press(keys)
                    with contextlib.suppress(TimeoutError):
                        async with asyncio.timeout(0.5):
                            await self._changed.wait()
        except TimeoutError:
            raise AssertionError(f"The screen shows something else:\n{self.text()}") from None
        return self.text()

    def close(self) -> None:
        """The terminal goes away, as when its window is closed. The program gets no signal: it is no child of a shell."""
        if self._master >= 0:
            asyncio.get_running_loop().remove_reader(self._master)
            os.close(self._master)
            self._master = -1

    async def ended(self) -> int:
        """The program's exit code, once it ended by itself."""
        return await asyncio.to_thread(self.process.wait, 60)

    def read(self) -> None:
        with contextlib.suppress(OSError):  # the program closed its side
            data = os.read(self._master, 65536)
            self.raw += data
            self._stream.feed(data)
            self._changed.set()


@asynccontextmanager
async def terminal(home: Path, command: Sequence[str], columns: int = 120, rows: int = 36) -> AsyncIterator[Terminal]:
    """The command in a pty of that size; killed at the end."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    kernels(home)
    variables = {**environment(home), "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}
    process = await asyncio.to_thread(
        subprocess.Popen, command, env=variables, stdin=slave, stdout=slave, stderr=slave, start_new_session=True
    )
    os.close(slave)
    shown = Terminal(process, master, columns, rows)
    asyncio.get_running_loop().add_reader(master, shown.read)
    try:
        yield shown
    finally:
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
        shown.close()
