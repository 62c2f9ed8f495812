"""One engine, one worker thread, answers in turn."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from dataclasses import dataclass

from sapo_backends.base import Completion, Sampling
from sapo_backends.errors import CancelToken
from sapo_desktop.services.models.endpoint.messages import ChatRequest
from sapo_desktop.services.models.pieces import next_piece
from sapo_swarm.node.engine_thread import EngineHost

WAITING = 16
"""Requests in the line, with the one that is answered; more are sent away at once."""
LONGEST = 1024
"""Tokens of an answer whose client named no limit."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What half a character decodes to."""
SEEDS = 2**31


class TooMany(Exception):
    """The queue is full."""


class BadRequest(Exception):
    """The conversation cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class Answer:
    """text: so far, or whole. finish: None while it goes on. tokens: generated for it."""

    text: str
    finish: str | None
    tokens: int


class Answering:
    """Turns conversations into answers with a loaded EngineHost. host.cancel belongs to whoever has the turn."""

    def __init__(self, host: EngineHost, temperature: float = 1.0, system: str = "") -> None:
        """temperature, system: where the client names none. system: "" is no system prompt."""
        self._host, self._temperature, self._system = host, temperature, system
        self._turn = asyncio.Lock()
        self._waiting = 0

    def prompt(self, request: ChatRequest) -> list[int]:
        """Ids of the conversation. Raises BadRequest, BackendError (the chat template refused)."""
        engine = self._host.engine
        chat = [message.plain() for message in request.messages]
        if self._system and chat[0]["role"] != "system":
            chat = [{"role": "system", "content": self._system}, *chat]
        ids = engine.tokenizer.encode_chat(chat)
        if not ids or len(ids) >= engine.info.context_length:
            raise BadRequest(
                f"The conversation has {len(ids)} tokens; this model takes 1 to {engine.info.context_length - 1}."
            )
        return ids

    def _sampling(self, request: ChatRequest, prompt: list[int], done: int = 0, most: int = 2**31) -> Sampling:
        """How the next tokens are sampled after `done` of them, `most` at a time."""
        room = self._host.engine.info.context_length - len(prompt)
        limit = min(request.limit or LONGEST, room) - done
        temperature = self._temperature if request.temperature is None else request.temperature
        return Sampling(temperature, request.top_p or 1.0, min(limit, most))

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """In the line, from the first byte of a body to the last of its answer. Raises TooMany."""
        if self._waiting >= WAITING:
            raise TooMany
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    @contextlib.asynccontextmanager
    async def _my_turn(self) -> AsyncIterator[CancelToken]:
        """Wait for the engine."""
        async with self._turn:
            self._host.cancel.reset()
            yield self._host.cancel

    async def whole(self, request: ChatRequest, prompt: list[int], seed: int) -> list[Answer]:
        """request.n answers. Raises BackendError."""
        async with self._my_turn() as cancel:
            sampling = self._sampling(request, prompt)
            generate = self._host.engine.generate
            groups = await self._host.call(generate, [prompt], request.n or 1, sampling, seed % SEEDS, cancel)
        return [self._answer(completion, request.stops) for completion in groups[0]]

    def _answer(self, completion: Completion, stops: tuple[str, ...]) -> Answer:
        text, stopped = _cut(self._host.engine.tokenizer.decode(completion.tokens), stops)
        return Answer(text, "stop" if stopped else completion.finish, len(completion.tokens))

    async def stream(self, request: ChatRequest, prompt: list[int], seed: int) -> AsyncGenerator[Answer, None]:
        """The one answer as it grows; text only ever gets longer. Raises BackendError.

        What could still become a stop text, or is half a character, is held back.
        """
        tokens: list[int] = []
        shown = ""
        async with self._my_turn() as cancel:
            while True:
                sampling = self._sampling(request, prompt, len(tokens), next_piece(len(tokens)))
                generate = self._host.engine.generate
                following = (seed + len(tokens)) % SEEDS
                groups = await self._host.call(generate, [[*prompt, *tokens]], 1, sampling, following, cancel)
                tokens += groups[0][0].tokens
                ended = groups[0][0].finish == "stop"
                full = self._sampling(request, prompt, len(tokens)).max_new_tokens <= 0
                text, stopped = _cut(self._host.engine.tokenizer.decode(tokens), request.stops)
                if ended or stopped or full:
                    yield Answer(text, "stop" if ended or stopped else "length", len(tokens))
                    return
                shown = max(shown, _sure(text, request.stops), key=len)
                yield Answer(shown, None, len(tokens))


def _cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the first stop text, and whether there was one."""
    found = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(found)], True) if found else (text, False)


def _sure(text: str, stops: tuple[str, ...]) -> str:
    """The text without an end that later tokens may change."""
    text = text.rstrip(REPLACEMENT)
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]
