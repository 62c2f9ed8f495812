"""A model behind OpenAI's chat completions: a real server on a real socket, real engines."""

from __future__ import annotations

import asyncio
import io
import json
import os
import stat
import subprocess
import sys
import threading
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.support.node_process import FAKE, environment, sapo

from sapo_backends import registry
from sapo_backends.base import Completion, LoadRequest, Sampling
from sapo_backends.fake import FakeEngine
from sapo_desktop.errors import AppError
from sapo_desktop.services.models.endpoint import WAITING, ChatEndpoint, ChatService, read_or_make
from sapo_desktop.services.models.pieces import FIRST_PIECE
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.servers import MOST

TOKEN = "a-token-of-the-tests-and-of-nobody-else"
ASK = {"messages": [{"role": "user", "content": "Calculate 12 + 7 - 5."}], "temperature": 0}


class Client:
    """Speaks to one endpoint."""

    def __init__(self, session: aiohttp.ClientSession, endpoint: ChatEndpoint, host: EngineThread) -> None:
        self.session, self.url, self.host = session, endpoint.url, host

    async def chat(
        self, headers: dict[str, str] | None = None, data: bytes | None = None, **more: Any
    ) -> tuple[int, Any]:
        """Status and body of POST /v1/chat/completions."""
        body = data if data is not None else json.dumps({**ASK, **more}).encode()
        async with self.session.post(f"{self.url}/chat/completions", data=io.BytesIO(body), headers=headers) as reply:
            return reply.status, json.loads(await reply.read())

    async def stream(self, **more: Any) -> list[dict[str, Any]]:
        """The chunks of a stream, which ends as OpenAI's do."""
        async with self.session.post(f"{self.url}/chat/completions", json={**ASK, "stream": True, **more}) as reply:
            assert reply.content_type == "text/event-stream"
            events = [line.removeprefix("data: ") for line in (await reply.text()).split("\n\n") if line]
        assert events.pop() == "[DONE]"
        return [json.loads(event) for event in events]


@asynccontextmanager
async def served(backend: str = "fake", model: str = "fake") -> AsyncIterator[Client]:
    """An endpoint with a fresh engine that only generates."""
    host = EngineThread()
    request = LoadRequest(model=model, method="none", device="cpu", threads=1, precision="float32")
    await host.load(lambda: registry.get_backend(backend)().load(request))
    try:
        async with ChatEndpoint(ChatService(host), "my-model", TOKEN) as endpoint:
            headers = {"Authorization": f"Bearer {TOKEN}"}
            async with aiohttp.ClientSession(headers=headers) as session:
                yield Client(session, endpoint, host)
    finally:
        await host.close()


def joined(chunks: list[dict[str, Any]]) -> str:
    """The text of a stream."""
    return "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks if chunk["choices"])


async def test_an_answer_is_what_the_engine_generates() -> None:
    """Text, finish reason and token counts, in OpenAI's shape."""
    async with served() as client:
        engine = client.host.engine
        prompt = engine.tokenizer.encode_chat(ASK["messages"])  # type: ignore[arg-type]
        expected = engine.generate([prompt], 1, Sampling(0.0, 1.0, 20), seed=3)[0][0]
        status, body = await client.chat(seed=3, max_tokens=20)
        assert status == 200
        (choice,) = body["choices"]
        assert choice["message"] == {"role": "assistant", "content": engine.tokenizer.decode(expected.tokens)}
        assert choice["finish_reason"] == expected.finish
        assert body["usage"]["prompt_tokens"] == len(prompt)
        assert body["usage"]["completion_tokens"] == len(expected.tokens)
        assert (body["object"], body["model"]) == ("chat.completion", "my-model")
        _, several = await client.chat(n=3, temperature=1.5, max_completion_tokens=9)
        assert [choice["index"] for choice in several["choices"]] == [0, 1, 2]


async def test_a_stream_is_the_same_answer_in_pieces() -> None:
    """Greedily, although each piece computes the conversation again; the last chunk counts if asked."""
    pytest.importorskip("torch")
    async with served("torch", "starter-1m") as client:
        _, whole = await client.chat(max_tokens=60)
        chunks = await client.stream(max_tokens=60, stream_options={"include_usage": True})
        assert joined(chunks) == whole["choices"][0]["message"]["content"]
        assert len(joined(chunks)) > 20
        assert sum("content" in chunk["choices"][0]["delta"] for chunk in chunks if chunk["choices"]) >= 2
        assert chunks[0]["choices"][0]["delta"] == {"role": "assistant"}
        assert chunks[-2]["choices"][0]["finish_reason"] == whole["choices"][0]["finish_reason"]
        assert chunks[-1]["usage"] == whole["usage"]
        assert len({chunk["id"] for chunk in chunks}) == 1


