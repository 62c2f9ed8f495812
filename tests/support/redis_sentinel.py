"""A primary with two replicas and a Sentinel that watches them: private servers on free ports, as operations would run them."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

from tests.support.local_redis import MISSING, NoRedis, free_port

NAME = "swarm"
DOWN_MS = 500
"""Silence after which Sentinel takes a server for dead."""


class RedisWithFailover:
    """url: for the coordinator. Use close(); its folders go with it. Raises NoRedis."""

    def __init__(self) -> None:
        program = shutil.which("redis-server")
        if program is None:
            raise NoRedis(MISSING)
        self._program, self._room = program, tempfile.TemporaryDirectory(prefix="sapo-sentinel-")
        self.processes: dict[int, subprocess.Popen[bytes]] = {}
        self.primary, *replicas = self.ports = [free_port() for _ in range(3)]
        self._server(self.primary)
        for port in replicas:
            self._server(port, "--replicaof", "127.0.0.1", str(self.primary))
        self.sentinel = free_port()
        config = Path(self._room.name) / "sentinel.conf"
        config.write_text(
            f"port {self.sentinel}\nbind 127.0.0.1\nsentinel monitor {NAME} 127.0.0.1 {self.primary} 1\n"
            f"sentinel down-after-milliseconds {NAME} {DOWN_MS}\nsentinel failover-timeout {NAME} 5000\n"
            f"sentinel parallel-syncs {NAME} 2\n"
        )
        self._until(lambda: self.asked(self.primary, "INFO", "replication").count(b"state=online") == 2)
        self._start(self.sentinel, str(config), "--sentinel")
        self._until(lambda: b"slaves=2" in self.asked(self.sentinel, "INFO", "sentinel"))
        self.url = f"sentinel://127.0.0.1:{self.sentinel}/{NAME}/0"

    def _server(self, port: int, *more: str) -> None:
        folder = Path(self._room.name) / str(port)
        folder.mkdir()
        place = f"--port {port} --bind 127.0.0.1 --dir {folder} --appendonly yes --appendfsync no --save".split()
        self._start(port, *place, "", "--repl-diskless-sync-delay", "0", "--min-replicas-to-write", "1", *more)

    def _start(self, port: int, *arguments: str) -> None:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.processes[port] = subprocess.Popen([self._program, *arguments], **quiet)  # type: ignore[call-overload]

    def asked(self, port: int, *command: str) -> bytes:
        """What the server answers, b"" where it does not."""
        import redis

        with contextlib.suppress(redis.RedisError), redis.Redis(port=port, socket_timeout=1.0) as client:
            found = client.execute_command(*command)
            return repr(found).replace("'", "").replace(": ", "=").encode()
        return b""

    def _until(self, there: object, limit_s: float = 30.0) -> None:
        end = time.monotonic() + limit_s
        while not there():  # type: ignore[operator]
            if time.monotonic() > end:
                self.close()
                raise NoRedis("The servers do not find each other.")
            time.sleep(0.02)

    def kill_primary(self) -> None:
        """kill -9."""
        process = self.processes.pop(self.primary)
        process.kill()
        process.wait()

    def hang_replicas(self, number: int) -> None:
        """Stop them (SIGSTOP), or let them go on (SIGCONT)."""
        for port in self.ports:
            if port != self.primary and port in self.processes:
                self.processes[port].send_signal(number)

    def close(self) -> None:
        """End them all."""
        for process in self.processes.values():
            process.kill()
            process.wait()
        self._room.cleanup()
