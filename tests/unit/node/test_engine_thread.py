"""The engine's thread: who waits for whom."""

from __future__ import annotations

import asyncio
import itertools
import threading
from types import SimpleNamespace

import pytest

from sapo_swarm.node import engine_thread
from sapo_swarm.node.engine_thread import EngineThread


@pytest.fixture
async def host() -> EngineThread:
    return EngineThread()


class Round:
    """Long calls of another task, one behind the other; each ends when it is told to."""

    def __init__(self, host: EngineThread) -> None:
        self.done: list[str] = []
        self.may_end = [threading.Event() for _ in range(3)]
        self.began = [threading.Event() for _ in range(3)]
        self.task = asyncio.create_task(self.run(host))

    def work(self, number: int) -> None:
        self.began[number].set()
        assert self.may_end[number].wait(60)
        self.done.append(f"round {number}")

    async def run(self, host: EngineThread) -> None:
        for number in range(3):
            await host.call(self.work, number)


async def test_calls_of_a_task_that_holds_the_thread_do_not_each_wait_behind_a_round(host: EngineThread) -> None:
    """Three reads behind the first long call, before the second; without a hold they come one behind each."""
    around = Round(host)
    await asyncio.to_thread(around.began[0].wait)

    async def read() -> None:
        async with host.hold():
            for number in range(3):
                await host.call(around.done.append, f"read {number}")

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    for event in around.may_end:
        event.set()
    await asyncio.gather(reading, around.task)
    assert around.done[:4] == ["round 0", "read 0", "read 1", "read 2"]
    await host.close()


async def test_who_holds_the_thread_for_long_lets_others_go_first(
    host: EngineThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = itertools.chain([0.0, 0.0], itertools.repeat(engine_thread.HOLD_S + 1.0))
    monkeypatch.setattr(engine_thread, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    done: list[str] = []
    here, waits = threading.Event(), threading.Event()

    def first() -> None:
        here.set()
        assert waits.wait(60)
        done.append("read 0")

    async def read() -> None:
        async with host.hold():
            await host.call(first)
            await host.call(done.append, "read 1")

    reading = asyncio.create_task(read())
    await asyncio.to_thread(here.wait)
    other = asyncio.create_task(host.call(done.append, "round"))
    await asyncio.sleep(0)
    waits.set()
    await asyncio.gather(reading, other)
    assert done == ["read 0", "round", "read 1"]
    await host.close()


async def test_an_error_is_the_caller_s_and_the_thread_goes_on(host: EngineThread) -> None:
    with pytest.raises(ZeroDivisionError):
        async with host.hold():
            await host.call(divmod, 1, 0)
    assert await host.call(divmod, 7, 2) == (3, 1)
    await host.close()


async def test_a_holder_that_is_cancelled_while_it_waits_keeps_nobody_waiting(host: EngineThread) -> None:
    around = Round(host)
    await asyncio.to_thread(around.began[0].wait)

    async def read() -> None:
        async with host.hold():
            await host.call(around.done.append, "read")

    reading = asyncio.create_task(read())
    await asyncio.sleep(0)
    reading.cancel()
    for event in around.may_end:
        event.set()
    with pytest.raises(asyncio.CancelledError):
        await reading
    await around.task
    assert around.done == ["round 0", "round 1", "round 2"]
    await host.close()
