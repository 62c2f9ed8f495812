"""Simulated nodes without a model: they load a coordinator with signed rounds.

They answer at random, so their groups are honest in form and worth nothing: never point them at a real swarm.
"""

from __future__ import annotations

import asyncio
import hashlib
import random
import time
from collections import Counter
from dataclasses import dataclass, field

import aiohttp
import msgspec

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.wire import (
    H_PROTO,
    MEDIA_TYPE,
    GroupBody,
    JoinRequest,
    RoundReply,
    SharedCompletion,
    SignedGroup,
    Upload,
    WireError,
    decode_message,
    encode_message,
    sha256_hex,
)
from sapo_swarm.tasks.catalogue import CATALOGUE, train_seed
from sapo_swarm.types import TaskRef

_TASKS = tuple(name for name, presets in CATALOGUE.items() if "starter" in presets)


def sim_group(
    identity: Identity, swarm: str, number: int, slot: int, completions: int = 8, now: float | None = None
) -> SignedGroup:
    """A signed group of made-up answers; (node, number, slot) decide its question. now: Unix time it was generated."""
    rng = random.Random(f"{identity.node}/{number}/{slot}")
    ref = TaskRef(rng.choice(_TASKS), "starter", train_seed(identity.node, swarm, number, slot))
    answers = (f"{rng.randrange(100)} plus {rng.randrange(100)} makes some number. " * 3 for _ in range(completions))
    texts = [f"{answer}<answer>{rng.randrange(200)}</answer>" for answer in answers]
    body = GroupBody(
        ref=ref,
        prompt_sha256=hashlib.sha256(ref.label.encode()).hexdigest(),
        completions=tuple(SharedCompletion(text=text, finish="stop") for text in texts),
        node=identity.node,
        model="simulated",
        policy_step=number,
        ts=int((time.time() if now is None else now) * 1000),
    )
    return identity.sign_group(swarm, body)


@dataclass(slots=True)
class SimReport:
    """What the simulated nodes saw. latencies: seconds, one per answered round. errors: code -> count."""

    nodes: int
    seconds: float = 0.0
    rounds: int = 0
    accepted: int = 0
    sampled: int = 0
    bytes_sent: int = 0
    bytes_received: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    latencies: list[float] = field(default_factory=list)

    def quantile(self, q: float) -> float:
        """Latency in seconds below which a part q of the rounds was answered; NaN without rounds."""
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(q * len(ordered)))] if ordered else float("nan")

    def summary(self) -> str:
        """The report as a line for people."""
        rate = self.rounds / self.seconds if self.seconds else 0.0
        errors = ", ".join(f"{code} {count}" for code, count in self.errors.most_common()) or "none"
        return (
            f"{self.nodes} nodes, {self.rounds} rounds in {self.seconds:.1f} s = {rate:.0f}/s; "
            f"p50 {1000 * self.quantile(0.5):.1f} ms, p99 {1000 * self.quantile(0.99):.1f} ms; "
            f"groups accepted {self.accepted}, sampled {self.sampled}; errors: {errors}"
        )


