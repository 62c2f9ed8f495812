"""What a node and a coordinator write, as scenarios: make a folder, work in it, and say afterwards whether a promise was broken.

work(folder, try_, promise): every write goes through try_(call), which gives False where it failed with a sentence; what
returned is promised. check(folder, promised) raises AssertionError when something promised is gone.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
from tests.support.faults import single_files
from tests.support.faults.scenario import TIMES, Promise, Scenario, Try, again, nothing
from tests.support.records import finished
from tests.support.stores import NOW, SWARM, invite, member, round_of

from sapo_backends.base import LoadRequest, PolicyUpdate, TrainSample
from sapo_backends.fake import FakeBackend
from sapo_desktop.errors import AppError
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.node.checkpoints import CheckpointInfo, CheckpointStore
from sapo_swarm.node.journal import Journal, check_journal, read_only
from sapo_swarm.node.resume_log import LoggedUpdate, ResumeHeader, UpdateLog, make_logged_update

# -- the journal of a model


def journal_make(folder: Path) -> None:
    journal = Journal(folder / "journal.db")
    journal.append([finished(0)])
    journal.close()


def journal_work(folder: Path, try_: Try, promise: Promise) -> None:
    opened: list[Journal] = []
    if not again(try_, lambda: opened.append(Journal(folder / "journal.db"))):
        return
    for number in range(1, TIMES):
        if again(try_, lambda n=number: opened[0].append([finished(n)])):  # type: ignore[misc]
            promise(number)
    try_(opened[0].close)


def journal_check(folder: Path, promised: Sequence[int]) -> None:
    rounds = [event.round for event in read_only(folder / "journal.db", ["round"])]  # type: ignore[union-attr]
    assert set(rounds) >= {0, *promised}, rounds
    assert check_journal(folder / "journal.db").sound


# -- the update log, and checkpoints

POLICY = PolicyUpdate(learning_rate=1e-3)
HEADER = ResumeHeader(0, "a" * 64, 0)


def update(number: int) -> LoggedUpdate:
    """A finished round."""
    batch = [TrainSample((5, 6), (7, number), 1.0, False, None, (-1.0, -1.0))]
    return make_logged_update(number, number, POLICY, batch, [b"{}"], [])


def log_work(folder: Path, try_: Try, promise: Promise) -> None:
    log = UpdateLog(folder)
    try_(lambda: log.start(HEADER))
    for number in range(TIMES):
        if again(try_, lambda n=number: log.append(update(n))):  # type: ignore[misc]
            promise(number)
        else:
            break  # a round that is not in the log is not done: no later one comes before it
    try_(log.close)


def log_check(folder: Path, promised: Sequence[int]) -> None:
    assert {u.round for u in UpdateLog(folder).read(HEADER)} >= set(promised)


def checkpoints_work(folder: Path, try_: Try, promise: Promise) -> None:
    engine = FakeBackend().load(LoadRequest(model="fake:0.002"))
    checkpoints = CheckpointStore(folder / "checkpoints", 2)
    for number in range(1, 4):
        if again(try_, lambda n=number: checkpoints.write(engine, CheckpointInfo(n, "time"))):  # type: ignore[misc]
            promise(number)


def checkpoints_check(folder: Path, promised: Sequence[int]) -> None:
    found, _ = CheckpointStore(folder / "checkpoints", 2).newest_intact()
    if promised:
        assert found is not None
        assert found[1].rounds_done >= max(promised)


# -- what a coordinator keeps


def store_work(folder: Path, try_: Try, promise: Promise) -> None:
    async def run() -> None:
        store = SQLiteStore(folder / "s.sqlite")

        async def told(call: Callable[[], Any], what: object, times: int = 2) -> None:
            for _ in range(times):
                error: list[BaseException] = []
                try:
                    await call()
                except Exception as caught:
                    error.append(caught)

                def raised(found: Sequence[BaseException] = tuple(error)) -> None:
                    if found:
                        raise found[0]

                if try_(raised):
                    promise(what)
                    return
            promise(f"no {what}")

        opened: list[bool] = []

        async def open_it() -> None:
            await store.open()
            opened.append(True)

        await told(open_it, "open")
        if not opened:
            return
        await told(lambda: store.found(SWARM), "swarm")
        await told(lambda: store.add_invite(invite("once")), "once", times=1)
        await told(lambda: store.add_invite(invite("h")), "invite")

        async def admit() -> None:
            if verdict := await store.admit(member("one", "h"), NOW):
                raise AppError(f"The store says of the invite: {verdict}")

        await told(admit, "member")
        for number in range(3):
            await told(
                lambda n=number: store.exchange(  # type: ignore[misc]
                    msgspec.structs.replace(round_of("one", [n]), nonce=secrets.token_hex(16), round_id=f"{n:064x}")
                ),
                number,
            )
        await told(store.close, "close")

    asyncio.run(run())


def store_check(folder: Path, promised: Sequence[object]) -> None:
    async def run() -> None:
        store = SQLiteStore(folder / "s.sqlite")
        await store.open()
        if "swarm" in promised:
            assert await store.swarm() == SWARM
        invites = {one.hash: one.uses for one in await store.invites()}
        assert "invite" not in promised or "h" in invites
        assert "once" not in promised or "once" in invites
        assert "no once" not in promised or "once" not in invites, "it was said that nothing was kept"
        if "member" in promised:
            assert await store.member("one") is not None
            assert invites["h"] == 1
        for number in [n for n in promised if isinstance(n, int)]:
            assert f"{number:032x}" in store._pool, f"group {number} was acknowledged"
        await store.close()

    asyncio.run(run())


SCENARIOS = (
    Scenario("journal", journal_make, journal_work, journal_check),
    Scenario("update log", nothing, log_work, log_check),
    Scenario("checkpoints", nothing, checkpoints_work, checkpoints_check),
    single_files.replaced("phrases", single_files.keep_phrases, single_files.kept_phrases),
    single_files.replaced("in flight", single_files.keep_in_flight, single_files.kept_in_flight),
    single_files.replaced(
        "model.json",
        single_files.keep_record,
        single_files.kept_record,
        lambda folder: single_files.keep_record(folder, 0),
    ),
    single_files.replaced("settings", single_files.keep_setting, single_files.kept_setting),
    single_files.replaced("invite", single_files.keep_invite, single_files.kept_invite),
    single_files.replaced("admin access", single_files.keep_access, single_files.kept_access),
    single_files.replaced("own task", single_files.keep_task, single_files.kept_task),
    Scenario("node key", nothing, single_files.key_work, single_files.key_check),
    Scenario("coordinator's store", nothing, store_work, store_check),
)
