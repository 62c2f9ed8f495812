"""Tasks of members' own in every store: kept by name, found by hash, and their groups sampled for those who accepted them."""

from __future__ import annotations

from pathlib import Path

import msgspec
from tests.support.own_tasks import sums
from tests.support.stores import NOW, Build, entry, round_of

from sapo_swarm.coordinator.admin import export_swarm, import_swarm
from sapo_swarm.coordinator.records import SwarmRecord
from sapo_swarm.coordinator.store.base import Store
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import GroupBody, SharedCompletion, TaskUpload, build_task_upload
from sapo_swarm.tasks.own.folder import read_task
from sapo_swarm.types import TaskRef


def upload(folder: Path, rows: int) -> TaskUpload:
    return build_task_upload(read_task(sums(folder / str(rows) / "my_sums", train=rows)), False)


async def test_a_task_is_kept_by_name_and_found_by_hash_over_a_restart(build: Build, tmp_path: Path) -> None:
    first, second = upload(tmp_path, 5), upload(tmp_path, 6)
    made = build()
    await made.open()
    await made.put_task(first)
    assert await made.tasks() == [first.offer]
    await made.put_task(second)
    await made.close()
    made = build()
    await made.open()
    assert await made.tasks() == [second.offer]
    assert await made.task(second.offer.hash) == second
    assert await made.task(first.offer.hash) is None
    assert await made.drop_task("my_sums")
    assert not await made.drop_task("my_sums")
    assert await made.tasks() == []
    assert await made.task(second.offer.hash) is None
    await made.close()


async def test_groups_of_a_task_are_sampled_only_for_those_who_accepted_it(store: Store) -> None:
    theirs = tuple(msgspec.structs.replace(entry("a", number), task="task-a") for number in (1, 2))
    await store.exchange(round_of("a", [], entries=theirs))
    await store.exchange(round_of("b", [3]))
    for _ in range(8):
        plain = await store.exchange(round_of("c", [], want=4))
        assert plain.sample == (entry("b", 3).blob,)
        other = await store.exchange(round_of("c", [], want=4, accepts=frozenset({"task-b"})))
        assert other.sample == (entry("b", 3).blob,)
        friend = await store.exchange(round_of("d", [], want=4, accepts=frozenset({"task-a"})))
        assert len(friend.sample) == 3
    assert await store.snapshot(NOW, 4) == (entry("b", 3).blob,), "a snapshot is for everybody"


async def test_a_swarm_that_moves_takes_its_tasks_along(store: Store, tmp_path: Path) -> None:
    await store.found(SwarmRecord(swarm="a" * 16, name="s", open=False, certificate=b"", key=b"", created=0.0))
    without = await export_swarm(store)
    assert b"tasks" not in without
    task = upload(tmp_path, 5)
    await store.put_task(task)
    other = SQLiteStore(tmp_path / "other.sqlite")
    await other.open()
    await import_swarm(other, await export_swarm(store))
    assert await other.task(task.offer.hash) == task
    await other.close()


async def test_groups_of_a_task_stay_its_members_own_over_a_restart(tmp_path: Path) -> None:
    """The file of earlier versions has no column for it: it is read from the group."""
    author = Identity.generate()
    ref = TaskRef("my_sums", "own", 1, 0, "task-" + "a" * 32)
    texts = (SharedCompletion(text="a", finish="stop"), SharedCompletion(text="b", finish="stop"))
    body = GroupBody(
        ref=ref, prompt_sha256="0" * 64, completions=texts, node=author.node, model="m", policy_step=0, ts=0
    )
    blob = msgspec.msgpack.encode(author.sign_group("a" * 16, body))
    for first in (True, False):
        made = SQLiteStore(tmp_path / "s.sqlite")
        await made.open()
        if first:
            group = msgspec.structs.replace(entry("a", 1), blob=blob, task=ref.generator)
            await made.exchange(round_of("a", [], entries=(group,)))
        assert (await made.exchange(round_of("c", [], want=4))).sample == ()
        assert (await made.exchange(round_of("c", [], want=4, accepts=frozenset({ref.generator})))).sample == (blob,)
        await made.close()