class SimNode:
    """One node at the coordinator's pace unless another one is given, over a shared session.

    Cheaper than NodeClient (no back-off, no per-node connection pool), so that one process simulates thousands.
    """

    def __init__(self, session: aiohttp.ClientSession, invite: Invite, groups: int, want: int) -> None:
        self.identity = Identity.generate()
        self._session, self._invite = session, invite
        self._groups, self._want = groups, want
        self._number = 0

    async def join(self, name: str = "") -> None:
        """Raises RuntimeError with the coordinator's answer."""
        key = self.identity.public_key.hex()
        body = msgspec.json.encode(JoinRequest(key=key, invite=self._invite.token, name=name, model="simulated"))
        headers = self._headers("POST", "/v1/join", body)
        async with self._session.post("/v1/join", data=body, headers=headers) as response:
            if response.status != 200:
                raise RuntimeError(f"join: {response.status} {(await response.read())[:200]!r}")
            await response.read()

    def prepare(self) -> tuple[str, bytes, dict[str, str]]:
        """Path, body and headers of the next round."""
        self._number += 1
        swarm = self._invite.swarm
        groups = tuple(sim_group(self.identity, swarm, self._number, slot) for slot in range(self._groups))
        body = encode_message(Upload(groups=groups, want=self._want, reward_local=0.25))
        path = f"/v1/rounds/{sha256_hex(body)}"
        return path, body, self._headers("PUT", path, body) | {"Content-Type": MEDIA_TYPE}

    async def send(self, prepared: tuple[str, bytes, dict[str, str]], report: SimReport) -> float:
        """Send a prepared round and count it: the seconds the coordinator asks to wait, or 1 after an error."""
        path, body, headers = prepared
        started = time.perf_counter()
        try:
            async with self._session.put(path, data=body, headers=headers) as response:
                content = await response.read()
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            report.errors[type(error).__name__] += 1
            return 1.0
        report.latencies.append(time.perf_counter() - started)
        report.bytes_sent += len(body)
        report.bytes_received += len(content)
        if response.status != 200:
            report.errors[str(response.status)] += 1
            return float(response.headers.get("Retry-After", 1))
        try:
            reply = decode_message(content, RoundReply)
        except WireError:
            report.errors["bad_reply"] += 1
            return 1.0
        report.rounds += 1
        report.accepted += sum(result.accepted for result in reply.results)
        report.sampled += len(reply.sample)
        return reply.next_in_s

    def _headers(self, method: str, path: str, body: bytes) -> dict[str, str]:
        signed = self.identity.sign_request(method, path, self._invite.swarm, int(time.time() * 1000), body)
        return signed.headers()


def open_session(invite: Invite, connections: int) -> aiohttp.ClientSession:
    """A session that all simulated nodes of a process share."""
    pin = aiohttp.Fingerprint(bytes.fromhex(invite.fingerprint)) if invite.fingerprint else True
    return aiohttp.ClientSession(
        base_url=invite.url,
        connector=aiohttp.TCPConnector(limit=connections, ssl=pin, keepalive_timeout=60),
        timeout=aiohttp.ClientTimeout(total=30),
        auto_decompress=False,
        headers={H_PROTO: "1"},
        cookie_jar=aiohttp.DummyCookieJar(),
    )


async def simulate(
    invite: Invite,
    nodes: int,
    seconds: float,
    every_s: float = 0.0,
    groups: int = 4,
    want: int = 4,
    connections: int = 0,
) -> SimReport:
    """Nodes that join, then exchange for so long. every_s 0: at the pace the coordinator asks for.

    The first round of each node starts at a random moment of its period, as in a swarm that has been running.
    Raises RuntimeError when a node cannot join.
    """
    report = SimReport(nodes)
    async with open_session(invite, connections or min(nodes, 1000)) as session:
        simulated = [SimNode(session, invite, groups, want) for _ in range(nodes)]
        for start in range(0, nodes, 64):
            await asyncio.gather(*(node.join() for node in simulated[start : start + 64]))
        end = time.monotonic() + seconds
        started = time.perf_counter()
        await asyncio.gather(*(_run(node, report, end, every_s) for node in simulated))
        report.seconds = time.perf_counter() - started
    return report


async def _run(node: SimNode, report: SimReport, end: float, every_s: float) -> None:
    """At least one round, however late the machine comes to it."""
    now = time.monotonic()
    await asyncio.sleep(random.uniform(0.0, max(0.0, min(every_s or 1.0, end - now))))
    while True:
        now = time.monotonic()
        asked = await node.send(node.prepare(), report)
        wait = now + (every_s or asked) - time.monotonic()
        await asyncio.sleep(max(0.0, min(wait, end - time.monotonic())))
        if time.monotonic() >= end:
            return
