"""A judge on 127.0.0.1: OpenAI's chat completions over a real socket, with the verdicts and the faults that a test asks for."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from aiohttp import web


class JudgeServer:
    """says: from (question, answer) to the text of a reply. status: of the next replies. messages: all that it was asked."""

    def __init__(self, says: Callable[[str, str], str], key: str = "") -> None:
        self.says, self.key = says, key
        self.status: list[int] = []
        self.messages: list[str] = []
        self.raw: bytes | None = None
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """POST /v1/chat/completions."""
        asked = await request.json()
        if self.key and request.headers.get("Authorization") != f"Bearer {self.key}":
            return web.Response(status=401)
        if self.status and (status := self.status.pop(0)) != web.HTTPOk.status_code:
            return web.Response(status=status, headers={"Location": "http://127.0.0.1:1/"})
        if self.raw is not None:
            return web.Response(body=self.raw, content_type="application/json")
        message = asked["messages"][0]["content"]
        self.messages.append(message)
        found = re.search(r"(=== \w+) question\n(.*)\n\1 answer\n(.*)\n\1 end", message, re.DOTALL)
        assert found is not None
        reply = {"role": "assistant", "content": self.says(found[2], found[3])}
        return web.json_response({"choices": [{"index": 0, "message": reply}], "usage": {"total_tokens": 100}})


@asynccontextmanager
async def judge_server(says: Callable[[str, str], str], key: str = "") -> AsyncIterator[JudgeServer]:
    """A running one; url is its address up to /v1."""
    server = JudgeServer(says, key)
    app = web.Application(client_max_size=2**20)
    app.router.add_post("/v1/chat/completions", server.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    server.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    try:
        yield server
    finally:
        await runner.cleanup()
