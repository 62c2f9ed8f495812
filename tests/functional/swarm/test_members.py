"""Who is in a swarm: the host lets nodes in, and a ban means something."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import psutil
import pytest
from tests.support.node_process import calm, environment
from tests.support.simulated_nodes import sim_group
from tests.support.swarm_process import TASKS

from sapo_desktop.commands.swarms.invite import _row
from sapo_desktop.paths import Home
from sapo_desktop.services.nodes import children
from sapo_desktop.services.swarms import hosting, membership
from sapo_desktop.settings import Settings
from sapo_swarm.config import RunConfig
from sapo_swarm.coordinator.admin_client import AdminClient, read_access
from sapo_swarm.coordinator.host import (
    RunningCoordinator,
    admin_path,
    describe_coordinator,
    launch_coordinator,
    log_to_stderr,
)
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store.base import StoreFormat
from sapo_swarm.protocol.client import NodeClient, Refused
from sapo_swarm.protocol.identity import Identity, StoredIdentity
from sapo_swarm.protocol.wire import MEDIA_TYPE, JoinRequest, Upload, encode_message, sha256_hex


def settings(folder: Path, **changes: object) -> CoordinatorSettings:
    fast = {"port": 0, "store": f"sqlite:{folder}/s.sqlite", "round_every_s": 0.001}
    return msgspec.convert(fast | changes, CoordinatorSettings)


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    running = await launch_coordinator(settings(tmp_path, approve=True))
    yield running
    await running.stop()


async def test_a_new_node_waits_until_the_host_lets_it_in(hosted: RunningCoordinator, tmp_path: Path) -> None:
    """It has joined, trains on alone, and is told why; one word of the host ends that."""
    node = Identity.generate()
    async with (
        NodeClient(hosted.invite, node) as client,
        AdminClient(read_access(admin_path(settings(tmp_path)))) as host,
    ):
        await client.join("Ada", "starter")
        result = await client.exchange([], 1)
        assert (result.connected, result.code) == (False, "waiting")
        assert "The host has not let this node in yet" in result.sentence
        (waiting,) = await host.waiting()
        assert (waiting.node, waiting.name) == (node.node, "Ada")
        assert await host.approve(node.node) == (node.node,)
        client.next_at = 0.0
        assert (await client.exchange([], 1)).connected
        assert await host.waiting() == []
        with pytest.raises(Refused, match="No node of this id waits"):
            await host.approve(node.node)


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_a_group_whose_upload_began_before_its_node_was_banned_never_enters_the_pool(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The body is under way when the host bans; its member was judged by the head."""
    store = {"store": request.getfixturevalue("redis_url"), "folder": str(tmp_path)} if kind == "redis" else {}
    hosted = await launch_coordinator(msgspec.structs.replace(settings(tmp_path), **store))
    node, swarm = Identity.generate(), hosted.invite.swarm
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
    body = encode_message(Upload(groups=tuple(sim_group(node, swarm, 1, slot) for slot in range(4))))
    path = f"/v1/rounds/{sha256_hex(body)}"
    signed = node.sign_request("PUT", path, swarm, int(time.time() * 1000), body).headers()
    lines = [f"PUT {path} HTTP/1.1", "Host: x", f"Content-Type: {MEDIA_TYPE}", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in signed.items()]
    known = asyncio.Event()
    hosted.coordinator.of_member = lambda _transport: known.set()
    reader, writer = await asyncio.open_connection("127.0.0.1", hosted.port)
    writer.write("\r\n".join([*lines, "", ""]).encode() + body[:10])
    await known.wait()
    async with AdminClient(read_access(admin_path(hosted.coordinator.settings))) as host:
        assert await host.ban(node.node) == (node.node,)
    writer.write(body[10:])
    status = (await reader.readline()).split()[1]
    writer.close()
    pool = (await hosted.store.stats(time.time(), 1)).pool
    await hosted.stop()
    assert (status, pool) == (b"403", 0)


