"""Hosting a swarm: the command, its admin line, several replicas on one Redis, moving to another host."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import stat
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.support.local_redis import MISSING, LocalRedis, NoRedis
from tests.support.node_process import environment
from tests.support.simulated_nodes import sim_group

from sapo_desktop import cli
from sapo_swarm.coordinator.admin import import_swarm
from sapo_swarm.coordinator.admin_client import AdminClient, read_access
from sapo_swarm.coordinator.host import RunningCoordinator, admin_path, describe_coordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store import open_store
from sapo_swarm.protocol.client import CoordinatorError, NodeClient, Refused
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import parse_invite


def settings(where: Path, **changes: object) -> CoordinatorSettings:
    fast = {"port": 0, "store": f"sqlite:{where}/s.sqlite", "round_every_s": 0.001, "round_burst": 1000}
    return msgspec.convert(fast | changes, CoordinatorSettings)


@pytest.fixture
async def begin() -> AsyncIterator[Callable[..., object]]:
    """Starts coordinators and stops them after the test."""
    running: list[RunningCoordinator] = []

    async def build(chosen: CoordinatorSettings) -> RunningCoordinator:
        running.append(await launch_coordinator(chosen))
        return running[-1]

    yield build
    for hosted in running:
        await hosted.stop()


async def test_a_swarm_keeps_its_name_when_it_is_hosted_again_without_one(
    tmp_path: Path, begin: Callable[[CoordinatorSettings], Awaitable[RunningCoordinator]]
) -> None:
    names = []
    for typed in ({"name": "friends"}, {}, {"name": "colleagues"}, {}):
        hosted = await launch_coordinator(settings(tmp_path, **typed))
        names.append(hosted.coordinator.swarm.name)
        await hosted.stop()
    assert names == ["friends", "friends", "colleagues", "colleagues"]
    assert (await begin(settings(tmp_path / "new"))).coordinator.swarm.name == "swarm"


async def test_the_command_prints_an_invite_serves_and_stops_on_a_signal(tmp_path: Path) -> None:
    """One line to paste; SIGTERM ends it with exit code 0 and what was acknowledged is kept."""
    command = ["-m", "sapo_desktop", "coordinator", "--port", "0", "--store", f"sqlite:{tmp_path}/s.sqlite", "--tls"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE, env=environment(tmp_path)
    )
    assert process.stdout is not None
    text = ""
    while "Status page" not in text:
        line = await process.stdout.readline()
        assert line, text
        text += line.decode()
    found = re.search(r"--join '(sapo://[^']+)'", text)
    assert found, text
    invite = parse_invite(found.group(1))
    node = Identity.generate()
    async with NodeClient(invite, node) as client:
        assert (await client.info()).nodes == 0
        await client.join()
        assert (await client.exchange([sim_group(node, invite.swarm, 1, 0)], 0)).accepted == 1
    process.send_signal(signal.SIGTERM)
    assert await process.wait() == 0
    again = await launch_coordinator(settings(tmp_path))
    assert (await again.store.stats(0.0, 1)).pool == 1
    await again.stop()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--port", "high"], "port: that is no whole number. Allowed: whole number, 0 to 65535."),
        (["--round-every-s", "x"], "round_every_s: that is no number. Allowed: number, more than 0."),
        (
            ["--share-fraction", "2"],
            "share_fraction: that is too large. Allowed: number, more than 0, at most 1.",
        ),
        (["--name", "n" * 41], "length <= 40"),
        (["--tasks", "bf,basic_aritmetic"], "There is no task 'basic_aritmetic'. Did you mean 'basic_arithmetic'?"),
        (["--tasks", "No Name"], "There is no task 'No Name'."),
        (["--presets", "starter,hrd"], "There is no preset 'hrd'. Did you mean 'hard'?"),
        (["--open", "--approve"], "nobody waits to be let in: give --open or --approve."),
        (["--public", "swarm.example.org:7361"], "name or number, without https:// and port"),
        (["--public", "https://swarm.example.org"], "name or number, without https:// and port"),
        (["--public", "[2001:db8::1]"], "name or number, without https:// and port"),
    ],
    ids=["type", "number", "range", "name", "task", "no name", "preset", "open", "port", "scheme", "brackets"],
)
def test_wrong_flags_are_usage_errors(
    arguments: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Exit code 2, and a sentence; a swarm that no node could be in is not hosted."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["coordinator", *arguments]) == 2
    told = capsys.readouterr().err
    assert said in told
    assert "$" not in told


async def test_a_swarm_that_was_given_a_long_name_once_lets_nodes_in(
    tmp_path: Path, begin: Callable[[CoordinatorSettings], Awaitable[RunningCoordinator]]
) -> None:
    """A name is cut to what its readers take."""
    hosted = await begin(settings(tmp_path))
    hosted.coordinator.swarm = msgspec.structs.replace(hosted.coordinator.swarm, name="\t" + 60 * "n")
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        assert (await client.join()).name == "    " + 36 * "n"


def test_a_store_that_does_not_open_is_an_error_with_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 1."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    assert cli.run_command_line(["coordinator", "--store", "mysql://x"]) == 1
    assert "is no store" in capsys.readouterr().err


async def test_the_host_invites_bans_revokes_and_exports(tmp_path: Path, begin: Callable[..., object]) -> None:
    """By the file that only its owner reads, over TLS too."""
    hosted: RunningCoordinator = await begin(settings(tmp_path, tls=True))  # type: ignore[misc]
    path = admin_path(hosted.coordinator.settings)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    node = Identity.generate()
    async with AdminClient(read_access(path)) as host:
        (invite,) = await host.new_invite("for Ada", hours=1, uses=1)
        async with NodeClient(invite, node) as client:
            await client.join("Ada")
            assert [(i.label, i.uses, i.token) for i in await host.invites()] == [
                ("made at start", 0, ""),
                ("for Ada", 1, ""),
            ]
            await host.ban(node.node, "spam")
            assert (await client.exchange([], 0)).code == "banned"
            await host.ban(node.node, "")
            client.next_at = 0
            assert (await client.exchange([], 0)).connected
            assert await host.revoke((await host.invites())[1].hash) == (node.node,)
            client.next_at = 0
            assert (await client.exchange([], 0)).code == "banned"
        with pytest.raises(Refused, match="No member"):
            await host.ban(Identity.generate().node)
        data = await host.export()
    assert hosted.coordinator.swarm.swarm.encode() in data


async def test_admin_answers_nobody_without_the_key(tmp_path: Path, begin: Callable[..., object]) -> None:
    """Nor through a proxy."""
    hosted: RunningCoordinator = await begin(settings(tmp_path))  # type: ignore[misc]
    async with aiohttp.ClientSession(hosted.url) as session:
        for headers, code in [
            ({}, "bad_admin_key"),
            ({"Authorization": "Bearer é"}, "bad_admin_key"),
            ({"Authorization": f"Bearer {hosted.admin_key}", "X-Forwarded-For": "10.0.0.1"}, "loopback_only"),
            ({"Authorization": f"Bearer {hosted.admin_key}", "Forwarded": "for=10.0.0.1"}, "loopback_only"),
            ({"Authorization": f"Bearer {hosted.admin_key}", "Host": "evil.example"}, "loopback_only"),
            ({"Authorization": f"Bearer {hosted.admin_key}", "Host": "[::1"}, "loopback_only"),
        ]:
            async with session.get("/admin/export", headers=headers) as response:
                assert (await response.json(content_type=None))["code"] == code
    with pytest.raises(CoordinatorError, match="tells of no coordinator"):
        read_access(tmp_path / "nothing.json")


async def test_a_friend_takes_over_with_the_same_fingerprint(tmp_path: Path, begin: Callable[..., object]) -> None:
    """Members' invites and identities stay good at the new host."""
    node = Identity.generate()
    first: RunningCoordinator = await begin(settings(tmp_path / "one", tls=True))  # type: ignore[misc]
    async with NodeClient(first.invite, node) as client:
        await client.join("Ada")
    async with AdminClient(read_access(admin_path(first.coordinator.settings))) as host:
        data = await host.export()
    chosen = settings(tmp_path / "two", tls=True)
    store = open_store(chosen)
    await store.open()
    await import_swarm(store, data)
    await store.close()
    second: RunningCoordinator = await begin(chosen)  # type: ignore[misc]
    moved = parse_invite(str(first.invite).replace(f":{first.port}/", f":{second.port}/"))
    async with NodeClient(moved, node) as client:
        assert (await client.exchange([sim_group(node, moved.swarm, 1, 0)], 0)).accepted == 1


