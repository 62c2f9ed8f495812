"""A model behind OpenAI's chat completions API, for other programs on this machine: messages, a queue of requests, HTTP."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import os
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta

from sapo_backends.base import CancelToken, Completion, Sampling
from sapo_backends.errors import BackendError, Cancelled
from sapo_desktop.errors import AppError
from sapo_desktop.services.models.pieces import next_piece
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.servers import FewConnections, server_runner

# The supported part of OpenAI's chat completions: https://platform.openai.com/docs/api-reference/chat
#
# Unknown fields are accepted and ignored, as clients send many of them.

Short = Annotated[str, Meta(max_length=200)]


class TextPart(msgspec.Struct, frozen=True):
    """One part of a message; only text is supported."""

    type: Literal["text"]
    text: str


class ChatMessage(msgspec.Struct, frozen=True):
    """One turn of the conversation."""

    role: Literal["system", "developer", "user", "assistant"]
    content: str | list[TextPart]

    def plain(self) -> dict[str, str]:
        """The message as a chat template takes it. developer is OpenAI's newer name for system."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": "system" if self.role == "developer" else self.role, "content": text}


class StreamOptions(msgspec.Struct, frozen=True):
    """include_usage: the last chunk counts the tokens."""

    include_usage: bool = False


class ChatRequest(msgspec.Struct, frozen=True, kw_only=True):
    """Body of POST /v1/chat/completions. n: completions; max_tokens is the older name of max_completion_tokens."""

    messages: Annotated[list[ChatMessage], Meta(min_length=1, max_length=256)]
    model: Short = ""
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=8)] | None = None
    temperature: Annotated[float, Meta(ge=0.0, le=2.0)] | None = None
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)] | None = None
    max_tokens: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    max_completion_tokens: Annotated[int, Meta(ge=1, le=2**20)] | None = None
    seed: int | None = None
    stop: Short | Annotated[list[Short], Meta(max_length=4)] | None = None

    @property
    def stops(self) -> tuple[str, ...]:
        """Texts at which an answer ends; they are not part of it."""
        texts = [self.stop] if isinstance(self.stop, str) else self.stop or []
        return tuple(text for text in texts if text)

    @property
    def limit(self) -> int | None:
        """Longest answer in tokens, None where the client sets no limit."""
        return self.max_completion_tokens or self.max_tokens


class CompletionUsage(msgspec.Struct, frozen=True):
    """Tokens of the prompt and of all completions."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class AssistantMessage(msgspec.Struct, frozen=True):
    """A complete answer. finish_reason: "stop" at its end or at a stop text, "length" at the limit."""

    role: Literal["assistant"]
    content: str


class CompletionChoice(msgspec.Struct, frozen=True):
    """One of n answers."""

    index: int
    message: AssistantMessage
    finish_reason: str
    logprobs: None = None


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """The complete response to POST /v1/chat/completions."""

    id: str
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: CompletionUsage
    object: Literal["chat.completion"] = "chat.completion"


class ChoiceDelta(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a chunk adds."""

    role: str = ""
    content: str = ""


class ChunkChoice(msgspec.Struct, frozen=True):
    """The one answer of a stream."""

    delta: ChoiceDelta
    finish_reason: str | None = None
    index: int = 0


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """One server-sent event of a stream. usage: in the last one, if requested."""

    id: str
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: CompletionUsage | None = None
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"


# One engine, one worker thread, requests answered in turn.

WAITING = 16
"""Requests in the queue, including the one being answered; further ones are refused at once."""
LONGEST = 1024
"""Longest answer in tokens where the client set no limit."""
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
"""What an incomplete character decodes to."""
SEEDS = 2**31


class TooMany(Exception):
    """The queue is full."""


class BadRequest(Exception):
    """The conversation cannot be answered; the message says why."""


@dataclass(frozen=True, slots=True)
class EndpointAnswer:
    """text: so far, or complete. finish: None while it is being generated. tokens: generated for it."""

    text: str
    finish: str | None
    tokens: int


