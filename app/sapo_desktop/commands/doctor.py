"""`sapo-desktop doctor`: what works here, what does not, and the command that mends it."""

from __future__ import annotations

import argparse
import asyncio
import json
import platform
import shutil
import sys
from collections.abc import Iterator
from typing import Literal, NamedTuple

from sapo_desktop import __version__, settings
from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home

Verdict = Literal["ok", "note", "fail"]
_MARK = {"ok": "✓", "note": "·", "fail": "✗"}
_DISK_NEEDED = 2**30


class Finding(NamedTuple):
    """One line of the report. text says what to do when it is not ok."""

    verdict: Verdict
    what: str
    text: str


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("--json", action="store_true", help="as JSON lines")


def main(args: argparse.Namespace) -> int:
    found = list(examine())
    for finding in found:
        print(
            json.dumps(finding._asdict())
            if args.json
            else f"{_MARK[finding.verdict]} {finding.what:<10} {finding.text}"
        )
    return 1 if any(f.verdict == "fail" for f in found) else 0


def examine() -> Iterator[Finding]:
    """Every check, in the order a person would want to read it."""
    home = Home.find()
    yield Finding("ok", "version", f"sapo-desktop {__version__}, Python {platform.python_version()}")
    yield _machine()
    yield _disk(home)
    yield _settings(home)
    yield from _engines()
    yield asyncio.run(_scorer())
    yield asyncio.run(_node(home))


def _machine() -> Finding:
    import psutil

    memory = psutil.virtual_memory()
    cores = psutil.cpu_count(logical=False) or psutil.cpu_count() or 1
    text = (
        f"{platform.system()} {platform.machine()}, {cores} cores, "
        f"{memory.available / 2**30:.1f} of {memory.total / 2**30:.1f} GiB memory free"
    )
    if sys.platform == "darwin" and platform.machine() == "x86_64" and "Apple" in (platform.processor() or ""):
        return Finding(
            "fail", "machine", f"{text}. This Python runs under Rosetta: install an arm64 Python to use MLX."
        )
    return Finding("ok", "machine", text)


def _disk(home: Home) -> Finding:
    try:
        home.prepare()
        free = shutil.disk_usage(home.data).free
    except (AppError, OSError) as error:
        return Finding("fail", "disk", str(error))
    text = f"{free / 2**30:.1f} GiB free at {home.data}"
    return (
        Finding("ok", "disk", text) if free > _DISK_NEEDED else Finding("fail", "disk", f"{text}. Free at least 1 GiB.")
    )


def _settings(home: Home) -> Finding:
    try:
        settings.load(home.settings)
    except AppError as error:
        return Finding("fail", "settings", str(error))
    return Finding("ok", "settings", str(home.settings) if home.settings.exists() else "defaults (no file yet)")


def _engines() -> Iterator[Finding]:
    from sapo_backends import registry
    from sapo_backends.base import BackendUnavailable

    can_train = False
    for name in registry.names():
        try:
            backend = registry.backend(name)
            backend.check()
        except BackendUnavailable as error:
            yield Finding("note", name, str(error))
            continue
        verbs = " and ".join(
            v for v, can in (("generates", backend.CAN_GENERATE), ("trains", backend.CAN_TRAIN)) if can
        )
        can_train |= backend.CAN_TRAIN and name != "fake"
        yield Finding("ok", name, f"{verbs} on {', '.join(backend.DEVICES)}")
    if not can_train:
        yield Finding("fail", "trainer", 'No engine that trains is installed: pip install "sapo-desktop[torch]"')


async def _scorer() -> Finding:
    from sapo_swarm.scoring.scorer import Scorer, ScorerUnavailable

    try:
        async with Scorer() as scorer:
            limits, missing = await scorer.ready()
    except ScorerUnavailable as error:
        return Finding("fail", "scorer", str(error))
    if missing:
        return Finding("note", "scorer", f"works, but this platform cannot limit: {', '.join(missing)}")
    return Finding("ok", "scorer", f"limited worker: {', '.join(limits)}")


async def _node(home: Home) -> Finding:
    from sapo_desktop.supervisor import running

    status = await running(home)
    if status is None:
        return Finding("note", "node", "none is running")
    return Finding("ok", "node", f"process {status.pid}: {status.sentence}")
