"""Where a coordinator listens: what its host may ask there, and how others reach it."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import msgspec
import psutil
import pytest

from sapo_swarm.coordinator.admin_client import AdminAccess, AdminClient, read_access
from sapo_swarm.coordinator.host import admin_path, launch_coordinator
from sapo_swarm.coordinator.listener import reachable_addresses
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol.client import NodeClient, Refused
from sapo_swarm.protocol.identity import Identity


def settings(folder: Path, **changes: object) -> CoordinatorSettings:
    return msgspec.convert({"port": 0, "store": f"sqlite:{folder}/s.sqlite"} | changes, CoordinatorSettings)


def test_every_address_of_the_host_is_in_the_invites() -> None:
    """Loopback last; a named host stands for itself."""
    assert reachable_addresses("192.168.1.5") == ["192.168.1.5"]
    assert reachable_addresses("0.0.0.0")[-1].startswith("127.")


def test_the_bridge_of_docker_comes_after_the_network_card(monkeypatch: pytest.MonkeyPatch) -> None:
    card = reachable_addresses("0.0.0.0")[0]
    if is_loopback(card):
        pytest.skip("this machine has no address but loopback")
    bridge, found = "1.2.3.4", psutil.net_if_addrs()
    entry = next(one for entries in found.values() for one in entries if one.address == card)
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: {"docker0": [entry._replace(address=bridge)], **found})
    for host in ("0.0.0.0", "::"):
        shown = reachable_addresses(host)
        assert (shown[0], bridge in shown) == (card, True)


async def test_with_public_the_first_invite_names_it(tmp_path: Path) -> None:
    """At the start, and each one that the host makes later; its own commands still reach it."""
    chosen = settings(tmp_path, tls=True, public="swarm.example.org")
    hosted = await launch_coordinator(chosen)
    async with AdminClient(read_access(admin_path(chosen))) as admin:
        later = await admin.new_invite()
    for invites in (hosted.invites, later):
        assert [invite.host for invite in invites] == ["swarm.example.org", "127.0.0.1"]
    await hosted.stop()


async def test_a_host_that_listens_on_its_lan_address_alone_can_make_an_invite_and_approve_a_node(
    tmp_path: Path,
) -> None:
    """Nobody else can: not through a proxy, not from a page whose name points here."""
    lan = reachable_addresses("0.0.0.0")[0]
    if is_loopback(lan):
        pytest.skip("this machine has no address but loopback")
    chosen = settings(tmp_path, host=lan, approve=True)
    hosted, node = await launch_coordinator(chosen), Identity.generate()
    access = read_access(admin_path(chosen))
    async with AdminClient(access) as admin:
        (invite,) = await admin.new_invite("for Ada")
        async with NodeClient(invite, node) as client:
            await client.join("Ada")
        assert await admin.approve() == (node.node,)
    pin = aiohttp.TCPConnector(ssl=aiohttp.Fingerprint(bytes.fromhex(access.fingerprint)))
    async with aiohttp.ClientSession(access.url, connector=pin) as session:
        for forged in ({"X-Forwarded-For": "10.0.0.1"}, {"Host": "evil.example"}, {"Host": "192.168.255.254"}):
            headers = {"Authorization": f"Bearer {access.key}"} | forged
            async with session.get("/admin/invites", headers=headers) as response:
                assert response.status == 403
    await hosted.stop()


async def test_an_answer_that_is_no_coordinators_is_told_to_the_host_in_words() -> None:
    """Of a proxy in between, say, or of another server on the port of a coordinator that is gone."""
    answers = [b"502 Bad Gateway", b"200 OK"]

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %s\r\nContent-Length: 4\r\nConnection: close\r\n\r\noops" % answers.pop(0))
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(proxy, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, AdminClient(AdminAccess(key="k", url=url)) as admin:
        with pytest.raises(Refused, match="answered 502 without a reason"):
            await admin.invites()
        with pytest.raises(Refused, match="does not parse"):
            await admin.invites()


async def test_a_host_on_another_loopback_address_can_make_an_invite(tmp_path: Path) -> None:
    if sys.platform == "darwin":
        pytest.skip("macOS has 127.0.0.1 only")
    chosen = settings(tmp_path, host="127.0.0.2")
    hosted = await launch_coordinator(chosen)
    async with AdminClient(read_access(admin_path(chosen))) as admin:
        assert len(await admin.new_invite()) == 1
    await hosted.stop()
