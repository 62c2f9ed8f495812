"""Gate 3: forged and replayed requests. None is accepted; each kind has its code."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from dataclasses import dataclass

import aiohttp
import msgspec
from common import Gate, Server, serving
from tests.support.simulated_nodes import SimNode, open_session

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import (
    H_NODE,
    H_PROTO,
    H_SIGNATURE,
    MEDIA_TYPE,
    Problem,
    Upload,
    encode_message,
    sha256_hex,
)


@dataclass
class Forger:
    """Makes a request of each kind. member: a real member whose requests are taken as the start."""

    member: SimNode
    swarm: str
    number: int = 0

    def body(self) -> bytes:
        self.number += 1
        return encode_message(Upload(groups=(), want=self.number % 8, have=(secrets.token_bytes(8),)))

    def signed(self, body: bytes, **changes: object) -> tuple[str, dict[str, str]]:
        path = f"/v1/rounds/{sha256_hex(body)}"
        fields: dict[str, object] = {
            "identity": self.member.identity,
            "swarm": self.swarm,
            "ts": int(time.time() * 1000),
        }
        fields |= {"method": "PUT", "path": path, **changes}
        identity, ts = fields["identity"], fields["ts"]
        assert isinstance(identity, Identity)
        assert isinstance(ts, int)
        headers = identity.sign_request(str(fields["method"]), str(fields["path"]), str(fields["swarm"]), ts, body)
        return path, headers.headers() | {"Content-Type": MEDIA_TYPE}

    def make(self, kind: str) -> tuple[str, bytes, dict[str, str]]:
        body = self.body()
        now = int(time.time() * 1000)
        match kind:
            case "changed body":
                path, headers = self.signed(body)
                return path, body + b"\0", headers
            case "changed body under its own name":
                other = self.body()
                _, headers = self.signed(body)
                return f"/v1/rounds/{sha256_hex(other)}", other, headers
            case "old":
                path, headers = self.signed(body, ts=now - 121_000 - self.number)
            case "from the future":
                path, headers = self.signed(body, ts=now + 900_000 + self.number)
            case "other swarm":
                path, headers = self.signed(body, swarm="b" * 16)
            case "other method":
                path, headers = self.signed(body, method="POST")
            case "other path":
                path, headers = self.signed(body, path="/v1/leave")
            case "other key":
                path, headers = self.signed(body, identity=Identity.generate())
                headers[H_NODE] = self.member.identity.node
            case "stranger":
                path, headers = self.signed(body, identity=Identity.generate())
            case _:
                path, headers = self.signed(body)
                headers[H_SIGNATURE] = secrets.token_hex(64)
        return path, body, headers


EXPECTED = {
    "changed body": "body_mismatch",
    "changed body under its own name": "bad_signature",
    "old": "clock_skew",
    "from the future": "clock_skew",
    "other swarm": "bad_signature",
    "other method": "bad_signature",
    "other path": "bad_signature",
    "other key": "bad_signature",
    "stranger": "unknown_node",
    "random signature": "bad_signature",
    "replayed": "replayed",
}


async def attack(server: Server, times: int) -> Counter[tuple[str, str]]:
    """(kind, code) -> count. Code "accepted" for a 2xx answer."""
    seen: Counter[tuple[str, str]] = Counter()

    async def send(session: aiohttp.ClientSession, kind: str, request: tuple[str, bytes, dict[str, str]]) -> str:
        path, body, headers = request
        async with session.put(path, data=body, headers={H_PROTO: "1"} | headers) as response:
            content = await response.read()
        code = "accepted" if response.status < 300 else msgspec.json.decode(content, type=Problem).code
        seen[kind, code] += 1
        return code

    async with open_session(server.invite, 16) as session:
        member = SimNode(session, server.invite, 1, 1)
        await member.join()
        forger = Forger(member, server.invite.swarm)
        forged = [kind for kind in EXPECTED if kind != "replayed"]
        for start in range(0, times, 100):
            kinds = [forged[n % len(forged)] for n in range(start, min(times, start + 100))]
            await asyncio.gather(*(send(session, kind, forger.make(kind)) for kind in kinds))
        for _ in range(max(1, times // 10)):
            body = forger.body()
            honest = (*(forger.signed(body)[:1]), body, forger.signed(body)[1])
            if await send(session, "honest", honest) == "accepted":
                await send(session, "replayed", honest)
    return seen


def run(quick: bool, store: str) -> Gate:
    gate = Gate(3, f"forged and replayed requests ({store})")
    with serving(store, round_every_s=0.001, round_burst=1_000_000) as server:
        seen = asyncio.run(attack(server, 300 if quick else 10_000))
    attacks = {key: count for key, count in seen.items() if key[0] != "honest"}
    gate.figures["requests"] = sum(attacks.values())
    gate.figures |= {f"{kind}: {code}": count for (kind, code), count in sorted(attacks.items())}
    gate.demands["none accepted"] = not any(code == "accepted" for _, code in attacks)
    gate.demands["each kind has its one code"] = set(attacks) == set(EXPECTED.items())
    return gate
