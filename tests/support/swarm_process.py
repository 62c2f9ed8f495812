"""Swarms of real processes for tests: a coordinator, nodes, and what their journals say afterwards."""

from __future__ import annotations

import asyncio
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from tests.support.node_process import environment

from sapo_swarm.events import Event, RoundFinished, SwarmUpdated
from sapo_swarm.node.journal import read_only

TASKS = ("--tasks", "calendar_arithmetic,basic_arithmetic", "--eval-every", "0", "--trainer", "fake")


@asynccontextmanager
async def coordinator(home: Path, *arguments: str) -> AsyncIterator[tuple[str, subprocess.Popen[str]]]:
    """`sapo-desktop coordinator` with its invite; asked to stop at the end."""
    process = await asyncio.to_thread(
        subprocess.Popen,
        [sys.executable, "-m", "sapo_desktop", "coordinator", "--round-every-s", "0.2", *arguments],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    try:
        yield await asyncio.to_thread(_invite, process), process
    finally:
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait)
        process.stdout.close()
        process.stderr.close()


def _invite(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if found := re.search(r"sapo://[^']+", line):
            return found[0]
    assert process.stderr is not None
    raise AssertionError(f"The coordinator ended: {process.stderr.read()}")


def journal(home: Path) -> list[Event]:
    """The events of the home's only run, or of its newest."""
    folders = sorted(p for room in ("models", "runs") for p in (home / "data" / room).glob("*") if p.is_dir())
    return read_only(folders[-1] / "journal.db")


def rounds(events: Sequence[Event]) -> list[RoundFinished]:
    return [event for event in events if isinstance(event, RoundFinished)]


def news(events: Sequence[Event]) -> list[SwarmUpdated]:
    return [event for event in events if isinstance(event, SwarmUpdated)]
