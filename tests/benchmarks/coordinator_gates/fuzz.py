"""Gate 5: fuzz over every endpoint and over the node's own parser: no 5xx, nothing uncaught, nothing slow."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter

import aiohttp
import msgspec
from common import Gate, Server, serving
from tests.support.openapi import openapi_document
from tests.support.simulated_nodes import SimNode, open_session, sim_group

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import (
    MEDIA_TYPE,
    RoundReply,
    SignedGroup,
    WireError,
    decode_message,
    decompress_body,
    encode_message,
    sha256_hex,
    unpack_msgpack,
)

METHODS = ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH")
ODD = ("", "0", "-1", "1e999", "\u00e9", "a" * 3000, "%00", "../..", "null", "{}", "[]", "\x7f", "9" * 40)


def mutated(data: bytes, rng: random.Random) -> bytes:
    """A few bytes changed, inserted, removed or repeated."""
    out = bytearray(data)
    for _ in range(rng.randrange(1, 6)):
        place = rng.randrange(len(out) + 1)
        match rng.randrange(4):
            case 0 if place < len(out):
                out[place] = rng.randrange(256)
            case 1:
                out[place:place] = rng.randbytes(rng.randrange(1, 9))
            case 2:
                del out[place : place + rng.randrange(1, 9)]
            case _:
                out[place:place] = out[place : place + rng.randrange(64)]
    return bytes(out)


class Fuzzer:
    """Requests between nonsense and nearly right. Signed ones reach the decoder behind the signature."""

    def __init__(self, player: SimNode, rng: random.Random) -> None:
        self.player = player
        self.rng = rng
        self.paths = [path.replace("{id}", "0" * 64) for path in openapi_document()["paths"] if path != "/events"]

    def make(self) -> tuple[str, str, bytes, dict[str, str]]:
        rng = self.rng
        if rng.random() < 0.4:
            return self._nearly_right()
        path = rng.choice([*self.paths, "/v1/rounds/" + rng.choice(ODD), "/" + rng.choice(ODD)])
        headers = {"Sapo-Proto": rng.choice(["1", "1", "1", "2", "x"])}
        for name in ("Sapo-Node", "Sapo-Time", "Sapo-Nonce", "Sapo-Signature", "Authorization", "X-Forwarded-For"):
            if rng.random() < 0.4:
                headers[name] = "".join(c for c in rng.choice(ODD) if " " <= c < "\x7f")
        if rng.random() < 0.5:
            headers["Content-Type"] = rng.choice([MEDIA_TYPE, "application/json", "text/plain", "x/y;z=é"])
        return rng.choice(METHODS), path, rng.randbytes(rng.randrange(200)), headers

    def _nearly_right(self) -> tuple[str, str, bytes, dict[str, str]]:
        """A signed request whose body is a mutated one, inside or outside the compression."""
        rng = self.rng
        _, body, _ = self.player.prepare()
        import zstandard

        if rng.random() < 0.7:
            body = zstandard.ZstdCompressor(level=1).compress(mutated(decompress_body(body), rng))
        else:
            body = mutated(body, rng)
        if rng.random() < 0.2:
            path, method, media = "/v1/join", "POST", "application/json"
            body = mutated(b'{"key":"' + self.player.identity.public_key.hex().encode() + b'","name":"x"}', rng)
        else:
            path, method, media = f"/v1/rounds/{sha256_hex(body)}", "PUT", MEDIA_TYPE
        headers = self.player._headers(method, path, body) | {"Sapo-Proto": "1", "Content-Type": media}
        return method, path, body, headers


async def raw_garbage(server: Server, rng: random.Random, times: int) -> int:
    """Bytes that are hardly HTTP; how many connections were answered with 5xx."""
    bad = 0
    starts = (b"", b"GET / HTTP/1.1\r\n", b"PUT /v1/rounds/x HTTP/1.1\r\nContent-Length: -1\r\n", b"\x16\x03\x01")
    for _ in range(times):
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(rng.choice(starts) + rng.randbytes(rng.randrange(1, 300)) + b"\r\n\r\n")
            writer.write_eof()
            answer = await asyncio.wait_for(reader.read(400), 10)
            bad += answer.startswith(b"HTTP/1.1 5") or answer.startswith(b"HTTP/1.0 5")
            writer.close()
        except (OSError, TimeoutError):
            continue
    return bad


async def shoot(server: Server, times: int) -> tuple[Counter[int], float, int]:
    """Statuses, the slowest answer in seconds, raw connections answered with 5xx."""
    rng, statuses, slowest = random.Random(5), Counter[int](), 0.0
    async with open_session(server.invite, 8) as session:
        player = SimNode(session, server.invite, 1, 1)
        await player.join()
        fuzzer = Fuzzer(player, rng)
        async with aiohttp.ClientSession(server.invite.url) as bare:
            for _ in range(times):
                method, path, body, headers = fuzzer.make()
                started = time.perf_counter()
                try:
                    async with bare.request(method, path, data=body, headers=headers) as response:
                        await response.read()
                        statuses[response.status] += 1
                except (aiohttp.ClientError, ValueError):
                    statuses[0] += 1  # the client library would not send it, or the connection was closed
                slowest = max(slowest, time.perf_counter() - started)
        bad = await raw_garbage(server, rng, times // 10)
        async with session.get("/healthz") as response:
            assert response.status == 200
    return statuses, slowest, bad


def parse_replies(times: int) -> int:
    """The node's parser on mutated answers of a coordinator: how many raised anything but WireError."""
    rng, node, uncaught = random.Random(6), Identity.generate(), 0
    groups = [msgspec.Raw(msgspec.msgpack.encode(sim_group(node, "a" * 16, 1, slot))) for slot in range(3)]
    reply = RoundReply(
        results=(),
        sample=groups,
        receipts=(),
        uptake=0,
        mine=0,
        total=0,
        window_s=1.0,
        nodes=0,
        rounds_per_s=0.0,
        pool=0,
        next_in_s=1.0,
    )
    packed = encode_message(reply)
    raw = decompress_body(packed)
    for _ in range(times):
        try:
            for group in unpack_msgpack(mutated(raw, rng), RoundReply).sample:
                unpack_msgpack(group, SignedGroup)
            decode_message(mutated(packed, rng), RoundReply)
        except WireError:
            continue
        except Exception:
            uncaught += 1
    return uncaught


def run(quick: bool, store: str) -> Gate:
    gate = Gate(5, f"fuzz ({store})")
    times = 400 if quick else 20_000
    with serving(store, round_every_s=0.001, round_burst=1_000_000) as server:
        statuses, slowest, bad = asyncio.run(shoot(server, times))
    uncaught = parse_replies(5 * times)
    gate.figures |= {
        "statuses": dict(sorted(statuses.items())),
        "slowest answer": f"{1000 * slowest:.0f} ms",
        "node's parser, mutated replies": 5 * times,
    }
    gate.demands |= {
        "no 5xx": not bad and not any(status >= 500 for status in statuses),
        "nothing uncaught in the node's parser": uncaught == 0,
        "no answer slower than a second": quick or slowest <= 1.0,
    }
    return gate
