"""The rollouts of a round that is not done, so that a stop or a kill takes back none that a pause had kept.

in_flight.msgpack in the model's folder; written beside its name and renamed. It counts for the same round under the same
settings only (`belongs`).
"""

from __future__ import annotations

import os
from pathlib import Path

import msgspec

from sapo_backends.base import Completion
from sapo_swarm.types import Group, Sha256, TaskRef

NAME = "in_flight.msgpack"
LARGEST = 256 * 2**20


class KeptQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question by its coordinates; the hash tells whether they still make the same one. completions: as far as sampled."""

    ref: TaskRef
    prompt_sha256: Sha256
    completions: tuple[Completion, ...]


class InFlight(msgspec.Struct, frozen=True):
    """round: rounds done before it. belongs: fingerprint of all that decides what its rollouts are. external: groups of others
    that were taken for it, None while none were asked for. seconds: worked on it, by phase."""

    round: int
    belongs: str
    questions: tuple[KeptQuestion, ...]
    external: tuple[Group, ...] | None
    bytes_sent: int
    bytes_received: int
    seconds: dict[str, float]
    format: int = 1


def keep(folder: Path, work: InFlight) -> None:
    """Write it; whole or not at all. Raises OSError."""
    partial = folder / f"{NAME}.partial"
    with partial.open("wb") as file:
        file.write(msgspec.msgpack.encode(work))
        file.flush()
        os.fsync(file.fileno())
    partial.replace(folder / NAME)


def kept(folder: Path) -> InFlight | None:
    """What was kept; None when there is nothing, or nothing that can be read."""
    path = folder / NAME
    try:
        if path.stat().st_size > LARGEST:
            return None
        return msgspec.msgpack.decode(path.read_bytes(), type=InFlight)
    except (OSError, msgspec.MsgspecError):
        return None


def forget(folder: Path) -> None:
    """The round is done, or will be sampled again."""
    (folder / NAME).unlink(missing_ok=True)
