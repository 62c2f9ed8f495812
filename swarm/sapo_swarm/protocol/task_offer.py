"""A task of somebody's own in a swarm: what members are told of it, and its content as it lies at the coordinator."""

from __future__ import annotations

from typing import Annotated

import msgspec
import zstandard
from msgspec import Meta

from sapo_swarm.protocol.wire import TooLarge, WireError, digest, inflate
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own import travel
from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.folder import OwnTask, generator
from sapo_swarm.types import Name, Sha256

MAX_PACKED = 2 * 2**20
"""Bytes of a task on the wire and in the store; travel.MAX_BYTES unpacked."""
MAX_TASKS = 8
"""Of one swarm."""
_compress = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters.from_level(9, window_log=20, write_content_size=1)
)

Rows = Annotated[int, Meta(ge=0, le=100_000)]


class TaskOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a swarm's members are told of a task before they fetch it.

    hash: SHA-256 of its canonical bytes, its version. description, licence: peer text, show through safe_text. train,
    held_out: rows (0 held out: those stay with the host). size: bytes unpacked; packed: bytes to fetch.
    """

    name: Name
    hash: Sha256
    description: Annotated[str, Meta(max_length=2000)] = ""
    licence: Annotated[str, Meta(max_length=200)] = ""
    train: Rows
    held_out: Rows
    size: Annotated[int, Meta(ge=1, le=travel.MAX_BYTES)]
    packed: Annotated[int, Meta(ge=1, le=MAX_PACKED)]

    @property
    def generator(self) -> str:
        """The generator of the references of this version."""
        return generator(self.hash)


class TaskOffers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GET /v1/tasks: the tasks of members' own that this swarm trains on."""

    tasks: Annotated[tuple[TaskOffer, ...], Meta(max_length=MAX_TASKS)]


class TaskUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /admin/tasks as msgpack. packed: see pack()."""

    offer: TaskOffer
    packed: Annotated[bytes, Meta(max_length=MAX_PACKED)]


def pack(task: OwnTask, held_out: bool) -> TaskUpload:
    """The task for a swarm, with its held-out rows or without. Raises BadTask for one that cannot travel."""
    raw = travel.packed(task, held_out)
    body = _compress.compress(raw)
    spec = task.spec
    if len(body) > MAX_PACKED:
        raise BadTask(
            f"Task {spec.name!r} has {len(body):,} bytes packed; up to {MAX_PACKED:,} travel. Share fewer rows."
        )
    offer = TaskOffer(
        name=spec.name,
        hash=digest(raw),
        description=spec.description,
        licence=spec.licence,
        train=len(task.train),
        held_out=len(task.held_out) if held_out else 0,
        size=len(raw),
        packed=len(body),
    )
    return TaskUpload(offer=offer, packed=body)


def unpack_task(offer: TaskOffer, body: bytes) -> OwnTask:
    """The task that the offer names, read as a folder is, from bytes of unknown origin. Raises BadTask for anything else."""
    if offer.name in CATALOGUE:
        raise BadTask(f"Task {offer.name!r} has the name of one of the app's tasks. Its host must rename it.")
    try:
        raw = inflate(body, MAX_PACKED, travel.MAX_BYTES)
    except (TooLarge, WireError) as error:
        raise BadTask(f"Task {offer.name!r} cannot be unpacked: {error}") from error
    if digest(raw) != offer.hash or len(raw) != offer.size:
        raise BadTask(f"What came is not the task {offer.name!r} that was offered: its hash is another one.")
    task = travel.unpacked(raw, offer.name, offer.description, offer.licence)
    if (len(task.train), len(task.held_out)) != (offer.train, offer.held_out):
        raise BadTask(f"Task {offer.name!r} has other numbers of rows than it was offered with.")
    return task
