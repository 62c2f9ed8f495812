"""A private task at a coordinator: who may know of it, and what a hostile one can do. Real sockets, in one process."""

from __future__ import annotations

import hashlib
import resource
import time
from collections.abc import AsyncIterator, Awaitable
from dataclasses import replace
from pathlib import Path

import aiohttp
import msgspec
import pytest
import zstandard
from tests.functional.swarm.test_members import settings
from tests.support.hostile_tasks import HOSTILE
from tests.support.own_tasks import sums

from sapo_swarm.coordinator.admin_client import AdminClient, read_access
from sapo_swarm.coordinator.host import RunningCoordinator, admin_path, launch_coordinator
from sapo_swarm.protocol.client import NodeClient, Refused
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import (
    H_PROTO,
    MAX_TASKS,
    GroupBody,
    SharedCompletion,
    SignedGroup,
    TaskOffer,
    TaskUpload,
    build_task_upload,
)
from sapo_swarm.tasks.own import folder as travel
from sapo_swarm.tasks.own.folder import HEADER, read_task
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import TaskRef

MEMORY = 600 * 2**20


@pytest.fixture
async def hosted(tmp_path: Path) -> AsyncIterator[RunningCoordinator]:
    running = await launch_coordinator(settings(tmp_path, invite_uses=0))
    yield running
    await running.stop()


@pytest.fixture
def upload(tmp_path: Path) -> TaskUpload:
    return build_task_upload(read_task(sums(tmp_path / "my_sums")), False)


def admin(tmp_path: Path) -> AdminClient:
    return AdminClient(read_access(admin_path(settings(tmp_path))))


async def offered(hosted: RunningCoordinator, who: Identity) -> tuple[TaskOffer, ...]:
    async with NodeClient(hosted.invite, who) as client:
        await client.join()
        return await client.tasks()


async def test_a_member_with_an_invite_reads_the_task_that_the_host_shares(
    hosted: RunningCoordinator, upload: TaskUpload, tmp_path: Path
) -> None:
    """It comes as it left; a new version takes the place of the old one, and what is taken out is gone."""
    async with admin(tmp_path) as host, NodeClient(hosted.invite, Identity.generate()) as guest:
        await guest.join()
        assert await guest.tasks() == ()
        await host.share(upload)
        assert await guest.tasks() == (upload.offer,)
        assert (await guest.task(upload.offer)).digest == upload.offer.hash
        newer = build_task_upload(read_task(sums(tmp_path / "other" / "my_sums", train=81)), True)
        await host.share(newer)
        assert await guest.tasks() == (newer.offer,)
        assert len((await guest.task(newer.offer)).held_out) == 20
        with pytest.raises(Refused, match="no task of this hash"):
            await guest.task(upload.offer)
        await host.unshare("my_sums")
        assert await guest.tasks() == ()
        with pytest.raises(Refused, match="no task of this name"):
            await host.unshare("my_sums")


async def test_who_holds_no_invite_learns_nothing_of_it(
    hosted: RunningCoordinator, upload: TaskUpload, tmp_path: Path
) -> None:
    """Neither by asking, nor from the pages that anybody may see, nor with a revoked invite or after a ban."""
    stranger, banned = Identity.generate(), Identity.generate()
    async with admin(tmp_path) as host:
        await host.share(upload)
        async with NodeClient(replace(hosted.invite, token=""), stranger) as client:
            with pytest.raises(Refused, match="invite is unknown"):
                await client.join()
            for ask in (client.tasks(), client.task(upload.offer)):
                with pytest.raises(Refused) as refused:
                    await ask
                assert refused.value.code == "unknown_node"
        async with NodeClient(hosted.invite, banned) as client:
            await client.join()
            await client.exchange([_group(client, upload.offer)], 0)
            assert (await client.tasks()) == (upload.offer,)
            await host.ban(banned.node)
            with pytest.raises(Refused, match="banned"):
                await client.tasks()
    async with aiohttp.ClientSession(hosted.url, headers={H_PROTO: "1"}) as anybody:
        for path in ("/", "/v1/swarm", "/v1/leaderboard", "/metrics", "/v1/tasks", f"/v1/tasks/{upload.offer.hash}"):
            async with anybody.get(path) as answer:
                text = await answer.text()
                assert "my_sums" not in text, path
                assert upload.offer.hash[:12] not in text, path


async def test_a_swarm_that_is_open_to_anyone_shares_no_private_task(upload: TaskUpload, tmp_path: Path) -> None:
    """Nor does who joined while it was open, or a swarm that was opened later."""
    crowd = Identity.generate()
    running = await launch_coordinator(settings(tmp_path, open=True))
    async with admin(tmp_path) as host:
        with pytest.raises(Refused, match="Anyone may join"):
            await host.share(upload)
    assert await offered(running, crowd) == ()
    await running.stop()
    running = await launch_coordinator(settings(tmp_path))
    async with admin(tmp_path) as host:
        await host.share(upload)
    async with NodeClient(running.invite, crowd) as client:
        assert await client.tasks() == ()
    assert await offered(running, Identity.generate()) == (upload.offer,)
    await running.stop()
    running = await launch_coordinator(settings(tmp_path, open=True))
    assert await offered(running, Identity.generate()) == ()
    await running.stop()


def _group(client: NodeClient, offer: TaskOffer, seed: int = 1) -> SignedGroup:
    ref = TaskRef(offer.name, "own", seed, 0, offer.generator)
    texts = tuple(SharedCompletion(text=f"<answer>{seed} {n}</answer>", finish="stop") for n in range(2))
    body = GroupBody(
        ref=ref,
        prompt_sha256="0" * 64,
        completions=texts,
        node=client.identity.node,
        model="m",
        policy_step=0,
        ts=int(client.unix_time() * 1000),
    )
    return client.identity.sign_group(client.invite.swarm, body)