class ChatService:
    """Turns conversations into answers with a loaded EngineThread. Only the request whose turn it is may use host.cancel."""

    def __init__(self, host: EngineThread, temperature: float = 1.0, system: str = "") -> None:
        """temperature, system: used where the client sets none. system: "" is no system prompt."""
        self._host, self._temperature, self._system = host, temperature, system
        self._turn = asyncio.Lock()
        self._waiting = 0

    def prompt(self, request: ChatRequest) -> list[int]:
        """Token ids of the conversation. Raises BadRequest, BackendError (the chat template refused)."""
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
        """How to sample the next tokens after the first `done`, at most `most` at a time."""
        room = self._host.engine.info.context_length - len(prompt)
        limit = min(request.limit or LONGEST, room) - done
        temperature = self._temperature if request.temperature is None else request.temperature
        return Sampling(temperature, request.top_p or 1.0, min(limit, most))

    @contextlib.contextmanager
    def place(self) -> Iterator[None]:
        """A place in the queue, from the first byte of a body to the last byte of its answer. Raises TooMany."""
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

    async def whole(self, request: ChatRequest, prompt: list[int], seed: int) -> list[EndpointAnswer]:
        """request.n complete answers. Raises BackendError."""
        async with self._my_turn() as cancel:
            sampling = self._sampling(request, prompt)
            generate = self._host.engine.generate
            groups = await self._host.call(generate, [prompt], request.n or 1, sampling, seed % SEEDS, cancel)
        return [self._answer(completion, request.stops) for completion in groups[0]]

    def _answer(self, completion: Completion, stops: tuple[str, ...]) -> EndpointAnswer:
        text, stopped = _cut(self._host.engine.tokenizer.decode(completion.tokens), stops)
        return EndpointAnswer(text, "stop" if stopped else completion.finish, len(completion.tokens))

    async def stream(self, request: ChatRequest, prompt: list[int], seed: int) -> AsyncGenerator[EndpointAnswer, None]:
        """A single answer as it grows; text only ever gets longer. Raises BackendError.

        Text that could still become a stop text, or is an incomplete character, is held back.
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
                    yield EndpointAnswer(text, "stop" if ended or stopped else "length", len(tokens))
                    return
                shown = max(shown, _sure(text, request.stops), key=len)
                yield EndpointAnswer(shown, None, len(tokens))


def _cut(text: str, stops: tuple[str, ...]) -> tuple[str, bool]:
    """The text before the first stop text, and whether there was one."""
    places = [at for at in (text.find(stop) for stop in stops) if at >= 0]
    return (text[: min(places)], True) if places else (text, False)


def _sure(text: str, stops: tuple[str, ...]) -> str:
    """The text without an end that later tokens may change."""
    text = text.rstrip(REPLACEMENT)
    overlap = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - overlap]


# The HTTP side: who may ask (the token in a file that only its owner reads), and answers in OpenAI's format.

# The token that clients of the endpoint send: in a file that only its owner can read.

SHORTEST = 24


def read_or_make(path: Path) -> str:
    """The token in the file, generated at random the first time, so that clients can keep theirs. Raises AppError."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            path.chmod(0o600)
        else:
            with os.fdopen(handle, "w", encoding="ascii") as file:
                file.write(secrets.token_urlsafe(32) + "\n")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, ValueError) as error:
        raise AppError(f"The endpoint's token cannot be kept in {path} ({error}). Remove the file.") from error
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise AppError(f"{path} holds no token. Remove the file; a new one is made.")
    return token


# The HTTP side: who may ask, and answers in OpenAI's format.

HOST = "127.0.0.1"
LARGEST_BODY = 2**20
BODY_S = 10.0
SHUTDOWN_S = 1.0
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


EXPECTED = (
    msgspec.MsgspecError,
    UnicodeDecodeError,
    RecursionError,
    TimeoutError,
    BadRequest,
    TooMany,
    BackendError,
)
"""Errors in a request that are not bugs here."""


def _refusal(error: Exception) -> tuple[int, str, str]:
    """(status, code, message) for one of EXPECTED."""
    if isinstance(error, TimeoutError):
        return 408, "too_slow", f"The request was not complete after {BODY_S:g} s."
    if isinstance(error, TooMany):
        return 503, "busy", "Too many requests wait for this model. Try again later."
    if isinstance(error, Cancelled):
        return 503, "stopping", "The endpoint is being stopped."
    return 400, "refused_by_model" if isinstance(error, BackendError) else "bad_request", str(error)


def error_response(status: int, code: str, message: str) -> web.Response:
    """An error in the format that OpenAI's clients read."""
    kind = {401: "authentication_error", 503: "overloaded_error", 500: "server_error"}.get(
        status, "invalid_request_error"
    )
    body = {"error": {"message": message, "type": kind, "param": None, "code": code}}
    headers = {"Retry-After": "1"} if status == web.HTTPServiceUnavailable.status_code else {}
    return _json(body, status, headers)


def _json(value: object, status: int = 200, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=status, body=msgspec.json.encode(value), content_type="application/json", headers=headers
    )


