"""What honest nodes feel while strangers flood a coordinator: python tests/benchmarks/floods.py [--seconds 8]

Twenty honest members exchange at a steady pace through a coordinator in a process of its own; then the same under each flood,
in turn (quiet, flood, quiet, flood), so that a busy machine touches both. Strangers come from six networks (X-Forwarded-For
of a trusted proxy on loopback). Prints a JSON line a flood: honest p99 quiet and flooded, refused honest requests, growth of the
resident memory, bytes of log. The exit code is 1 where p99 is over twice (and 20 ms over) the quiet one, memory grows by over
64 MB, an honest request is refused, or the log grows by over 64 KB.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import resource
import secrets
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import aiohttp

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
sys.path.insert(0, str(Path(__file__).parent / "coordinator_gates"))

from common import Server, start_server
from tests.support.simulated_nodes import SimNode, SimReport, open_session

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite, parse_invite
from sapo_swarm.protocol.wire import H_PROTO, MAX_BODY, MEDIA_TYPE, sha256_hex

HONEST, EVERY_S = 20, 0.5
NETWORKS = [f"203.0.{n}.7" for n in range(6)]
RATE = 280
"""Requests a second of all strangers together, as in the attack that was reported."""
IDLE, FEW_FILES = 2500, 1024
UNHINDERED = {"round_every_s": 0.001, "round_burst": 100_000, "trust_proxy": True}
Flood = Callable[[Invite, float], Awaitable[None]]


async def paced(rate: float, seconds: float, one: Callable[[int], Awaitable[None]]) -> None:
    """So many of them a second, however slow the answers are (at most 400 under way)."""
    began, number, running = time.monotonic(), 0, set()
    while (now := time.monotonic() - began) < seconds:
        while number < rate * now and len(running) < 400:
            task = asyncio.create_task(one(number))  # type: ignore[arg-type]
            running.add(task)
            task.add_done_callback(running.discard)
            number += 1
        await asyncio.sleep(0.005)
    for task in running:
        task.cancel()
    await asyncio.gather(*running, return_exceptions=True)


def headers(identity: Identity, invite: Invite, method: str, path: str, body: bytes, number: int) -> dict[str, str]:
    signed = identity.sign_request(method, path, invite.swarm, int(time.time() * 1000), body).headers()
    return signed | {H_PROTO: "1", "X-Forwarded-For": NETWORKS[number % 6]}


async def small_bodies(invite: Invite, seconds: float) -> None:
    """One byte each, before anybody knows who sends it."""
    await _bodies(invite, seconds, RATE, b"x", "/v1/join")


async def large_bodies(invite: Invite, seconds: float) -> None:
    """A quarter of a megabyte each, sixty a second, of nobody's."""
    await _bodies(invite, seconds, 60, secrets.token_bytes(MAX_BODY - 1024), "")


async def _bodies(invite: Invite, seconds: float, rate: float, body: bytes, path: str) -> None:
    stranger, connector = Identity.generate(), aiohttp.TCPConnector(limit=400)
    path, method = (path, "POST") if path else (f"/v1/rounds/{sha256_hex(body)}", "PUT")
    async with aiohttp.ClientSession(invite.url, connector=connector) as session:

        async def one(number: int) -> None:
            told = headers(stranger, invite, method, path, body, number) | {"Content-Type": MEDIA_TYPE}
            with contextlib.suppress(aiohttp.ClientError, OSError):
                async with session.request(method, path, data=body, headers=told) as reply:
                    await reply.read()

        await paced(rate, seconds, one)


async def slow_bodies(invite: Invite, seconds: float) -> None:
    """Heads of joins whose bodies never come."""

    async def one(number: int) -> None:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(invite.host, invite.port)
            told = headers(Identity.generate(), invite, "POST", "/v1/join", b"", number)
            lines = "".join(f"{name}: {value}\r\n" for name, value in told.items())
            writer.write(f"POST /v1/join HTTP/1.1\r\nHost: x\r\nContent-Length: 9000\r\n{lines}\r\n{{".encode())
            try:
                await asyncio.sleep(seconds)
            finally:
                writer.close()

    await paced(100, seconds, one)


async def idle_connections(invite: Invite, seconds: float) -> None:
    """Open and silent, more than the process has descriptors for."""
    opened: list[asyncio.StreamWriter] = []
    for _ in range(IDLE):
        with contextlib.suppress(OSError):
            opened.append((await asyncio.open_connection(invite.host, invite.port))[1])
    await asyncio.sleep(seconds)
    for writer in opened:
        writer.close()