async def test_groups_of_it_go_to_members_who_accepted_it_and_to_nobody_else(
    hosted: RunningCoordinator, upload: TaskUpload, tmp_path: Path
) -> None:
    offer = upload.offer
    async with (
        admin(tmp_path) as host,
        NodeClient(hosted.invite, Identity.generate()) as author,
        NodeClient(hosted.invite, Identity.generate()) as friend,
        NodeClient(hosted.invite, Identity.generate()) as third,
    ):
        for client in (author, friend, third):
            await client.join()
        before = await author.exchange([_group(author, offer)], 0)
        assert (before.accepted, before.refused) == (0, {"task": 1})
        await host.share(upload)
        author.next_at = 0.0
        assert (await author.exchange([_group(author, offer, 2)], 0)).accepted == 1
        assert (await third.exchange([], 8)).sample == ()
        assert len((await friend.exchange([], 8, accepts=[offer.generator])).sample) == 1
        await host.unshare(offer.name)
        friend.next_at = 0.0
        assert (await friend.exchange([], 8, accepts=[offer.generator])).sample == ()


async def test_a_ninth_task_and_one_too_large_are_refused(hosted: RunningCoordinator, tmp_path: Path) -> None:
    async with admin(tmp_path) as host:
        for number in range(MAX_TASKS):
            await host.share(build_task_upload(read_task(sums(tmp_path / f"sums_{number}")), False))
        with pytest.raises(Refused, match="Take one out first"):
            await host.share(build_task_upload(read_task(sums(tmp_path / "ninth")), False))
        await host.share(build_task_upload(read_task(sums(tmp_path / "again" / "sums_0", train=9)), False))
        bomb = zstandard.ZstdCompressor(19).compress(b"\x00" * 2**28)
        offer = msgspec.structs.replace(
            build_task_upload(read_task(sums(tmp_path / "more" / "sums_0")), False).offer, packed=len(bomb)
        )
        with pytest.raises(Refused, match="would unpack to"):
            await host.share(TaskUpload(offer=offer, packed=bomb))


async def test_a_coordinator_that_sends_more_than_it_said_is_cut_off(
    hosted: RunningCoordinator, upload: TaskUpload, tmp_path: Path
) -> None:
    offer = msgspec.structs.replace(upload.offer, packed=100)
    await hosted.store.put_task(TaskUpload(offer=offer, packed=upload.packed))
    async with NodeClient(hosted.invite, Identity.generate()) as guest:
        await guest.join()
        with pytest.raises(Refused, match="longer than the protocol allows"):
            await guest.task(offer)


@pytest.mark.slow
async def test_two_hundred_hostile_tasks_do_no_harm_at_the_coordinator_or_the_guest(
    hosted: RunningCoordinator, tmp_path: Path
) -> None:
    """The host's coordinator refuses them in a sentence. One that hands them out all the same meets the guest's own reader."""
    began, used = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    said: dict[str, list[str]] = {"coordinator": [], "guest": []}
    guest: NodeClient | None = None
    async with admin(tmp_path) as host:
        for number, make in enumerate(HOSTILE.values()):
            if number % 15 == 0:  # each member may ask so often only
                if guest is not None:
                    await guest.__aexit__(None, None, None)
                guest = await NodeClient(hosted.invite, Identity.generate()).__aenter__()
                await guest.join()
            assert guest is not None
            folder = tmp_path / f"hostile_{number}"
            make(folder)
            upload = _as_it_lies(folder)
            said["coordinator"].append(await _refusal(host.share(upload)))
            await hosted.store.put_task(upload)
            hosted.coordinator.own_tasks.forget()
            said["guest"].append(await _refusal(guest.task(upload.offer)))
            await hosted.store.drop_task(upload.offer.name)
            hosted.coordinator.own_tasks.forget()
        assert guest is not None
        await guest.__aexit__(None, None, None)
    refused = [[bool(sentence) for sentence in sentences] for sentences in said.values()]
    assert refused[0] == refused[1]
    assert sum(refused[0]) >= 150
    assert all(not sentence or 10 < len(sentence) < 3000 for sentences in said.values() for sentence in sentences)
    assert time.process_time() - began < 120.0
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - used) * 1024 < MEMORY


async def _refusal(work: Awaitable[object]) -> str:
    """Why it was refused, "" where it was not."""
    try:
        await work
    except (BadTask, Refused) as error:
        return str(error)
    return ""


def _as_it_lies(folder: Path) -> TaskUpload:
    """What a host would send that does not care: a folder as it lies, or its canonical form where it has one."""
    try:
        return build_task_upload(read_task(folder), True)
    except BadTask:
        pass
    files = {"train": "train.jsonl", "heldout": "heldout.jsonl", "schema": "schema.json", "fixture": "fixture.sqlite"}
    data = HEADER + b"spec 2\n{}"
    for part, name in files.items():
        path = folder / name
        plain = path.is_file() and not path.is_symlink() and path.stat().st_size < 2**26
        content = path.read_bytes()[: 2**21] if plain else b""
        data += f"{part} {len(content)}\n".encode() + content
    assert len(data) <= travel.MAX_BYTES
    body = zstandard.ZstdCompressor(3, write_content_size=True).compress(data)
    offer = TaskOffer(
        name=folder.name, hash=hashlib.sha256(data).hexdigest(), train=1, held_out=1, size=len(data), packed=len(body)
    )
    return TaskUpload(offer=offer, packed=body)
