"""One suite over every store: invites, members, bans."""

from __future__ import annotations

import msgspec
from tests.support.stores import LIMITS, NOW, SWARM, invite, member, round_of

from sapo_swarm.coordinator.domain.records import (
    SwarmRecord,
)
from sapo_swarm.coordinator.store.base import Store


async def test_invites_end_in_every_way(store: Store) -> None:
    """Unknown, expired, used up, revoked; joining again uses nothing up and keeps what admitted the node."""
    await store.found(SWARM)
    await store.add_invite(invite("once", max_uses=1))
    await store.add_invite(invite("late", created=NOW + 1, expires=NOW - 1))
    assert await store.admit(member("one", "nope"), NOW) == "unknown"
    assert await store.admit(member("one", ""), NOW) == "unknown"
    assert await store.admit(member("one", "late"), NOW) == "expired"
    assert await store.admit(member("one", "once"), NOW) == ""
    assert await store.admit(member("one", "nope", name="new name"), NOW) == ""
    assert await store.admit(member("two", "once"), NOW) == "used_up"
    kept = await store.member("one")
    assert kept is not None
    assert (kept.name, kept.invite) == ("new name", "once")
    assert [(i.hash, i.uses) for i in await store.invites()] == [("once", 1), ("late", 0)]
    await store.exchange(round_of("one", [1, 2]))
    assert await store.revoke_invite("once") == ["one"]
    assert await store.admit(member("three", "once"), NOW) == "revoked"
    banned = await store.member("one")
    assert banned is not None
    assert banned.banned == "invite revoked"
    assert (await store.exchange(round_of("two", [], want=4))).pool == 0


async def test_an_open_swarm_admits_without_an_invite(store: Store) -> None:
    """Only where the swarm is open."""
    await store.found(SWARM)
    assert await store.admit(member("one"), NOW) == "unknown"
    await store.rename(SwarmRecord(swarm="a" * 16, name="s", open=True, certificate=b"c", key=b"k", created=NOW))
    assert await store.admit(member("one"), NOW) == ""


async def test_a_full_swarm_admits_only_those_it_knows(store: Store) -> None:
    """The number of members is bounded; joining again is not joining."""
    await store.rename(SwarmRecord(swarm="a" * 16, name="s", open=True, certificate=b"c", key=b"k", created=NOW))
    assert [await store.admit(member(f"n{n}"), NOW) for n in range(51)] == [""] * 50 + ["full"]
    assert await store.admit(member("n7"), NOW) == ""


async def test_bans_are_kept_and_lifted(store: Store) -> None:
    """A ban drops the node's groups, stays through a new join, and can be lifted."""
    await store.rename(SwarmRecord(swarm="a" * 16, name="s", open=True, certificate=b"c", key=b"k", created=NOW))
    await store.admit(member("one"), NOW)
    await store.exchange(round_of("one", [1]))
    assert await store.ban("one", "spam")
    assert not await store.ban("nobody", "spam")
    await store.admit(member("one"), NOW)
    for reason in ("spam", ""):
        kept = await store.member("one")
        assert kept is not None
        assert kept.banned == reason
        await store.ban("one", "")
    assert (await store.exchange(round_of("two", [], want=1))).sample == ()


async def test_a_waiting_member_is_let_in_once_and_for_all(store: Store) -> None:
    """Joining again does not let it in, and does not shut it out."""
    await store.found(SWARM)
    await store.add_invite(invite("h"))
    assert await store.admit(member("one", "h", waiting=True), NOW) == ""
    assert await store.admit(member("one", "h", waiting=False), NOW) == ""
    found = await store.member("one")
    assert found is not None
    assert found.waiting
    assert await store.approve("one")
    assert not await store.approve("nobody")
    await store.admit(member("one", "h", waiting=True), NOW)
    found = await store.member("one")
    assert found is not None
    assert not found.waiting


def patient(store: Store, days: float) -> Store:
    """The store, with members that may be silent for so many days."""
    store.limits = msgspec.structs.replace(LIMITS, idle_s=days * 86_400.0)  # type: ignore[attr-defined]
    return store


async def test_a_member_that_was_silent_for_long_needs_an_invite_again(store: Store) -> None:
    """A key that lies forgotten somewhere opens nothing: whoever finds it joins like anybody else. A ban outlives it."""
    patient(store, 30.0)
    await store.add_invite(invite("h", max_uses=3))
    day = 86_400.0
    for node in ("silent", "talks", "banned"):
        assert await store.admit(member(node, "h", joined=NOW), NOW) == ""
    await store.ban("banned", "a reason")
    for days in range(1, 41, 10):
        await store.exchange(round_of("talks", [days], at=days * day))
    now = NOW + 41 * day
    found = {node: await store.member(node) for node in ("silent", "talks", "banned")}
    assert {node: who is not None and who.idle(now, 30 * day) for node, who in found.items()} == {
        "silent": True,
        "talks": False,
        "banned": False,
    }
    assert await store.admit(member("talks", "h", joined=now), now) == "", "it is a member: it uses nothing up"
    assert await store.admit(member("silent", "h", joined=now), now) == "expired"
    await store.add_invite(invite("new", created=now, expires=0.0))
    assert await store.admit(member("silent", "new", joined=now), now) == ""
    back = await store.member("silent")
    assert back is not None
    assert not back.idle(now, 30 * day)
    banned = await store.member("banned")
    assert banned is not None
    assert banned.banned == "a reason"


async def test_a_revoked_invite_bans_nobody_who_came_back_by_another(store: Store) -> None:
    """Silent for 41 days, then let in anew: the old invite has no say any more."""
    patient(store, 30.0)
    for node, joined, by in (("stays", 0, "old"), ("returns", 0, "old"), ("returns", 41, "new")):
        now = NOW + joined * 86_400.0
        await store.add_invite(invite(by, created=now))
        assert await store.admit(member(node, by, joined=now), now) == ""
    assert await store.revoke_invite("old") == ["stays"]
    assert {one.node: one.banned for one in await store.members()} == {"stays": "invite revoked", "returns": ""}
    assert await store.revoke_invite("new") == ["returns"]


async def test_an_invite_that_nobody_used_for_long_admits_nobody(store: Store) -> None:
    """One without an end would otherwise lie in a mailbox for years."""
    patient(store, 30.0)
    await store.add_invite(invite("h", expires=0.0, created=NOW))
    day = 86_400.0
    assert await store.admit(member("a", "h"), NOW + 20 * day) == ""
    assert await store.admit(member("b", "h"), NOW + 45 * day) == "", "it was used meanwhile"
    assert await store.admit(member("c", "h"), NOW + 80 * day) == "expired"