async def no_http(invite: Invite, seconds: float) -> None:
    """Bytes that are no HTTP at all, as fast as the log could be filled."""

    async def one(_number: int) -> None:
        with contextlib.suppress(OSError):
            reader, writer = await asyncio.open_connection(invite.host, invite.port)
            writer.write(b"\x16\x03\x01 nonsense\r\n\r\n" * 4)
            await reader.read(4096)
            writer.close()

    await paced(RATE, seconds, one)


FLOODS: dict[str, Flood] = {
    "one-byte bodies": small_bodies,
    "large bodies": large_bodies,
    "bodies that never come": slow_bodies,
    "2,500 idle connections, 1,024 descriptors": idle_connections,
    "no HTTP": no_http,
}


async def honest(nodes: list[SimNode], seconds: float) -> SimReport:
    """Members at their pace; a refusal is an error of the report."""
    report, end = SimReport(len(nodes)), time.monotonic() + seconds

    async def run(node: SimNode, offset: float) -> None:
        await asyncio.sleep(offset)
        while time.monotonic() < end:
            began = time.monotonic()
            await node.send(node.prepare(), report)
            await asyncio.sleep(max(0.0, EVERY_S - (time.monotonic() - began)))

    await asyncio.gather(*(run(node, EVERY_S * k / len(nodes)) for k, node in enumerate(nodes)))
    return report


async def measure(flood: Flood, server: Server, log: Path, seconds: float) -> dict[str, object]:
    invite = server.invite
    async with open_session(invite, HONEST) as session:
        nodes = [SimNode(session, invite, 4, 4) for _ in range(HONEST)]
        for node in nodes:
            await node.join()
        await honest(nodes, seconds)  # warm
        quiet, flooded, grown = SimReport(0), SimReport(0), 0
        for _ in range(2):
            calm = await honest(nodes, seconds)
            before = server.rss
            strangers = await _elsewhere(flood, invite, seconds + 1.0)
            await asyncio.sleep(1.0)
            stormy = await honest(nodes, seconds)
            grown = max(grown, server.rss - before)
            await strangers.wait()
            quiet.latencies += calm.latencies
            flooded.latencies += stormy.latencies
            flooded.errors += stormy.errors
            quiet.errors += calm.errors
    return {
        "p99_quiet_ms": round(1000 * quiet.quantile(0.99), 1),
        "p99_flooded_ms": round(1000 * flooded.quantile(0.99), 1),
        "rounds": len(flooded.latencies),
        "refused": dict(flooded.errors),
        "memory_mb": round(grown / 2**20, 1),
        "log_kb": log_kb(log),
    }


def log_kb(log: Path) -> float:
    return round(log.stat().st_size / 1024, 1)


async def _elsewhere(flood: Flood, invite: Invite, seconds: float) -> asyncio.subprocess.Process:
    """The strangers have a process of their own, so that the honest nodes' clock is not theirs."""
    name = next(name for name, one in FLOODS.items() if one is flood)
    return await asyncio.create_subprocess_exec(
        *(sys.executable, __file__, "--attack", name, "--invite", str(invite), "--seconds", str(seconds))
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--attack", choices=list(FLOODS), help=argparse.SUPPRESS)
    parser.add_argument("--only", default="")
    parser.add_argument("--invite", default="", help=argparse.SUPPRESS)
    args = parser.parse_args()
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    if args.attack:
        os.nice(5)
        asyncio.run(FLOODS[args.attack](parse_invite(args.invite), args.seconds))
        return 0
    bad = 0
    for name, flood in FLOODS.items():
        if args.only not in name:
            continue
        with tempfile.TemporaryDirectory() as room:
            log = Path(room) / "log"
            files = FEW_FILES if "descriptors" in name else min(hard, 8192)
            server = start_server(f"sqlite:{room}/s.sqlite", log=log, files=files, **UNHINDERED)
            try:
                found = asyncio.run(measure(flood, server, log, args.seconds))
            finally:
                server.stop()
                if log.stat().st_size > 65536:
                    print(log.read_text()[-3000:], file=sys.stderr)
        quiet, flooded = float(str(found["p99_quiet_ms"])), float(str(found["p99_flooded_ms"]))
        good = flooded <= max(2 * quiet, quiet + 20) and not found["refused"]
        good = good and float(str(found["memory_mb"])) <= 64 and float(str(found["log_kb"])) <= 64
        bad += not good
        print(json.dumps({"flood": name, "holds": good, **found}), flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