async def test_two_replicas_on_one_redis_are_one_swarm(
    tmp_path: Path, redis_url: str, begin: Callable[..., object]
) -> None:
    """Same swarm and certificate; what one takes the other gives; a nonce, a ban and a member hold on both."""
    one: RunningCoordinator = await begin(settings(tmp_path, store=redis_url, folder=str(tmp_path / "a"), tls=True))  # type: ignore[misc]
    two: RunningCoordinator = await begin(settings(tmp_path, store=redis_url, folder=str(tmp_path / "b"), tls=True))  # type: ignore[misc]
    assert one.coordinator.swarm == two.coordinator.swarm
    assert one.invite.fingerprint == two.invite.fingerprint
    ada, bob = Identity.generate(), Identity.generate()
    async with NodeClient(one.invite, ada) as left, NodeClient(two.invite, bob) as right:
        await left.join("Ada")
        await right.join("Bob")
        await left.exchange([sim_group(ada, one.invite.swarm, 1, n) for n in range(3)], 0)
        drawn = await right.exchange([], 4)
        assert len(drawn.sample) == 3
        receipts: list[tuple[str, int]] = []
        while not receipts:  # the other one credits within a second
            await asyncio.sleep(0.2)
            left.next_at = 0
            receipts = [(receipt.node, receipt.count) for receipt in (await left.exchange([], 0)).receipts]
        assert receipts == [(bob.node, 3)]
        await two.store.ban(ada.node, "spam")
        left.next_at = 0
        assert (await left.exchange([], 0)).code == "banned"


