"""Gate 4: bombs and slow clients. Memory stays, other clients hardly notice."""

from __future__ import annotations

import asyncio
import gzip
import secrets
import time
from collections import Counter

import aiohttp
import zstandard
from common import Gate, Server, serving
from tests.support.simulated_nodes import SimNode, SimReport, open_session

from sapo_swarm.protocol.wire import H_PROTO, MEDIA_TYPE, sha256_hex


def frame(data: bytes, declared: bool = True) -> bytes:
    return zstandard.ZstdCompressor(level=3, write_content_size=declared).compress(data)


def lying_frame(blocks: int) -> bytes:
    """Declares a kilobyte; every four bytes unpack to 128 KiB."""
    header = b"\x28\xb5\x2f\xfd" + bytes([0b1010_0000]) + (1000).to_bytes(4, "little")
    block = ((128 * 1024) << 3 | 1 << 1).to_bytes(3, "little") + b"A"
    return header + block * blocks + ((128 * 1024) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"A"


def bombs() -> dict[str, bytes]:
    """Bodies by name; all fit the limit on compressed bytes where they can."""
    big = bytes(64 * 2**20)
    return {
        "zstd, 64 MiB declared": frame(big),
        "zstd, undeclared": frame(big, declared=False),
        "zstd, many frames": frame(bytes(2**20)) * 1000,
        "zstd, lies about its size": lying_frame(60_000),
        "zstd, one byte too many": frame(bytes(2**20 + 1)),
        "gzip": gzip.compress(big),
        "deep msgpack": frame(b"\x91" * 1_000_000),
        "giant array": frame(b"\xdd\xff\xff\xff\xff" + bytes(100)),
        "giant string": frame(b"\xdb\xff\xff\xff\xff" + bytes(100)),
        "a million nils": frame(b"\xdd\x00\x0f\x00\x00" + b"\xc0" * 983_040),
        "random": secrets.token_bytes(200_000),
        "too long": bytes(300_000),
    }


async def honest(server: Server, seconds: float, report: SimReport, players: list[SimNode]) -> None:
    """Ten nodes, ten rounds a second each; at least one, however slow the machine is."""
    end = time.monotonic() + seconds

    async def play(player: SimNode) -> None:
        while True:
            await player.send(player.prepare(), report)
            await asyncio.sleep(0.1)
            if time.monotonic() >= end:
                return

    await asyncio.gather(*(play(player) for player in players))
    report.seconds = seconds


async def throw(server: Server, player: SimNode, seconds: float, seen: Counter[str]) -> None:
    """Signed bombs, one after another: a member of the swarm turned hostile."""
    bodies, end = list(bombs().items()), time.monotonic() + seconds
    async with aiohttp.ClientSession(server.invite.url) as session:
        turn = 0
        while time.monotonic() < end:
            name, body = bodies[turn % len(bodies)]
            turn += 1
            path = f"/v1/rounds/{sha256_hex(body)}"
            headers = player._headers("PUT", path, body) | {H_PROTO: "1", "Content-Type": MEDIA_TYPE}
            if name == "gzip":
                headers["Content-Encoding"] = "gzip"
            try:
                async with session.put(path, data=body, headers=headers) as response:
                    await response.read()
                    seen[f"{name}: {response.status}"] += 1
            except aiohttp.ClientError:
                seen[f"{name}: closed"] += 1  # the answer came before the whole body went out
            async with session.post("/v1/join", data=b"[" * 16_000, headers=headers) as response:
                seen[f"deep JSON: {response.status}"] += 1
            await asyncio.sleep(0.05)


async def crawl(server: Server, seconds: float, connections: int) -> None:
    """Slowloris: heads and bodies that never end, and a body without a length."""
    tasks = [asyncio.create_task(_one_crawler(server, seconds, kind % 3)) for kind in range(connections)]
    await asyncio.gather(*tasks)


async def _one_crawler(server: Server, seconds: float, kind: int) -> None:
    end = time.monotonic() + seconds
    start = f"PUT /v1/rounds/{'0' * 64} HTTP/1.1\r\nHost: x\r\nSapo-Proto: 1\r\nContent-Type: {MEDIA_TYPE}\r\n"
    head = [start, start + "Content-Length: 200000\r\n\r\n", start + "Transfer-Encoding: chunked\r\n\r\n"][kind]
    drip = [b"X-A: b\r\n", b"a", b"1\r\na\r\n"][kind]
    try:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(head.encode())
        while time.monotonic() < end:
            writer.write(drip)
            await writer.drain()
            await asyncio.sleep(0.5)
        writer.close()
    except OSError:
        return  # the coordinator closed it


async def attack(server: Server, seconds: float, crawlers: int) -> tuple[SimReport, SimReport, int, Counter[str]]:
    """Honest nodes alone, then beside the attackers: both reports, growth of memory, answers to bombs."""
    alone, beside, seen = SimReport(10), SimReport(10), Counter[str]()
    async with open_session(server.invite, 20) as session:
        players = [SimNode(session, server.invite, 4, 4) for _ in range(11)]
        for player in players:
            await player.join()
        await honest(server, seconds, alone, players[:10])
        before = server.rss
        await asyncio.gather(
            honest(server, seconds, beside, players[:10]),
            throw(server, players[10], seconds, seen),
            crawl(server, seconds, crawlers),
        )
    return alone, beside, server.rss - before, seen


def run(quick: bool, store: str) -> Gate:
    gate = Gate(4, f"bombs and slow clients ({store})")
    seconds, crawlers = (1.0, 30) if quick else (30.0, 500)
    with serving(store, round_every_s=0.001, round_burst=1_000_000) as server:
        alone, beside, growth, seen = asyncio.run(attack(server, seconds, crawlers))
    gate.figures |= {
        "honest nodes alone": alone.summary(),
        "beside the attackers": beside.summary(),
        "growth of memory": f"{growth / 2**20:.1f} MiB",
        "answers": ", ".join(f"{name} x{count}" for name, count in sorted(seen.items())),
    }
    gate.demands |= {
        "memory grows by at most 64 MiB": growth <= 64 * 2**20,
        "no bomb accepted, no 5xx": not any(name.split(": ")[1].startswith(("2", "5")) for name in seen),
        "honest nodes meet no error": not beside.errors and beside.rounds >= beside.nodes,
        "their p99 at most doubles": quick or beside.quantile(0.99) <= 2 * alone.quantile(0.99),
    }
    return gate
