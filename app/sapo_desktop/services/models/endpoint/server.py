"""The HTTP side: who may ask (the token in a file that only its owner reads), what is answered, in OpenAI's shapes."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import socket
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import msgspec
from aiohttp import web

from sapo_backends.errors import BackendError, Cancelled
from sapo_desktop.errors import AppError
from sapo_desktop.services.models.endpoint.answering import Answer, Answering, BadRequest, TooMany
from sapo_desktop.services.models.endpoint.messages import (
    ChatRequest,
    Choice,
    Chunk,
    ChunkChoice,
    Completed,
    Delta,
    Reply,
    Usage,
)
from sapo_swarm.servers import FewConnections, server_runner

# The token that clients of the endpoint send: in a file that only its owner reads.

SHORTEST = 24


def read_or_make(path: Path) -> str:
    """The token in the file, made at random the first time, so that clients keep theirs. Raises AppError."""
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


# The HTTP side: who may ask, what is answered, in OpenAI's shapes.

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
"""What a request may run into that is no mistake of ours."""


def _refusal(error: Exception) -> tuple[int, str, str]:
    """(status, code, message) of one of EXPECTED."""
    if isinstance(error, TimeoutError):
        return 408, "too_slow", f"The request was not complete after {BODY_S:g} s."
    if isinstance(error, TooMany):
        return 503, "busy", "Too many requests wait for this model. Try again later."
    if isinstance(error, Cancelled):
        return 503, "stopping", "The endpoint is being stopped."
    return 400, "refused_by_model" if isinstance(error, BackendError) else "bad_request", str(error)


def problem(status: int, code: str, message: str) -> web.Response:
    """An error as OpenAI's clients read it."""
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


class Endpoint:
    """Serves one model on 127.0.0.1. Use `async with`; url is known inside."""

    def __init__(self, answering: Answering, model: str, token: str, port: int = 0) -> None:
        """model: the name that clients see. port: 0 is any free one."""
        self._answering, self._model, self._token, self._port = answering, model, token, port
        self._created = int(time.time())
        self._runner: web.AppRunner | None = None
        self._connections: FewConnections | None = None

    @property
    def url(self) -> str:
        """What OpenAI's clients call the base URL."""
        return f"http://{HOST}:{self._port}/v1"

    async def __aenter__(self) -> Endpoint:
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
            return problem(421, "wrong_host", "This endpoint answers on 127.0.0.1 only.")
        given = request.headers.get("Authorization", "").removeprefix("Bearer ").strip()
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), self._token.encode()):
            return problem(
                401, "invalid_api_key", "The token is missing or wrong. sapo-desktop serve-model says where it is."
            )
        if "Content-Encoding" in request.headers:
            return problem(415, "content_encoding", "Send the body as it is.")
        assert self._connections is not None
        try:
            with self._connections.answering(request):
                return await handler(request)
        except web.HTTPException as error:
            return problem(error.status, "refused", error.text or error.reason)

    async def _models(self, _request: web.Request) -> web.Response:
        return _json({"object": "list", "data": [self._about()]})

    async def _one_model(self, request: web.Request) -> web.Response:
        if request.match_info["model"] != self._model:
            return problem(404, "model_not_found", f"Only {self._model} is served here.")
        return _json(self._about())

    def _about(self) -> dict[str, object]:
        return {"id": self._model, "object": "model", "created": self._created, "owned_by": "sapo-desktop"}

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        try:
            with self._answering.place():
                async with asyncio.timeout(BODY_S):
                    body = await request.read()
                asked = msgspec.json.decode(body, type=ChatRequest)
                if asked.model not in ("", self._model):
                    return problem(
                        404, "model_not_found", f"Only {self._model} is served here, not the model asked for."
                    )
                return await self._answered(request, asked)
        except EXPECTED as error:
            status, code, message = _refusal(error)
            return problem(status, code, message)

    async def _answered(self, request: web.Request, asked: ChatRequest) -> web.StreamResponse:
        """Raises EXPECTED."""
        if asked.stream and (asked.n or 1) > 1:
            raise BadRequest("A stream holds one completion: leave out n.")
        prompt = await asyncio.to_thread(self._answering.prompt, asked)  # a long conversation takes a while to split
        seed = secrets.randbits(31) if asked.seed is None else asked.seed
        if asked.stream:
            return await self._stream(request, asked, prompt, seed)
        return _json(self._completed(await self._answering.whole(asked, prompt, seed), len(prompt)))

    def _completed(self, answers: list[Answer], prompt: int) -> Completed:
        choices = [
            Choice(i, Reply("assistant", answer.text), answer.finish or "length") for i, answer in enumerate(answers)
        ]
        made = sum(answer.tokens for answer in answers)
        usage = Usage(prompt, made, prompt + made)
        return Completed(id=_id(), created=int(time.time()), model=self._model, choices=choices, usage=usage)

    async def _stream(
        self, request: web.Request, asked: ChatRequest, prompt: list[int], seed: int
    ) -> web.StreamResponse:
        """Server-sent events; the first is sent once there is a first piece, so that errors before it have a status."""
        answers = self._answering.stream(asked, prompt, seed)
        name, created, sent = _id(), int(time.time()), ""
        reply = web.StreamResponse(headers={"Content-Type": "text/event-stream", "Cache-Control": "no-cache"})

        async def send(choices: list[ChunkChoice], usage: Usage | None = None) -> None:
            chunk = Chunk(id=name, created=created, model=self._model, choices=choices, usage=usage)
            await reply.write(b"data: " + msgspec.json.encode(chunk) + b"\n\n")

        try:
            async for answer in answers:
                if not reply.prepared:
                    await reply.prepare(request)
                    await send([ChunkChoice(Delta(role="assistant"))])
                if len(answer.text) > len(sent):
                    await send([ChunkChoice(Delta(content=answer.text[len(sent) :]))])
                    sent = answer.text
                if answer.finish is not None:
                    await send([ChunkChoice(Delta(), answer.finish)])
                    if asked.stream_options is not None and asked.stream_options.include_usage:
                        await send([], Usage(len(prompt), answer.tokens, len(prompt) + answer.tokens))
            await reply.write(b"data: [DONE]\n\n")
        except BackendError as error:
            if not reply.prepared:
                raise
            await reply.write(b"data: " + msgspec.json.encode({"error": {"message": str(error)}}) + b"\n\n")
        except ConnectionResetError:
            pass  # the client left; the next piece was never asked for
        finally:
            await answers.aclose()
        return reply


def _id() -> str:
    return f"chatcmpl-{secrets.token_hex(12)}"