class ChatEndpoint:
    """Serves one model on 127.0.0.1. Use `async with`; url is known inside."""

    def __init__(self, answering: ChatService, model: str, token: str, port: int = 0) -> None:
        """model: the name that clients see. port: 0 is any free one."""
        self._answering, self._model, self._token, self._port = answering, model, token, port
        self._created = int(time.time())
        self._runner: web.AppRunner | None = None
        self._connections: FewConnections | None = None

    @property
    def url(self) -> str:
        """The base URL for OpenAI clients."""
        return f"http://{HOST}:{self._port}/v1"

    async def __aenter__(self) -> ChatEndpoint:
        """Raises AppError when the port is taken."""
        app = web.Application(client_max_size=LARGEST_BODY, middlewares=[self._guard])
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/v1/models/{model:.+}", self._one_model)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = server_runner(app, "sapo.endpoint", shutdown_timeout=SHUTDOWN_S, handler_cancellation=True)
        await self._runner.setup()
        try:
            bound = socket.create_server((HOST, self._port))
        except OSError as error:
            await self._runner.cleanup()
            raise AppError(
                f"Cannot listen on {HOST}:{self._port} ({error.strerror}). Choose another port with --port."
            ) from error
        self._port = bound.getsockname()[1]
        assert self._runner.server is not None
        self._connections = await FewConnections(self._runner.server, bound).__aenter__()
        return self

    async def __aexit__(self, *exc: object) -> None:
        """Ends answers in flight."""
        if self._connections is not None:
            await self._connections.__aexit__(*exc)
        if self._runner is not None:
            await self._runner.cleanup()

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Only this machine's names (another site's page may point its own name here), only with the token."""
        if request.headers.get("Host", "") not in {f"{name}:{self._port}" for name in (HOST, "localhost")}:
            return error_response(421, "wrong_host", "This endpoint answers on 127.0.0.1 only.")
        token = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self._token.encode()):
            return error_response(
                401, "invalid_api_key", "The token is missing or wrong. sapo-desktop serve-model says where it is."
            )
        if "Content-Encoding" in request.headers:
            return error_response(415, "content_encoding", "Send the body as it is.")
        assert self._connections is not None
        try:
            with self._connections.answering(request):
                return await handler(request)
        except web.HTTPException as error:
            return error_response(error.status, "refused", error.text or error.reason)

    async def _models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._about()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._model:
            return error_response(404, "model_not_found", f"Only {self._model} is served here.")
        return _json(self._about())

    def _about(self) -> dict[str, object]:
        return {"id": self._model, "object": "model", "created": self._created, "owned_by": "sapo-desktop"}

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            with self._answering.place():
                async with asyncio.timeout(BODY_S):
                    body = await request.read()
                chat = msgspec.json.decode(body, type=ChatRequest)
                if chat.model not in ("", self._model):
                    return error_response(
                        404, "model_not_found", f"Only {self._model} is served here, not the model asked for."
                    )
                return await self._answered(request, chat)
        except EXPECTED as error:
            status, code, message = _refusal(error)
            return error_response(status, code, message)

    async def _answered(self, request: web.Request, asked: ChatRequest) -> web.StreamResponse:
        """The response to a request. Raises EXPECTED."""
        if asked.stream and (asked.n or 1) > 1:
            raise BadRequest("A stream holds one completion: leave out n.")
        prompt = await asyncio.to_thread(self._answering.prompt, asked)  # tokenizing a long conversation takes a while
        seed = secrets.randbits(31) if asked.seed is None else asked.seed
        if asked.stream:
            return await self._stream(request, asked, prompt, seed)
        return _json(self._completed(await self._answering.whole(asked, prompt, seed), len(prompt)))

    def _completed(self, answers: list[EndpointAnswer], prompt: int) -> ChatCompletion:
        choices = [
            CompletionChoice(i, AssistantMessage("assistant", answer.text), answer.finish or "length")
            for i, answer in enumerate(answers)
        ]
        tokens = sum(answer.tokens for answer in answers)
        usage = CompletionUsage(prompt, tokens, prompt + tokens)
        return ChatCompletion(id=_id(), created=int(time.time()), model=self._model, choices=choices, usage=usage)

    async def _stream(
        self, request: web.Request, asked: ChatRequest, prompt: list[int], seed: int
    ) -> web.StreamResponse:
        """Server-sent events; the first is sent once there is a first piece, so that earlier errors have a status code."""
        answers = self._answering.stream(asked, prompt, seed)
        name, created, sent = _id(), int(time.time()), ""
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(choices: list[ChunkChoice], usage: CompletionUsage | None = None) -> None:
            chunk = ChatCompletionChunk(id=name, created=created, model=self._model, choices=choices, usage=usage)
            await reply.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")

        try:
            async for answer in answers:
                if not reply.prepared:
                    await reply.prepare(request)
                    await send([ChunkChoice(ChoiceDelta(role="assistant"))])
                if len(answer.text) > len(sent):
                    await send([ChunkChoice(ChoiceDelta(content=answer.text[len(sent) :]))])
                    sent = answer.text
                if answer.finish is not None:
                    await send([ChunkChoice(ChoiceDelta(), answer.finish)])
                    if asked.stream_options is not None and asked.stream_options.include_usage:
                        await send([], CompletionUsage(len(prompt), answer.tokens, len(prompt) + answer.tokens))
            await reply.write(b"data: [DONE]\n\n")
        except BackendError as error:
            if not reply.prepared:
                raise
            await reply.write(b"data: " + msgspec.json.encode({"error": {"message": str(error)}}) + b"\n\n")
        except ConnectionResetError:
            pass  # the client left; the next piece is not generated
        finally:
            await answers.aclose()
        return reply


def _id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"
