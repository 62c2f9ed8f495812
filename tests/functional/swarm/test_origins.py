"""A coordinator names the origin that sources share, an invite or in an open swarm a network, without telling which."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from tests.functional.swarm.test_lying_coordinator import REPLY
from tests.support.simulated_nodes import sim_group

from sapo_swarm.coordinator.admin import new_invite
from sapo_swarm.coordinator.host import RunningCoordinator, launch_coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.protocol.client import ExchangeResult, NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.invite import Invite
from sapo_swarm.protocol.wire import H_ORIGINS, RoundReply


@asynccontextmanager
async def hosting(store: str, tmp_path: Path, is_open: bool) -> AsyncIterator[RunningCoordinator]:
    store = store or f"sqlite:{tmp_path}/s.sqlite"
    settings = CoordinatorSettings(
        port=0, store=store, folder=str(tmp_path), open=is_open, round_every_s=0.001, trust_proxy=True
    )
    running = await launch_coordinator(settings)
    yield running
    await running.stop()


async def exchange(invite: Invite, address: str, want: int, without: str = "") -> tuple[Identity, ExchangeResult]:
    """A new node behind a proxy that names this address shares a group. without: a header that it does not send."""
    node = Identity.generate()
    async with NodeClient(invite, node) as client:
        session = client._transport._session
        assert session is not None
        session.headers["X-Forwarded-For"] = address  # type: ignore[index]
        session.headers.pop(without, None)  # type: ignore[attr-defined]
        await client.join()
        return node, await client.exchange([sim_group(node, invite.swarm, 1, 0)], want)


def origins_of(result: ExchangeResult, *nodes: Identity) -> list[str]:
    """Of each node's group in the sample."""
    of = {
        node.public_key: origin
        for node in nodes
        for raw, origin in zip(result.sample, result.origins, strict=True)
        if node.public_key in bytes(raw)
    }
    return [of[node.public_key] for node in nodes]


@pytest.mark.parametrize("kind", ["sqlite", "redis"])
async def test_nodes_of_one_network_of_an_open_swarm_share_an_origin(
    kind: str, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """The tag holds nothing of the address; an address of this machine has none."""
    store = request.getfixturevalue("redis_url") if kind == "redis" else ""
    async with hosting(store, tmp_path, is_open=True) as hosted:
        addresses = ("203.0.113.7", "203.0.113.9", "198.51.100.7", "2001:db8:1:2::1", "2001:db8:1:3::1", "127.0.0.1")
        nodes = [(await exchange(hosted.invite, address, 0))[0] for address in addresses]
        _, result = await exchange(hosted.invite, "192.0.2.1", 16)
        one, same, other, home, garage, here = origins_of(result, *nodes)
        assert one == same != other
        assert home == garage != other
        assert here == ""
        _, earlier = await exchange(hosted.invite, "192.0.2.1", 16, without=H_ORIGINS)
        assert (len(earlier.sample), earlier.origins) == (7, ())


async def test_nodes_of_one_invite_share_an_origin(tmp_path: Path) -> None:
    """Wherever they come from."""
    async with hosting("", tmp_path, is_open=False) as hosted:
        _, token = await new_invite(hosted.store, "", 1.0, 10)
        another = replace(hosted.invite, token=token)
        one, _ = await exchange(hosted.invite, "203.0.113.7", 0)
        same, _ = await exchange(hosted.invite, "198.51.100.7", 0)
        other, _ = await exchange(another, "203.0.113.7", 0)
        _, result = await exchange(another, "192.0.2.1", 8)
        first, second, third = origins_of(result, one, same, other)
        assert first == second != third


def test_a_reply_without_origins_is_the_one_that_earlier_nodes_read() -> None:
    """They refuse fields that they do not know."""
    assert msgspec.to_builtins(REPLY).keys() == set(RoundReply.__struct_fields__) - {"origins"}
