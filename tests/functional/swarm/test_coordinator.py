"""A real coordinator on a free port, real nodes, the embedded store."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable
from pathlib import Path

import aiohttp
import msgspec
import pytest
from tests.support.hosted_swarm import groups_of, hosted, make
from tests.support.simulated_nodes import SimNode, SimReport, open_session, sim_group, simulate

from sapo_swarm.coordinator.host import RunningCoordinator, describe_coordinator
from sapo_swarm.protocol.client import NodeClient, Refused, Unreachable
from sapo_swarm.protocol.identity import Identity, group_text, node_id, verify_signature
from sapo_swarm.protocol.invite import parse_invite
from sapo_swarm.protocol.wire import (
    MEDIA_TYPE,
    GroupBody,
    SignedGroup,
    Upload,
    encode_message,
    sha256_hex,
    unpack_msgpack,
)

__all__ = ["hosted", "make"]


async def test_two_nodes_exchange_groups_and_are_credited(hosted: RunningCoordinator) -> None:
    """What one uploads the other draws, signed by its author; receipts and shares say so."""
    swarm = hosted.coordinator.swarm.swarm
    one, two = Identity.generate(), Identity.generate()
    async with NodeClient(hosted.invite, one) as first, NodeClient(hosted.invite, two) as second:
        info = await first.join("Ada", "starter-5m")
        assert info.swarm == swarm
        await second.join("Bob", "other")
        sent = await first.exchange(groups_of(one, swarm, 1), want=4, reward_local=0.5)
        assert (sent.connected, sent.accepted, sent.refused, sent.sample) == (True, 4, {}, ())
        drawn = await second.exchange(groups_of(two, swarm, 1, 2), want=4)
        assert len(drawn.sample) == 4, "all groups of the only source"
        group = unpack_msgpack(drawn.sample[0], SignedGroup)
        assert node_id(group.key) == one.node
        assert verify_signature(group.key, group.signature, group_text(swarm, group.body))
        first.next_at = 0
        later = await first.exchange([], want=4)
        assert [(receipt.node, receipt.count) for receipt in later.receipts] == [(two.node, 4)]
        assert later.uptake == 4
        assert later.share == pytest.approx(4 / 6)
        board = await first.leaderboard()
        rows = {row.name: (row.groups, round(row.share, 3), row.model) for row in board.nodes}
    assert rows == {"Ada": (4, 0.667, "starter-5m"), "Bob": (2, 0.333, "other")}


async def test_a_node_never_draws_its_own_groups_nor_the_same_twice(hosted: RunningCoordinator) -> None:
    """Own groups are left out, and so are those that the caller says it has."""
    swarm = hosted.coordinator.swarm.swarm
    one, two = Identity.generate(), Identity.generate()
    async with NodeClient(hosted.invite, one) as first, NodeClient(hosted.invite, two) as second:
        await first.join()
        await second.join()
        assert (await first.exchange(groups_of(one, swarm, 1, 3), want=8)).sample == ()
        seen = set()
        for _ in range(5):
            second.next_at = 0
            seen |= {sha256_hex(raw) for raw in (await second.exchange([], want=8)).sample}
    assert len(seen) == 3


async def test_a_repeated_upload_is_stored_once(hosted: RunningCoordinator) -> None:
    """The same body signed anew gives the same verdicts and adds nothing."""
    swarm = hosted.coordinator.swarm.swarm
    node = Identity.generate()
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
        groups = groups_of(node, swarm, 1)
        first = await client.exchange(groups, want=0)
        client.next_at = 0
        again = await client.exchange(groups, want=0)
    assert (first.accepted, again.accepted) == (4, 4)
    assert (again.pool, again.mine) == (4, 4)


async def test_a_group_that_is_in_the_pool_already_is_a_duplicate(hosted: RunningCoordinator) -> None:
    """The same question and texts in another round are refused, with the reason."""
    swarm = hosted.coordinator.swarm.swarm
    node = Identity.generate()
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
        await client.exchange(groups_of(node, swarm, 1, 2), want=0)
        client.next_at = 0
        again = await client.exchange(groups_of(node, swarm, 1, 3), want=0)
    assert (again.accepted, again.refused) == (1, {"duplicate": 2})


async def test_tls_with_the_right_pin_passes_and_with_another_is_refused(make: Callable[..., object]) -> None:
    """The fingerprint in the invite is what is trusted, nothing else."""
    hosted: RunningCoordinator = await make(tls=True)  # type: ignore[misc]
    invite = parse_invite(str(hosted.invite))
    assert invite == hosted.invite
    assert invite.url.startswith("https://")
    async with NodeClient(invite, Identity.generate()) as client:
        await client.join()
    other = parse_invite(str(invite).replace(invite.fingerprint, "0" * 64))
    async with NodeClient(other, Identity.generate()) as client:
        with pytest.raises(Unreachable, match="another certificate"):
            await client.join()


async def test_an_invite_expires_is_used_up_and_is_revoked_with_all_it_admitted(make: Callable[..., object]) -> None:
    """Each end of an invite has its own code; revocation bans its members and drops their groups."""
    hosted: RunningCoordinator = await make(invite_uses=1)  # type: ignore[misc]
    swarm = hosted.coordinator.swarm.swarm
    node = Identity.generate()
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
        await client.join("again")
        await client.exchange(groups_of(node, swarm, 1), want=0)
        async with NodeClient(hosted.invite, Identity.generate()) as late:
            with pytest.raises(Refused) as refused:
                await late.join()
            assert refused.value.code == "invite_used_up"
        invites = await hosted.store.invites()
        assert await hosted.store.revoke_invite(invites[0].hash) == [node.node]
        client.next_at = 0
        result = await client.exchange([], want=0)
    assert (result.connected, result.code) == (False, "banned")
    assert (await hosted.store.stats(0.0, 1)).pool == 0


async def test_an_open_swarm_needs_no_invite_and_says_that_nobody_is_trusted(make: Callable[..., object]) -> None:
    """Open swarms are labelled wherever they are shown."""
    hosted: RunningCoordinator = await make(open=True)  # type: ignore[misc]
    assert hosted.invite.token == ""
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        assert (await client.join()).open
    assert "nobody in it is trusted" in describe_coordinator(hosted)


async def test_a_closed_swarm_admits_nobody_without_its_token(hosted: RunningCoordinator) -> None:
    """A wrong token is an unknown invite."""
    wrong = parse_invite(str(hosted.invite).replace(hosted.invite.token, secrets.token_hex(16)))
    async with NodeClient(wrong, Identity.generate()) as client:
        with pytest.raises(Refused, match="ask the host for a new one"):
            await client.join()


async def test_acknowledged_groups_members_and_invites_outlive_a_restart(
    make: Callable[..., object], tmp_path: Path
) -> None:
    """A coordinator that comes back on its file knows its swarm, its members, its pool and its credit."""
    before: RunningCoordinator = await make()  # type: ignore[misc]
    swarm = before.coordinator.swarm.swarm
    node = Identity.generate()
    async with NodeClient(before.invite, node) as client:
        await client.join("Ada")
        await client.exchange(groups_of(node, swarm, 1), want=0)
    await before.stop()
    after: RunningCoordinator = await make()  # type: ignore[misc]
    assert after.coordinator.swarm == before.coordinator.swarm
    async with NodeClient(after.invite, node) as client:
        result = await client.exchange([], want=0)
    assert (result.connected, result.pool, result.mine) == (True, 4, 4)


async def test_a_node_whose_coordinator_is_away_waits_with_full_jitter_and_flushes_nothing() -> None:
    """exchange never raises for the network; the wait grows as 2^n up to five minutes."""
    invite = parse_invite("sapo://127.0.0.1:1/#s=" + "a" * 16)
    now = [0.0]
    node = Identity.generate()
    async with NodeClient(invite, node, clock=lambda: now[0]) as client:
        for n in range(1, 12):
            result = await client.exchange(groups_of(node, invite.swarm, n), want=4)
            assert (result.connected, result.code) == (False, "unreachable")
            assert 0 <= client.wait_s <= min(300, 2**n)
            if client.wait_s:
                waiting = await client.exchange(groups_of(node, invite.swarm, n), want=4)
                assert waiting.code == "waiting"
            now[0] = client.next_at
        assert client.failures == 11


@pytest.mark.parametrize("failures", [11, 1022, 1023, 1024, 10**6])
async def test_a_node_whose_coordinator_stays_away_for_days_still_waits_five_minutes_at_most(failures: int) -> None:
    invite = parse_invite("sapo://127.0.0.1:1/#s=" + "a" * 16)
    waits = []
    async with NodeClient(invite, Identity.generate(), clock=lambda: 0.0, rng=random.Random(1)) as client:
        for _ in range(20):
            client.failures, client.next_at = failures, 0.0
            assert (await client.exchange([], want=4)).code == "unreachable"
            waits.append(client.wait_s)
    assert 150 < max(waits) <= 300


async def test_a_wrong_clock_is_corrected_from_the_reply(hosted: RunningCoordinator) -> None:
    """A node an hour off joins at the second attempt, by the coordinator's time."""
    import time

    async with NodeClient(hosted.invite, Identity.generate(), wall=lambda: time.time() - 3600) as client:
        await client.join()
        assert (await client.exchange([], want=0)).connected


