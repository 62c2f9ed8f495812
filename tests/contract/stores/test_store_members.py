"""One suite over every store: invites, members, bans."""

from __future__ import annotations

import asyncio
import random
import secrets
from pathlib import Path

import msgspec
import pytest
from tests.support.stores import LIMITS, NOW, SWARM, Build, invite, member, round_of

from sapo_swarm.coordinator.records import PoolLimits, SwarmRecord
from sapo_swarm.coordinator.store.base import Store, StoreUnavailable
from sapo_swarm.coordinator.store.redis import RedisStore
from sapo_swarm.coordinator.store.redis_scripts import DROP_MEMBERS
from sapo_swarm.coordinator.store.sqlite import SQLiteStore


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


async def test_nothing_of_an_upload_that_began_before_its_node_was_banned_enters_the_pool(store: Store) -> None:
    """Nor is it sampled for; the same request is good when the ban is lifted."""
    await store.found(SWARM)
    await store.add_invite(invite("h1"))
    await store.admit(member("one", "h1"), NOW)
    await store.exchange(round_of("other", [9]))
    upload = round_of("one", [1, 2], want=4)
    await store.ban("one", "spam")
    refused = await store.exchange(upload)
    assert (refused.banned, refused.stored, refused.sample) == ("spam", (), ())
    assert (await store.exchange(round_of("two", [], want=4))).pool == 1
    await store.ban("one", "")
    assert (await store.exchange(upload)).stored == (True, True)
    assert await store.revoke_invite("h1") == ["one"]
    assert (await store.exchange(round_of("one", [3]))).banned == "invite revoked"


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


async def test_a_revoked_invite_leaves_the_reasons_of_earlier_bans(store: Store) -> None:
    """Who was banned with a reason, and with the invite, is told that reason."""
    await store.found(SWARM)
    await store.add_invite(invite("h"))
    for node in ("spammer", "friend"):
        assert await store.admit(member(node, "h"), NOW) == ""
    await store.ban("spammer", "spam")
    assert sorted(await store.revoke_invite("h")) == ["friend", "spammer"]
    assert {one.node: one.banned for one in await store.members()} == {"spammer": "spam", "friend": "invite revoked"}


async def test_an_invite_that_nobody_used_for_long_admits_nobody(store: Store) -> None:
    """One without an end would otherwise lie in a mailbox for years."""
    patient(store, 30.0)
    await store.add_invite(invite("h", expires=0.0, created=NOW))
    day = 86_400.0
    assert await store.admit(member("a", "h"), NOW + 20 * day) == ""
    assert await store.admit(member("b", "h"), NOW + 45 * day) == "", "it was used meanwhile"
    assert await store.admit(member("c", "h"), NOW + 80 * day) == "expired"


async def test_in_a_full_swarm_members_that_were_silent_for_long_give_way(store: Store, build: Build) -> None:
    """Those that talk, or are banned, stay. A bad invite puts nobody out, and who was put out needs a good one."""
    patient(store, 30.0)
    await store.found(SWARM)
    await store.add_invite(invite("h", expires=0.0))
    for number in range(LIMITS.members):
        assert await store.admit(member(f"n{number}", "h"), NOW) == ""
    await store.ban("n0", "spam")
    now = NOW + 31 * 86_400.0
    await store.add_invite(invite("new", created=now))
    for node in ("n1", "n2"):
        await store.exchange(round_of(node, [], at=20 * 86_400.0))
    assert await store.admit(member("bad", "no such", joined=now), now) == "unknown"
    assert len(await store.members()) == LIMITS.members
    assert await store.admit(member("guest", "new", joined=now), now) == ""
    assert await store.admit(member("n3", "h", joined=now), now) == "expired"
    await store.close()
    await (again := build()).open()
    assert sorted(one.node for one in await again.members()) == ["guest", "n0", "n1", "n2"]
    await again.close()