async def test_a_stop_text_ends_an_answer_and_is_not_shown() -> None:
    """In a stream too, where it begins in one piece and ends in the next."""
    pytest.importorskip("torch")
    async with served("torch", "starter-1m") as client:
        engine = client.host.engine
        prompt = engine.tokenizer.encode_chat(ASK["messages"])  # type: ignore[arg-type]
        tokens = engine.generate([prompt], 1, Sampling(0.0, 1.0, 60), seed=0)[0][0].tokens
        text, first = engine.tokenizer.decode(tokens), len(engine.tokenizer.decode(tokens[:FIRST_PIECE]))
        stop = text[first - 6 : first + 2]
        before = text[: first - 6]
        assert stop not in before
        _, cut = await client.chat(max_tokens=60, stop=["never said", stop])
        assert cut["choices"][0]["message"]["content"] == before
        assert cut["choices"][0]["finish_reason"] == "stop"
        chunks = await client.stream(max_tokens=60, stop=stop)
        assert joined(chunks) == before
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"


async def test_only_this_machine_with_the_token_is_answered() -> None:
    """No token, a wrong one, another site's name for this address."""
    async with served() as client:
        for wrong in ("", "Bearer ", "Bearer wrong", f"Bearer {TOKEN}x", "Bearer \udcff"):
            status, body = await client.chat(headers={"Authorization": wrong})
            assert (status, body["error"]["code"]) == (401, "invalid_api_key")
        status, _ = await client.chat(headers={"Host": "evil.example"})
        assert status == 421
        assert client.url.startswith("http://127.0.0.1:")


async def test_models_are_listed_by_name() -> None:
    """As clients ask before they chat."""
    async with served() as client:
        async with client.session.get(f"{client.url}/models") as reply:
            (model,) = (await reply.json())["data"]
        assert (model["id"], model["object"]) == ("my-model", "model")
        async with client.session.get(f"{client.url}/models/my-model") as reply:
            assert await reply.json() == model
        for path in ("models/other", "nothing/here"):
            async with client.session.get(f"{client.url}/{path}") as reply:
                assert reply.status == 404
                assert "error" in await reply.json()
        assert (await client.chat(model="gpt-4"))[0] == 404
        assert (await client.chat(model="my-model", max_tokens=2, user="x", tools=None))[0] == 200


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[" * 100_000, 400),
        (b"\xff", 400),
        (json.dumps({"messages": []}).encode(), 400),
        (json.dumps({"messages": [{"role": "tool", "content": "x"}]}).encode(), 400),
        (json.dumps({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}).encode(), 400),
        (json.dumps({**ASK, "temperature": 9}).encode(), 400),
        (json.dumps({**ASK, "n": 1000}).encode(), 400),
        (json.dumps({**ASK, "max_tokens": 10**30}).encode(), 400),
        (json.dumps({**ASK, "stream": True, "n": 2}).encode(), 400),
        (json.dumps({"messages": [{"role": "user", "content": "much " * 9000}]}).encode(), 400),
        (b" " * (2**20 + 1), 413),
    ],
)
async def test_bad_requests_are_told_and_harm_nothing(data: bytes, status: int) -> None:
    """An error in OpenAI's shape, and the next request is answered."""
    async with served() as client:
        found, body = await client.chat(data=data)
        assert found == status
        assert body["error"]["message"]
        packed = await client.chat(headers={"Content-Encoding": "gzip"}, data=b"x")
        assert packed[0] == 415
        assert (await client.chat(max_tokens=2))[0] == 200


async def test_text_parts_and_the_developer_role_are_understood() -> None:
    """As newer clients write them."""
    async with served() as client:
        parts = [{"type": "text", "text": "Calculate 12 "}, {"type": "text", "text": "+ 7 - 5."}]
        plain = await client.chat(max_tokens=9, messages=[{"role": "system", "content": "Be short."}, *ASK["messages"]])  # type: ignore[misc]
        newer = [{"role": "developer", "content": "Be short."}, {"role": "user", "content": parts}]
        assert (await client.chat(max_tokens=9, messages=newer))[1]["usage"] == plain[1]["usage"]