async def test_a_stopping_coordinator_answers_what_it_took_and_refuses_the_rest(hosted: RunningCoordinator) -> None:
    """While it stops, new requests are told to come again."""
    hosted.coordinator.admission.stopping = True
    async with NodeClient(hosted.invite, Identity.generate()) as client:
        with pytest.raises(Refused) as refused:
            await client.info()
    assert refused.value.code == "stopping"
    assert refused.value.retry_after_s is not None


async def test_rate_limits_name_the_wait(make: Callable[..., object]) -> None:
    """The fourth round at once is refused with 429 and Retry-After."""
    hosted: RunningCoordinator = await make(round_every_s=1000.0, round_burst=3)  # type: ignore[misc]
    report = SimReport(1)
    async with open_session(hosted.invite, 4) as session:
        node = SimNode(session, hosted.invite, 1, 0)
        await node.join()
        waits = [await node.send(node.prepare(), report) for _ in range(4)]
    assert report.rounds == 3
    assert report.errors == {"429": 1}
    assert 500 < waits[3] <= 1500


async def test_simulated_nodes_load_a_coordinator_without_errors(make: Callable[..., object]) -> None:
    """Every node exchanges at its period and meets no error."""
    hosted: RunningCoordinator = await make(invite_uses=0)  # type: ignore[misc]
    report = await simulate(hosted.invite, nodes=20, seconds=1.0, every_s=0.5)
    assert not report.errors
    assert report.rounds >= 20
    assert report.sampled > 0
    assert "20 nodes" in report.summary()