async def test_in_a_full_open_swarm_who_joined_and_never_exchanged_gives_way_after_an_hour(store: Store) -> None:
    """Joining again does not keep the place, one exchange does, and so does an invite."""
    await store.rename(msgspec.structs.replace(SWARM, open=True))
    await store.add_invite(invite("h"))
    await store.admit(member("invited", "h"), NOW)
    for number in range(LIMITS.members - 1):
        await store.admit(member(f"n{number}"), NOW)
    for node in ("n1", "n2"):
        await store.exchange(round_of(node, [], at=1.0))
    await store.admit(member("n3"), NOW + 3000.0)
    for at, verdict in ((3500.0, "full"), (3590.0, "full"), (3650.0, "")):
        assert await store.admit(member("guest", joined=NOW + at), NOW + at) == verdict
    assert sorted(one.node for one in await store.members()) == ["guest", "invited", "n1", "n2"]


async def test_a_member_that_gave_way_may_come_back_at_once(tmp_path: Path) -> None:
    """Put out and let in within one transaction of SQLite: what it was told holds when the file is read again."""
    store = SQLiteStore(tmp_path / "s.sqlite", LIMITS)
    await store.open()
    await store.rename(msgspec.structs.replace(SWARM, open=True))
    for number in range(LIMITS.members):
        await store.admit(member(f"n{number}"), NOW)
    now = NOW + 4000.0
    joins = [store.admit(member(node, joined=now), now) for node in ("guest", "n7", "n8")]
    assert await asyncio.gather(*joins) == ["", "", ""]
    await store.close()
    await store.open()
    assert {one.node: one.joined for one in await store.members()} == dict.fromkeys(("guest", "n7", "n8"), now)
    await store.close()


async def test_nobody_gives_way_where_the_newcomer_cannot_be_written(tmp_path: Path) -> None:
    """What the file still holds, memory does too."""
    store = SQLiteStore(tmp_path / "s.sqlite", LIMITS)
    await store.open()
    await store.rename(msgspec.structs.replace(SWARM, open=True))
    for number in range(LIMITS.members):
        await store.admit(member(f"n{number}"), NOW)
    assert store._writer is not None
    store._writer._connection.execute("PRAGMA query_only=1")
    with pytest.raises(StoreUnavailable):
        await store.admit(member("guest", joined=NOW + 4000.0), NOW + 4000.0)
    store._writer._connection.execute("PRAGMA query_only=0")
    assert {one.node for one in await store.members()} == {f"n{number}" for number in range(LIMITS.members)}
    await store.close()


async def test_members_give_way_in_pieces_and_keep_their_place_where_they_exchange_meanwhile(redis_url: str) -> None:
    """Three thousand in Redis: a thousand or some more go at once, and one that exchanges while they are read stays."""
    limits = PoolLimits(members=3000)
    store = RedisStore(redis_url, limits, random.Random(1), secrets.token_hex(4))
    await store.open()
    await store.rename(msgspec.structs.replace(SWARM, open=True))
    await store.restore([member(f"n{number}") for number in range(3000)], [])
    run, late = store._run, 0

    async def meanwhile(script: str, *rest: object) -> object:
        nonlocal late
        if script == DROP_MEMBERS:
            late += 1
            await store.exchange(round_of(rest[1], [], at=3700.0))  # type: ignore[arg-type]
        return await run(script, *rest)

    store._run = meanwhile  # type: ignore[method-assign, assignment]
    assert await store.admit(member("guest", joined=NOW + 3700.0), NOW + 3700.0) == ""
    left = await store.members()
    assert 500 < len(left) < 2001 + late, "how many a piece holds is up to Redis"
    assert sum(one.seen > 0 for one in left) == late > 0
    await store.close()


async def test_a_member_of_an_open_swarm_takes_on_the_invite_that_it_joins_by_later(store: Store) -> None:
    """Once, and only a good one: so revoking it reaches the member."""
    await store.rename(msgspec.structs.replace(SWARM, open=True))
    await store.add_invite(invite("late", expires=NOW - 1))
    await store.add_invite(invite("good", max_uses=1))
    assert await store.admit(member("one"), NOW) == ""
    assert [await store.admit(member("one", name), NOW) for name in ("late", "good", "good", "late")] == [""] * 4
    kept = await store.member("one")
    assert kept is not None
    assert kept.invite == "good"
    assert {found.hash: found.uses for found in await store.invites()} == {"late": 0, "good": 1}
    assert await store.admit(member("two", "good"), NOW) == "used_up"
    assert await store.revoke_invite("good") == ["one"]
