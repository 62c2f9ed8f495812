"""A real node in a real process, for tests that kill, pause and restart it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from tests.support.verb_server import ForkedVerb, VerbServer

from sapo_swarm.node.control_api import ControlClient, NodeNotRunning, NodeStatus

FAKE = "--silo --trainer fake --model fake --tasks calendar_arithmetic,basic_arithmetic --eval-every 0".split()

CALM = """\
[limits]
pause_on_battery = false
max_celsius = 0
slow_celsius = 0
min_free_memory = 0
min_free_disk = 0
nice = 0
"""
"""Settings under which neither a hot, full or busy machine nor an empty battery keeps a node from working."""


PATIENCE_S = 240
"""For a verb on a machine with other work: a little less than a test's own time-out."""


def calm(home: Path) -> None:
    """Give the home these settings unless it has some. A home that cannot be made is the business of the test."""
    with contextlib.suppress(OSError):
        home.mkdir(parents=True, exist_ok=True)
        kernels(home)
        with (home / "config.toml").open("x") as file:
            file.write(CALM)


def kernels(home: Path) -> None:
    """Give the home the torch engine's C code and its check of this processor, which take seconds. Raises OSError."""
    made = _made()
    if made is None or (home / "cache" / "native" / made.name).exists():  # a node may run it
        return
    for folder in (home / "cache", home / "cache" / "native"):
        folder.mkdir(0o700, parents=True, exist_ok=True)
    for file, mode in ((made, 0o700), *((record, 0o600) for record in made.parents[1].glob(_MET))):
        copy = home / "cache" / file.relative_to(made.parents[1])
        shutil.copyfile(file, copy)
        copy.chmod(mode)


_MET = "met-*.json"
_MEET = """
import torch
from sapo_backends.torch_backend.device_check import ensure_device_checked
for kind in (torch.float32, torch.bfloat16):
    ensure_device_checked(torch.device("cpu"), kind)
"""


@functools.cache
def _made() -> Path | None:
    """The C code, compiled once for all homes, where there is a compiler; the check's records lie in the folder above."""
    with contextlib.suppress(ImportError, OSError, subprocess.SubprocessError), mock.patch.dict(os.environ):
        os.environ.pop("SAPO_HOME", None)
        from sapo_backends.torch_backend import native

        made = native.compile_library()
        if len(list(made.parents[1].glob(_MET))) < 2:  # one a precision
            subprocess.run([sys.executable, "-c", _MEET], check=True, capture_output=True)
        return made
    return None


def environment(home: Path) -> dict[str, str]:
    return {
        **os.environ,
        "SAPO_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(p for p in sys.path if p),
        "OMP_NUM_THREADS": "1",
    }


@functools.cache
def _server() -> VerbServer:
    return VerbServer(environment(Path.home()))


def sapo(home: Path, *arguments: str, timeout: float = PATIENCE_S, typed: str = "") -> subprocess.CompletedProcess[str]:
    """Run a verb to its end. typed: its standard input."""
    if arguments[:1] == ("node",):
        calm(home)
    variables = environment(home)
    server = _server()
    if server.can_run(arguments, variables):
        return server.run(arguments, variables, typed, timeout)
    return subprocess.run(
        [sys.executable, "-m", "sapo_desktop", *arguments],
        env=variables,
        capture_output=True,
        text=True,
        timeout=timeout,
        input=typed,
        check=False,
    )


def spawn(home: Path, *arguments: str) -> subprocess.Popen[bytes] | ForkedVerb:
    """Start a node."""
    calm(home)
    verb, variables = ("node", "--quiet", *arguments), environment(home)
    server = _server()
    if server.can_run(verb, variables):
        return server.start(verb, variables)
    return subprocess.Popen(
        [sys.executable, "-m", "sapo_desktop", *verb],
        env=variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )


@asynccontextmanager
async def node(
    home: Path, *arguments: str
) -> AsyncIterator[tuple[ControlClient, subprocess.Popen[bytes] | ForkedVerb]]:
    """A running node that already answers; killed at the end if it still lives."""
    process = await asyncio.to_thread(spawn, home, *arguments)
    assert process.stderr is not None
    try:
        async with ControlClient(home / "run" / "node.sock") as client:
            await answers(client, process)
            yield client, process
    finally:
        process.kill()
        await asyncio.to_thread(process.wait)
        process.stderr.close()


async def answers(client: ControlClient, process: subprocess.Popen[bytes] | ForkedVerb) -> NodeStatus:
    """Poll until the node answers; the poll interval is no assumption about speed."""
    while process.poll() is None:
        try:
            return await client.status()
        except NodeNotRunning:
            await asyncio.sleep(0.02)
    assert process.stderr is not None
    raise AssertionError(f"The node ended: {process.stderr.read().decode()}")


async def reaches(client: ControlClient, kinds: Sequence[str], wanted: Callable[[Any], object], after: int = 0) -> None:
    """Follow the events after a sequence number until `wanted(event)` holds.

    A node cuts off a reader that lags too far behind, as a test on a loaded machine may: it goes on where it was.
    Raises NodeNotRunning when the node is gone.
    """
    while True:
        async for event in client.events(after=after, kinds=kinds):
            after = max(after, event.seq)
            if wanted(event):
                return
        await client.status()