async def test_metrics_and_health_are_answered(hosted: RunningCoordinator) -> None:
    """Prometheus text on loopback; readiness asks the store."""
    async with aiohttp.ClientSession(hosted.url) as session:
        for path, needle in [("/healthz", "ok"), ("/readyz", "ready"), ("/metrics", "sapo_pool_groups 0")]:
            async with session.get(path) as response:
                assert response.status == 200
                assert needle in await response.text()
        async with session.get("/metrics", headers={"X-Forwarded-For": "8.8.8.8"}) as response:
            assert response.status == 403


async def test_groups_that_break_the_rules_are_refused_one_by_one_with_reasons(hosted: RunningCoordinator) -> None:
    """Good groups of the same upload still count."""
    swarm = hosted.coordinator.swarm.swarm
    node, other = Identity.generate(), Identity.generate()
    good = sim_group(node, swarm, 1, 0)
    body = unpack_msgpack(good.body, GroupBody)

    def changed(**fields: object) -> SignedGroup:
        return node.sign_group(swarm, msgspec.structs.replace(body, **fields))

    held_out = msgspec.structs.replace(body.ref, seed=2**31)
    cases = {
        "": good,
        "author": sim_group(other, swarm, 1, 0),
        "signature": msgspec.structs.replace(good, signature=bytes(64)),
        "schema": msgspec.structs.replace(good, body=b"\x80"),
        "task": changed(ref=msgspec.structs.replace(body.ref, dataset="codeio")),
        "seed": changed(ref=held_out),
        "stale": changed(ts=body.ts - 10**7),
        "future": changed(ts=body.ts + 10**6),
        "too_long": changed(
            completions=(msgspec.structs.replace(body.completions[0], text="é" * 5000), body.completions[1])
        ),
    }
    async with NodeClient(hosted.invite, node) as client:
        await client.join()
        result = await client.exchange(list(cases.values()), want=0)
    assert result.accepted == 1
    assert result.refused == {reason: 1 for reason in cases if reason}


async def test_wrong_paths_methods_versions_and_media_are_problems_with_codes(hosted: RunningCoordinator) -> None:
    """RFC 9457 bodies with stable codes, never a bare page."""
    body = encode_message(Upload(groups=()))
    path = f"/v1/rounds/{sha256_hex(body)}"
    cases = [
        ("GET", "/nothing", {"Sapo-Proto": "1"}, "not_found"),
        ("DELETE", "/v1/join", {"Sapo-Proto": "1"}, "method_not_allowed"),
        ("PUT", path, {}, "protocol"),
        ("PUT", path, {"Sapo-Proto": "1"}, "unsupported_media"),
        ("PUT", path, {"Sapo-Proto": "1", "Content-Type": MEDIA_TYPE, "Content-Encoding": "gzip"}, "unsupported_media"),
        ("PUT", path, {"Sapo-Proto": "1", "Content-Type": MEDIA_TYPE}, "bad_signature"),
        ("PUT", "/v1/rounds/00", {"Sapo-Proto": "1", "Content-Type": MEDIA_TYPE}, "bad_signature"),
    ]
    async with aiohttp.ClientSession(hosted.url) as session:
        for method, where, headers, code in cases:
            async with session.request(method, where, headers=headers, data=body) as response:
                assert response.content_type == "application/problem+json", where
                problem = await response.json(content_type=None)
                assert (problem["code"], problem["status"]) == (code, response.status)