async def test_a_node_that_waited_to_be_let_in_shares_the_part_that_the_swarm_asks_for(tmp_path: Path) -> None:
    hosted = await launch_coordinator(settings(tmp_path, approve=True, share_fraction=0.25))
    who = StoredIdentity(Identity.generate(), "file", "")
    exchange, said = await membership.join_swarm(hosted.invite, who, Settings(), RunConfig())
    assert "The host has not let this node in yet" in said[0]
    assert exchange.share_fraction == 0.25
    await exchange.client.__aexit__(None, None, None)
    await hosted.stop()


async def test_the_first_invite_admits_ten_nodes_and_no_more(tmp_path: Path) -> None:
    """A leaked invite does not let two hundred identities in within three seconds."""
    hosted = await launch_coordinator(settings(tmp_path))
    joined = 0
    for _ in range(14):
        async with NodeClient(hosted.invite, Identity.generate()) as client:
            with contextlib.suppress(Refused):
                await client.join()
                joined += 1
    await hosted.stop()
    assert joined == 10


async def test_a_ban_with_the_invite_puts_out_everybody_it_let_in(tmp_path: Path) -> None:
    """Banning one key of somebody who holds an invite banned nobody: he was back at once under another."""
    hosted = await launch_coordinator(settings(tmp_path))
    bad, same, honest = Identity.generate(), Identity.generate(), Identity.generate()
    async with AdminClient(read_access(admin_path(settings(tmp_path)))) as host:
        (other, *_) = await host.new_invite("friends")
        for invite, who in ((hosted.invite, bad), (hosted.invite, same), (other, honest)):
            async with NodeClient(invite, who) as client:
                await client.join()
        assert set(await host.ban(bad.node, with_invite=True)) == {bad.node, same.node}
    async with NodeClient(hosted.invite, Identity.generate()) as back:
        with pytest.raises(Refused, match="revoked"):
            await back.join()
    async with NodeClient(other, honest) as client:
        assert (await client.exchange([], 1)).connected
    await hosted.stop()


@pytest.mark.parametrize(
    "name",
    [
        "\u200b",
        "a\u2060b",
        "\u3164",
        "\u2800",
        "\xad",
        "Ada ",
        " ",
        "\x9b31m",
        "\u202eadA",
        "Ada\ufe0f",
        "\U000e0101",
        "\u0301x",
    ],
)
async def test_a_name_that_shows_nothing_or_something_else_is_refused(tmp_path: Path, name: str) -> None:
    """Invisible and zero-width names let one member look like another; our own client would have cleaned it."""
    hosted = await launch_coordinator(settings(tmp_path))
    node = Identity.generate()
    request = JoinRequest(key=node.public_key.hex(), invite=hosted.invite.token, name=name)
    async with NodeClient(hosted.invite, node) as client:
        with pytest.raises(Refused) as refused:
            await client._transport.signed("POST", "/v1/join", msgspec.json.encode(request), "application/json")
    await hosted.stop()
    assert refused.value.code == "bad_name"


async def test_an_emptied_store_founds_no_new_swarm(tmp_path: Path) -> None:
    """All members would stand before another certificate; the host is told what to do instead."""
    hosted = await launch_coordinator(settings(tmp_path))
    swarm = hosted.coordinator.swarm.swarm
    await hosted.stop()
    for name in ("s.sqlite", "s.sqlite-wal", "s.sqlite-shm"):
        (tmp_path / name).write_bytes(b"")
    with pytest.raises(StoreFormat, match=f"held the swarm {swarm} and is empty"):
        await launch_coordinator(settings(tmp_path))
    admin_path(settings(tmp_path)).unlink()
    again = await launch_coordinator(settings(tmp_path))
    assert again.coordinator.swarm.swarm != swarm
    await again.stop()


async def test_the_banner_obeys_no_escape_sequence(tmp_path: Path) -> None:
    """The name came with an import, say."""
    hosted = await launch_coordinator(settings(tmp_path, name="\x1b]52;c;x\x07\x9b2J\u202e"))
    said = describe_coordinator(hosted)
    await hosted.stop()
    assert not set(said) & set("\x1b\x07\x9b\u202e")


