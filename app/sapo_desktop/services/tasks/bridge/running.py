"""This app's side of the bridge: starts the environment's own Python and reads its output."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sapo_desktop.errors import AppError
from sapo_desktop.services.tasks.bridge.child import MARK
from sapo_swarm.types import UNREADABLE

VERSION = "0.1.14"
"""Version of verifiers that the child is written for and tested with."""
LONGEST_LINE = 2**18
PASSED = ("PATH", "HOME", "LANG", "TMPDIR", "SYSTEMROOT", "TEMP", "TMP", "LD_LIBRARY_PATH", "HF_HOME", "SSL_CERT_FILE")
"""The environment variables passed to the child: none of the person's secrets."""


class BridgeJob(msgspec.Struct, frozen=True):
    """What to run: an environment, on the model behind `url`. items: its evaluation examples; samples: of each."""

    environment: str
    arguments: dict[str, object]
    url: str
    token: str
    model: str
    items: int
    samples: int
    temperature: float
    max_tokens: int


class BridgeMessage(msgspec.Struct, frozen=True):
    """One line from the child."""

    kind: Literal["rollout", "failed", "done"]
    reward: Annotated[float, Meta(ge=-1e6, le=1e6)] = 0.0
    prompt: str = ""
    completion: str = ""
    error: str = ""
    reason: str = ""
    version: str = ""


UNREAD = BridgeMessage("rollout", error="its line cannot be read: the reward is no number, or the text is too long")


@dataclass(frozen=True, slots=True)
class EnvironmentResult:
    """An environment's result for a model. rewards: of each rollout without an error, as the environment gives them."""

    rewards: tuple[float, ...]
    failed: int
    version: str

    @property
    def mean(self) -> float:
        """The mean reward, 0 without a rollout."""
        return sum(self.rewards) / len(self.rewards) if self.rewards else 0.0


def how_to_install(python: Path) -> str:
    """The commands that create the environment's own Python."""
    folder = python.parent.parent
    return f"Make it: uv venv {folder} && uv pip install --python {python} verifiers=={VERSION} PACKAGE"


async def run_environment(
    python: Path, job: BridgeJob, show: Callable[[BridgeMessage], None], seconds: float
) -> EnvironmentResult:
    """Run the environment to its end, for at most `seconds`. Raises AppError."""
    child = files("sapo_desktop").joinpath("services", "tasks", "bridge", "child.py")
    try:
        process = await _started(python, str(child))
    except OSError as error:
        raise AppError(f"There is no Python at {python} for the environment. {how_to_install(python)}") from error
    try:
        async with asyncio.timeout(seconds):
            return await _talk(process, job, show)
    except TimeoutError:
        raise AppError(f"The environment was not done after {seconds:g} s and was ended. Take fewer --items.") from None
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
        await process.wait()


async def _started(python: Path, child: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        str(python),
        "-I",
        child,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=_environment(os.environ),
        limit=LONGEST_LINE,
    )


def _environment(everything: Mapping[str, str]) -> dict[str, str]:
    return {name: everything[name] for name in PASSED if name in everything} | {"PYTHONUTF8": "1"}


async def _talk(
    process: asyncio.subprocess.Process, job: BridgeJob, show: Callable[[BridgeMessage], None]
) -> EnvironmentResult:
    assert process.stdin is not None
    assert process.stdout is not None
    with contextlib.suppress(ConnectionError):  # it ended at once: its output is read below
        process.stdin.write(msgspec.json.encode(job) + b"\n")
        await process.stdin.drain()
        process.stdin.close()
    rewards: list[float] = []
    failed = 0
    while line := await _line(process.stdout):
        message = _told(line)
        if message is None:
            continue
        if message.kind == "failed":
            raise AppError(f"The environment {job.environment!r} did not run: {message.reason}")
        if message.kind == "done":
            return EnvironmentResult(tuple(rewards), failed, message.version)
        if message.error:
            failed += 1
        else:
            rewards.append(message.reward)
        show(message)
    raise AppError(f"The environment's Python ended before it was done (exit code {await process.wait()}).")


async def _line(stream: asyncio.StreamReader) -> bytes:
    """The next line; one that is too long counts as not for us."""
    try:
        return await stream.readline()
    except ValueError:
        return b"\n"


def _told(line: bytes) -> BridgeMessage | None:
    """The message in a line for this app, or a failed rollout where it cannot be read; None for other output of the
    environment."""
    mark = MARK.encode()
    if not line.startswith(mark):
        return None
    try:
        return msgspec.json.decode(line[len(mark) :], type=BridgeMessage)
    except UNREADABLE:
        return UNREAD