async def test_a_request_seen_by_one_replica_is_a_replay_at_the_other(
    tmp_path: Path, redis_url: str, begin: Callable[..., object]
) -> None:
    """Nonces are shared."""
    import time

    from sapo_swarm.protocol.wire import MEDIA_TYPE, Upload, encode_message, sha256_hex

    one: RunningCoordinator = await begin(settings(tmp_path, store=redis_url, folder=str(tmp_path / "a")))  # type: ignore[misc]
    two: RunningCoordinator = await begin(settings(tmp_path, store=redis_url, folder=str(tmp_path / "b")))  # type: ignore[misc]
    node = Identity.generate()
    async with NodeClient(one.invite, node) as client:
        await client.join()
    body = encode_message(Upload(groups=()))
    path = f"/v1/rounds/{sha256_hex(body)}"
    headers = node.sign_request("PUT", path, one.invite.swarm, int(time.time() * 1000), body).headers()
    statuses = []
    for hosted in (one, two):
        typed = headers | {"Content-Type": MEDIA_TYPE}
        async with (
            aiohttp.ClientSession(hosted.url) as session,
            session.put(path, data=body, headers=typed) as response,
        ):
            statuses.append(response.status)
    assert statuses == [200, 409]


async def test_outside_loopback_the_coordinator_speaks_tls_only(tmp_path: Path, begin: Callable[..., object]) -> None:
    """Every invite holds the fingerprint."""
    hosted: RunningCoordinator = await begin(settings(tmp_path, host="0.0.0.0"))  # type: ignore[misc]
    assert all(invite.fingerprint for invite in hosted.invites)
    assert hosted.url.startswith("https://")
    assert "listens on this machine only" not in describe_coordinator(hosted)
    async with NodeClient(hosted.invites[-1], Identity.generate()) as client:
        await client.join()


async def test_a_store_that_dies_is_503_and_nothing_hangs_until_it_is_back(
    tmp_path: Path, begin: Callable[..., object]
) -> None:
    """The coordinator stays up, answers at once with Retry-After, and goes on when the store returns."""
    try:
        server = LocalRedis(sync="no")
    except NoRedis:
        if os.environ.get("CI") == "true":
            pytest.fail(MISSING)
        pytest.skip(MISSING)
    hosted: RunningCoordinator = await begin(settings(tmp_path, store=server.url, folder=str(tmp_path)))  # type: ignore[misc]
    node = Identity.generate()
    with contextlib.closing(server):
        async with NodeClient(hosted.invite, node) as client, aiohttp.ClientSession(hosted.url) as session:
            await client.join()
            assert (await client.exchange([sim_group(node, hosted.invite.swarm, 1, 0)], 0)).accepted == 1
            server.kill()
            client.next_at = 0
            away = await client.exchange([sim_group(node, hosted.invite.swarm, 2, 0)], 0)
            assert (away.connected, away.code) == (False, "store_down")
            async with session.get("/readyz") as response:
                assert (response.status, "Retry-After" in response.headers) == (503, True)
            async with session.get("/healthz") as response:
                assert response.status == 200
            server.start()
            client.next_at = 0
            back = await client.exchange([sim_group(node, hosted.invite.swarm, 3, 0)], 0)
            assert (back.accepted, back.pool, back.mine) == (1, 2, 2)
