"""What the gates share: a coordinator in its own process, and a result that says pass or fail with its figures."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import psutil
from tests.support.local_redis import free_port, local_redis

from sapo_swarm.protocol.invite import Invite, parse_invite


@dataclass
class Gate:
    """The outcome of one gate: figures by name, and every demand with whether it is met."""

    number: int
    title: str
    figures: dict[str, object] = field(default_factory=dict)
    demands: dict[str, bool] = field(default_factory=dict)

    @property
    def passed(self) -> bool:
        return all(self.demands.values()) and bool(self.demands)

    def plain(self) -> dict[str, object]:
        """What a log keeps of it."""
        return {"title": self.title, "figures": self.figures, "demands": self.demands}

    def __str__(self) -> str:
        lines = [f"Gate {self.number} {self.title}: {'PASS' if self.passed else 'FAIL'}"]
        lines += [f"  {name}: {value}" for name, value in self.figures.items()]
        lines += [f"  [{'x' if met else ' '}] {name}" for name, met in self.demands.items()]
        return "\n".join(lines)


@dataclass
class Server:
    """A coordinator process. ready_s: from start until /readyz answered."""

    process: subprocess.Popen[str]
    invite: Invite
    port: int
    ready_s: float
    home: tempfile.TemporaryDirectory[str]

    def kill(self) -> None:
        """kill -9."""
        self.process.send_signal(signal.SIGKILL)
        self._closed(60)

    def stop(self) -> None:
        self.process.terminate()
        self._closed(60)

    def _closed(self, seconds: float) -> None:
        self.process.wait(seconds)
        if self.process.stdout is not None:
            self.process.stdout.close()
        self.home.cleanup()

    @property
    def rss(self) -> int:
        """Resident bytes."""
        return int(psutil.Process(self.process.pid).memory_info().rss)

    @property
    def cpu_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


def start_server(store: str, port: int = 0, log: Path | None = None, files: int = 0, **settings: object) -> Server:
    """Start a coordinator and wait until it is ready. files: descriptors that it may have, 0 as this process. Raises
    RuntimeError with its output."""
    port = port or free_port()
    settings = {"invite_uses": 0, **settings}
    flags = [f"--{key.replace('_', '-')}" + ("" if value is True else f"={value}") for key, value in settings.items()]
    limit = partial(resource.setrlimit, resource.RLIMIT_NOFILE, (files, files)) if files else None
    command = [sys.executable, "-m", "sapo_desktop", "coordinator", "--port", str(port), "--store", store, *flags]
    home = tempfile.TemporaryDirectory(prefix="sapo-gate-home-")
    started = time.perf_counter()
    with log.open("w+") if log else tempfile.TemporaryFile("w+") as told:  # no pipe: nobody reads it meanwhile
        env = {**os.environ, "SAPO_HOME": home.name}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=told, text=True, env=env, preexec_fn=limit)
        assert process.stdout is not None
        for line in process.stdout:
            if found := re.search(r"sapo://[^']+", line):
                break
        else:
            told.seek(0)
            raise RuntimeError(f"The coordinator did not start:\n{told.read()}")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=60) as answer:
        answer.read()
    return Server(process, parse_invite(found.group(0)), port, time.perf_counter() - started, home)


@contextlib.contextmanager
def store_address(kind: str) -> Iterator[str]:
    """A fresh store: a file in a temporary folder, or a private redis-server."""
    if kind == "redis":
        with local_redis() as url:
            yield url
    else:
        with tempfile.TemporaryDirectory(prefix="sapo-gate-") as folder:
            yield f"sqlite:{Path(folder) / 'swarm.sqlite'}"


@contextlib.contextmanager
def serving(kind: str, **settings: object) -> Iterator[Server]:
    """A coordinator over a fresh store, stopped afterwards."""
    with store_address(kind) as address:
        server = start_server(address, **settings)
        try:
            yield server
        finally:
            server.stop()
