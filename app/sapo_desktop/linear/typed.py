"""Lines that are typed, read one at a time and only when one is wanted: a verb that is run meanwhile has the keyboard."""

from __future__ import annotations

import asyncio
import os
import threading

_CHUNK = 65_536
_LONGEST = 4096
"""Characters of a line that are taken."""


class TypedLines:
    """Reads a file descriptor in a thread that nothing waits for, so that leaving does not hang on a read."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._bytes = b""
        self._ended = False
        self._reading: asyncio.Future[bytes] | None = None

    async def line(self) -> str | None:
        """The next line without its end; None when there will be no more."""
        while b"\n" not in self._bytes and not self._ended:
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_future()
                threading.Thread(target=self._read, args=(self._reading,), daemon=True).start()
            found = await asyncio.shield(self._reading)
            self._reading = None
            self._bytes, self._ended = self._bytes + found, not found
        first, _, self._bytes = self._bytes.partition(b"\n")
        if self._ended and not first:
            return None
        return first.decode("utf-8", "replace").rstrip("\r")[:_LONGEST]

    def _read(self, reading: asyncio.Future[bytes]) -> None:
        try:
            found = os.read(self._descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            found = b""
        try:
            reading.get_loop().call_soon_threadsafe(_tell, reading, found)
        except RuntimeError:  # whoever waited has left
            return


def _tell(reading: asyncio.Future[bytes], found: bytes) -> None:
    if not reading.done():
        reading.set_result(found)
