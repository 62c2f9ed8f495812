"""A chat in the dashboard: the models are loaded in a process of their own, and a node that works waits meanwhile."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.pieces import NEXT, HeldOut, Marks, Said
from sapo_desktop.services.models.screen.holding import node_held
from sapo_desktop.services.models.shelf.store import Model
from sapo_desktop.services.nodes import children


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