class Watched(FakeEngine):
    """Tells when it begins to generate."""

    began = threading.Event()

    def generate(self, *args: Any, **more: Any) -> list[list[Completion]]:
        self.began.set()
        return super().generate(*args, **more)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_gives_the_engine_back(stream: bool) -> None:
    """The answer in flight would take two minutes."""
    async with served(model="fake:0.25") as client, asyncio.timeout(30):
        engine = Watched(LoadRequest(model="fake:0.5", method="none"))
        await client.host.load(lambda: engine)
        leaving = asyncio.ensure_future(client.chat(temperature=2, max_tokens=256, stream=stream))
        await asyncio.to_thread(engine.began.wait)
        leaving.cancel()
        engine.began.clear()
        assert (await client.chat(max_tokens=1))[0] == 200


async def test_silent_connections_of_anybody_give_way_to_those_with_the_token() -> None:
    async with served(model="fake:0.25") as client, asyncio.timeout(60):
        asked = asyncio.ensure_future(client.chat(temperature=2, max_tokens=4))
        port = int(client.url.split(":")[2].split("/")[0])
        silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(3 * MOST)]
        assert [await reader.read() for reader, _ in silent[:MOST]] == [b""] * MOST
        assert (await asked)[0] == 200
        for _, writer in silent:
            writer.close()


async def test_a_full_queue_is_said_at_once() -> None:
    """So many wait, the next is sent away, and all who waited are answered."""
    async with served(model="fake:0.01") as client, asyncio.timeout(60):
        asked = [client.chat(max_tokens=3, seed=i) for i in range(3 * WAITING)]
        statuses = [status for status, _ in await asyncio.gather(*asked)]
        assert statuses.count(200) >= WAITING
        assert set(statuses) == {200, 503}
        assert (await client.chat(max_tokens=1))[0] == 200


async def test_a_body_that_does_not_arrive_has_its_place_in_the_line() -> None:
    """Else any number of large bodies are read, and split into tokens, at once."""
    async with served() as client, asyncio.timeout(60):
        port = int(client.url.split(":")[2].split("/")[0])
        head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nAuthorization: Bearer {TOKEN}\r\n"
        begun = [await asyncio.open_connection("127.0.0.1", port) for _ in range(WAITING)]
        for _, writer in begun:
            writer.write(f"{head}Content-Length: 1000000\r\n\r\n[".encode())
        while (await client.chat(max_tokens=1))[0] == 200:
            continue
        for _, writer in begun:
            writer.close()
        while (await client.chat(max_tokens=1))[0] == 503:
            continue


async def test_a_taken_port_is_a_sentence() -> None:
    """With the flag that helps."""
    async with served() as client:
        port = int(client.url.split(":")[2].split("/")[0])
        with pytest.raises(AppError, match="--port"):
            async with ChatEndpoint(ChatService(client.host), "other", TOKEN, port):
                pass


def test_the_token_is_made_once_and_read_by_its_owner_alone(tmp_path: Path) -> None:
    """A file that others could read is closed; one that holds something else is refused."""
    path = tmp_path / "config" / "endpoint-token"
    token = read_or_make(path)
    assert len(token) >= 40
    path.chmod(0o644)
    assert read_or_make(path) == token
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    path.write_text("short\n")
    with pytest.raises(AppError, match="Remove the file"):
        read_or_make(path)


def test_the_verb_serves_until_it_is_stopped(tmp_path: Path) -> None:
    """As a person types it; another program asks; SIGTERM ends it in order."""
    ran = sapo(tmp_path, "node", *FAKE, "--rounds", "1", "--local-groups", "2", "--quiet")
    assert ran.returncode == 0, ran.stderr
    command = [sys.executable, "-m", "sapo_desktop", "serve-model", "--port", "0"]
    with subprocess.Popen(command, env=environment(tmp_path), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        told = [process.stdout.readline() for _ in range(4)]
        url = told[1].split()[-1]
        token_file = Path(told[2].split(" in ", 1)[1].strip())
        request = urllib.request.Request(
            f"{url}/chat/completions",
            data=json.dumps({**ASK, "max_tokens": 5}).encode(),
            headers={"Authorization": f"Bearer {token_file.read_text().strip()}", "Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=30) as reply:
            assert json.loads(reply.read())["choices"][0]["message"]["role"] == "assistant"
        assert token_file.read_text().strip() not in "".join(told)
        process.terminate()
        assert process.wait(timeout=30) == 0
    assert os.stat(token_file).st_mode & 0o077 == 0
