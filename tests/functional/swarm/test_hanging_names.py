"""A name server or a coordinator that does not answer: the node trains on alone, and its program ends when it is told to."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys

import pytest

from sapo_swarm.protocol.client import DaemonResolver, NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite

PROGRAM = """
import asyncio, socket, threading
socket.getaddrinfo = lambda *args, **options: threading.Event().wait()
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite

async def main():
    async with NodeClient(Invite("coordinator.example", 1, "a" * 16), Identity.generate(), timeout_s=0.1) as client:
        for _ in range(8):
            client.next_at = 0.0
            result = await client.exchange([], 1)
        print(result.sentence, [thread.name for thread in threading.enumerate()].count("names"))

asyncio.run(main())
"""


def test_a_lookup_that_hangs_keeps_no_program_from_ending() -> None:
    """It ended only when the lookup did. However often it is tried, one thread waits."""
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60)
    assert "coordinator.example:1 does not answer in time" in done.stdout
    assert done.stdout.endswith("goes on alone. 1\n")
    assert not done.stderr


async def test_names_lead_to_addresses_and_unknown_ones_to_an_error() -> None:
    first, *_ = await DaemonResolver().resolve("localhost", 80)
    assert (first["host"], first["port"], first["family"]) == ("127.0.0.1", 80, socket.AF_INET)
    with pytest.raises(OSError, match=r"Name or service|not"):
        await DaemonResolver().resolve("no.such.name.invalid", 80)


@pytest.mark.parametrize("fingerprint", ["0" * 64, ""], ids=["TLS", "plain"])
async def test_a_coordinator_that_is_stopped_is_left_after_a_while_and_at_once_at_the_end(fingerprint: str) -> None:
    """The system of its machine still accepts connections; nobody reads from them."""
    with socket.create_server(("127.0.0.1", 0)) as stopped:
        invite = Invite("127.0.0.1", stopped.getsockname()[1], "a" * 16, fingerprint)
        async with NodeClient(invite, Identity.generate(), timeout_s=0.2) as client:
            assert "does not answer in time" in (await client.exchange([], 1)).sentence
        async with NodeClient(invite, Identity.generate(), timeout_s=600.0) as client:
            waiting = asyncio.create_task(client.exchange([], 1))
            accepted = [await asyncio.to_thread(stopped.accept) for _ in range(2)]  # the first client's too
            waiting.cancel()
            assert isinstance((await asyncio.gather(waiting, return_exceptions=True))[0], asyncio.CancelledError)
            for connection, _ in accepted:
                connection.close()
