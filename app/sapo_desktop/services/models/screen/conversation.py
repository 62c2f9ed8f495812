"""A chat in the dashboard: the models are loaded in a process of their own, and a node that works waits meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.pieces import NEXT, HeldOut, Marks, Said
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes import children, supervisor
from sapo_swarm.node.control_api import ControlClient, NodeError

# A node that works waits while the dashboard needs the processor and the memory for something else.
#
# It waits as long as it is told so: a dashboard that is killed, or whose last word gets lost, holds it for LEASE_S at most.

_AT_WORK = ("running", "starting", "finishing")
LEASE_S, RENEWED_S = 60.0, 20.0
"""A node waits for so long, and is told again so often."""


@asynccontextmanager
async def node_held(home: Home, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> AsyncIterator[None]:
    """A node that works waits in the block and goes on after it, unless it was asked to pause meanwhile or before, or another
    block has it wait; one that is paused, or none, stays as it is."""
    holder = 1 + secrets.randbelow(2**53 - 1)
    if not await _hold(home, holder):
        yield
        return
    renewing = asyncio.create_task(_renew(home, holder, sleep))
    try:
        yield
    finally:
        renewing.cancel()
        await asyncio.gather(renewing, return_exceptions=True)
        with contextlib.suppress(NodeError):
            async with ControlClient(home.socket) as node:
                await node.post("release", holder=holder)


async def _hold(home: Home, holder: int) -> bool:
    try:
        status = await supervisor.running(home)
        if status is None or status.state not in _AT_WORK:
            return False
        async with ControlClient(home.socket) as node:
            await node.post("hold", for_s=LEASE_S, holder=holder)
    except NodeError:
        return False
    return True


async def _renew(home: Home, holder: int, sleep: Callable[[float], Awaitable[None]]) -> None:
    """Until cancelled."""
    while True:
        await sleep(RENEWED_S)
        with contextlib.suppress(NodeError):
            async with ControlClient(home.socket) as node:
                await node.post("renew", for_s=LEASE_S, holder=holder)


class Conversation:
    """A conversation that is open, over `sapo-desktop chat --json`; closing it gives the memory back."""

    def __init__(self, home: Home, model: Model) -> None:
        self.labels = ("base", model.name)
        self.early = ""
        """Why both may well answer alike, "" where an evaluation tells them apart."""
        self.without_marks = ""
        """Why there are no held-out questions to mark; "" where there are."""
        self._home, self._model = home, model
        self._stack = AsyncExitStack()

    @classmethod
    async def open(cls, home: Home, model: Model) -> Conversation:
        """Pause the node if it works, load both models. Raises AppError; then the node goes on."""
        chat = cls(home, model)
        try:
            await chat._open()
        except BaseException:
            await chat.close()
            raise
        return chat

    async def _open(self) -> None:
        await self._stack.enter_async_context(node_held(self._home))
        self._process = await self._stack.enter_async_context(children.child(["chat", self._model.name, "--json"]))
        opened = await self._read()
        if "ready" not in opened:
            raise AppError("The chat answers something that is not understood: update sapo-desktop.")
        self.early, self.without_marks = str(opened.get("early", "")), str(opened.get("without_marks", ""))

    async def ask(self, question: str) -> AsyncIterator[Said]:
        """What each says so far, until both are done. Raises AppError."""
        line = " ".join(question.split())
        if not line:
            return
        await self._write(line)
        while "done" not in (part := await self._read()):
            yield _said(part)

    async def next_held_out(self) -> AsyncIterator[HeldOut | Said | Marks]:
        """The next held-out question, what each says to it so far, and the marks; nothing where there is none left. Raises
        AppError."""
        await self._write(NEXT)
        while "done" not in (part := await self._read()):
            match part.get("kind"):
                case "HeldOut":
                    yield HeldOut(*(part[name] for name in HeldOut._fields))
                case "Marks":
                    rewards, right, asked, problem = (part[name] for name in Marks._fields)
                    yield Marks(tuple(rewards), tuple(right), asked, problem)
                case _:
                    yield _said(part)

    async def _write(self, line: str) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(line.encode() + b"\n")
            await self._process.stdin.drain()
        except OSError as error:
            raise AppError("The chat ended. Close it and open it again.") from error

    async def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = await self._process.stdout.readline()
        if not line:
            words = [text async for text in children.words(self._process)]
            reason = words[-1].removeprefix("sapo-desktop: ") if words else "The chat ended without a word."
            raise AppError(reason)
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    async def close(self) -> None:
        """Give the memory back, and let a node that waited go on."""
        await self._stack.aclose()


def _said(part: dict[str, Any]) -> Said:
    return Said(int(part["of"]), str(part["text"]), part["cut"] is True)
