"""What a coordinator keeps for a while."""

from __future__ import annotations

import asyncio

from sapo_swarm.coordinator.metrics import CachedValue


async def test_a_value_is_made_once_for_all_who_ask_and_anew_when_it_is_too_old() -> None:
    """Also where the clock was set back, and after the word that it changed."""
    made, now, go_on = 0, [10.0], asyncio.Event()

    async def make() -> int:
        nonlocal made
        made += 1
        await go_on.wait()
        return made

    async def done() -> int:
        go_on.set()
        return 0

    cached = CachedValue(make, 2.0, lambda: now[0])
    assert await asyncio.gather(cached(), cached(), cached(), done()) == [1, 1, 1, 0]
    found = []
    for now[0] in (11.9, 12.0, 13.9, 11.0, 11.5):
        found.append(await cached())
    assert found == [1, 2, 2, 3, 3]
    cached.forget()
    assert await cached() == 4


async def test_what_was_being_made_when_it_changed_is_not_kept() -> None:
    values, reached, go_on = ["before", "after"], asyncio.Event(), asyncio.Event()

    async def make() -> str:
        value = values.pop(0)
        reached.set()
        await go_on.wait()
        return value

    cached = CachedValue(make, 2.0, lambda: 10.0)
    asking = asyncio.create_task(cached())
    await reached.wait()
    cached.forget()
    go_on.set()
    assert await asking == "before"
    assert await cached() == "after"