def test_the_coordinators_log_obeys_no_escape_sequence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A traceback quotes what somebody sent."""
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    log_to_stderr()
    try:
        raise ValueError("sent \x1b]52;c;x\x07\x9b2J\u202e")
    except ValueError:
        logging.getLogger("sapo.coordinator").exception("unexpected")
    said = capsys.readouterr().err
    assert "ValueError: sent" in said
    assert not set(said) & set("\x1b\x07\x9b\u202e")


def test_a_pid_file_of_another_process_is_no_coordinator(tmp_path: Path) -> None:
    """The number was given to somebody else since: `swarm stop` must not signal a stranger."""
    home = Home(*(tmp_path / name for name in ("config", "data", "cache", "logs", "run")))
    home.prepare()
    stranger = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    born = children.process_start_stamp(stranger.pid)
    for word, found in ((born, True), (children.process_start_stamp(os.getpid()), False), ("", False)):
        state = hosting.HostedCoordinator(pid=stranger.pid, name="s", open=False, admin="", born=word)
        with hosting.record_coordinator(home, state):
            assert (hosting.find_coordinator(home) is not None) is found
    stranger.communicate(b"\n")


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the system keeps the time at which a process began")
def test_a_coordinator_is_found_after_the_clock_was_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot time that psutil adds moves with the clock."""
    home = Home(*(tmp_path / name for name in ("config", "data", "cache", "logs", "run")))
    home.prepare()
    with hosting.record_coordinator(home, hosting.this_process("s", False, "")):
        assert hosting.find_coordinator(home) is not None
        booted = psutil.boot_time()
        monkeypatch.setattr("psutil._pslinux.boot_time", lambda: booted + 3600.0)
        assert hosting.find_coordinator(home) is not None


@pytest.mark.skipif(os.name != "posix", reason="Windows shows arguments to their owner alone")
@pytest.mark.parametrize("way", ["argument", "standard input"])
async def test_the_invite_does_not_stand_in_the_list_of_processes(tmp_path: Path, way: str) -> None:
    """Every account of the machine can read that list, for as long as the node runs."""
    hosted = await launch_coordinator(settings(tmp_path))
    calm(tmp_path / "me")
    given = str(hosted.invite) if way == "argument" else "-"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "sapo_desktop", "node", "--quiet", f"--join={given}", *TASKS, "--model", "fake:0.002"),
        env=environment(tmp_path / "me"),
        stdin=subprocess.PIPE,
    )
    assert process.stdin is not None
    if way != "argument":
        process.stdin.write(f"{hosted.invite}\n".encode())
        await process.stdin.drain()
    while not await hosted.store.members():
        assert process.returncode is None
        await asyncio.sleep(0.05)
    shown = psutil.Process(process.pid).cmdline()
    process.kill()
    process.stdin.close()
    await process.wait()
    await hosted.stop()
    assert hosted.invite.token not in " ".join(shown)
    assert "--join=-" in shown


async def test_the_list_of_invites_tells_which_one_expired_because_nobody_used_it_for_a_month(tmp_path: Path) -> None:
    hosted = await launch_coordinator(settings(tmp_path))
    async with AdminClient(read_access(admin_path(settings(tmp_path)))) as host:
        await host.new_invite("club", hours=0, uses=0)
        hosted.coordinator.clock = lambda: time.time() + 29 * 86_400.0
        assert "  for ever    " in _row((await host.invites())[-1])
        hosted.coordinator.clock = lambda: time.time() + 31 * 86_400.0
        assert "  expired    " in _row((await host.invites())[-1])
    await hosted.stop()


async def test_a_key_that_was_silent_for_a_month_opens_nothing(tmp_path: Path) -> None:
    """Found on an old disk, say: its owner joins again with an invite, and so must whoever found it."""
    hosted = await launch_coordinator(settings(tmp_path, invite_hours=0))
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        await client.join()
        assert (await client.exchange([], 1)).connected
        hosted.coordinator.clock = lambda: time.time() + 31 * 86_400.0
        client.next_at = 0.0
        result = await client.exchange([], 1)
        assert (result.connected, result.code) == (False, "unknown_node")
        assert "silent for too long" in result.sentence
        with pytest.raises(Refused, match="expired"):
            await client.join()
    await hosted.stop()
