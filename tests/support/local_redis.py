"""A private redis-server on a free port, for tests and benchmarks. Its folder goes with it."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator

START_S = 60.0
"""Longest start of a server on a busy machine."""
MISSING = "redis-server is not installed. Fix: apt-get install redis-server (or brew install redis)"


class NoRedis(RuntimeError):
    """There is no server program here, or it does not come up."""


def free_port() -> int:
    """A TCP port of loopback that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class LocalRedis:
    """A server with an append-only file in a folder that lives as long as this object. Raises NoRedis.

    sync: Redis' appendfsync. With "everysec" a write waits, acknowledged, for up to two seconds while the disk is busy, and
    kill -9 loses it; with "no" the system has it at once, and only a power cut loses it; with "always" nothing does.
    """

    def __init__(self, sync: str = "everysec") -> None:
        program = shutil.which("redis-server") or shutil.which("valkey-server")
        if program is None:
            raise NoRedis(MISSING)
        self._folder = tempfile.TemporaryDirectory(prefix="sapo-redis-")
        self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        place = f"--port {self.port} --bind 127.0.0.1 --dir {self._folder.name}".split()
        self._command = [program, *place, "--appendonly", "yes", "--appendfsync", sync, "--save", ""]
        self.start()

    def start(self) -> None:
        """Start on what the folder holds; returns when the server answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        _until_it_answers(self._process, self.port)

    def kill(self) -> None:
        """kill -9; the folder stays."""
        self._process.kill()
        self._process.wait(START_S)

    def close(self) -> None:
        """End the server and remove its folder."""
        self._process.terminate()
        self._process.wait(START_S)
        self._folder.cleanup()


@contextlib.contextmanager
def local_redis() -> Iterator[str]:
    """The URL of a running server. Blocks until it answers. Raises NoRedis."""
    server = LocalRedis()
    try:
        yield server.url
    finally:
        server.close()


def _until_it_answers(process: subprocess.Popen[bytes], port: int) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1) as connection:
                connection.sendall(b"PING\r\n")
                if connection.recv(16).startswith(b"+PONG"):
                    return
            time.sleep(0.02)  # it is loading its file
        except OSError:
            time.sleep(0.02)
    raise NoRedis("redis-server does not come up on a free port.")
