"""Moving a swarm to another host: its identity, key, members and invites in one file.

Whoever imports it answers under the same fingerprint, so members' invites stay good once the address is theirs. The
file holds the swarm's private key: keep it as you keep a password. The pool is not in it; it refills in a round.
"""

from __future__ import annotations

import msgspec

from sapo_swarm.coordinator.domain.records import InviteRecord, Member, SwarmRecord
from sapo_swarm.coordinator.store.base import Store, StoreFormat
from sapo_swarm.protocol.task_offer import TaskUpload
from sapo_swarm.types import UNREADABLE

FORMAT = "sapo-swarm-export"


class SwarmExport(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """The file's content. version: of this format. tasks: of members' own (left out where there are none: earlier versions do not
    know them)."""

    format: str
    version: int
    swarm: SwarmRecord
    members: tuple[Member, ...]
    invites: tuple[InviteRecord, ...]
    tasks: tuple[TaskUpload, ...] = ()


async def export_swarm(store: Store) -> bytes:
    """The swarm as one file. Raises StoreFormat when the store holds none."""
    swarm = await store.swarm()
    if swarm is None:
        raise StoreFormat("There is no swarm in this store yet.")
    members, invites = await store.members(), await store.invites()
    tasks = [await store.task(offer.hash) for offer in await store.tasks()]
    export = SwarmExport(
        format=FORMAT,
        version=1,
        swarm=swarm,
        members=tuple(members),
        invites=tuple(invites),
        tasks=tuple(task for task in tasks if task is not None),
    )
    return msgspec.msgpack.encode(export)


async def import_swarm(store: Store, data: bytes) -> SwarmRecord:
    """Enter an export into an empty store: the swarm's record last, so that what failed half way can be done again.

    Raises StoreFormat when the store holds a swarm or the file is something else, StoreUnavailable.
    """
    try:
        export = msgspec.msgpack.decode(data, type=SwarmExport)
    except UNREADABLE as error:
        raise StoreFormat(f"The file is not an exported swarm: {str(error)[:200]}") from error
    if export.format != FORMAT or export.version != 1:
        raise StoreFormat("The file was exported by another version: use that version to import it.")
    if await store.swarm() is not None:
        raise StoreFormat("This store holds a swarm already: import into a new one.")
    if {member.node for member in await store.members()} - {member.node for member in export.members}:
        raise StoreFormat(
            "This store holds a part of another swarm, whose import failed half way: import into a new one."
        )
    await store.restore(export.members, export.invites)
    for task in export.tasks:
        await store.put_task(task)
    return await store.found(export.swarm)
