"""Which tasks this person shares, or accepted, in which swarm: one file beside the tasks, never in one.

A folder that came from somewhere cannot say for itself that it may leave the machine.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.types import UNREADABLE, Name, Sha256
from sapo_swarm.whole_file import write_whole

FILE = "shared-tasks.json"
MAX_BYTES = 2**20
MAX_ENTRIES = 1000


class Shared(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A version of a task that the members of a swarm train on together.

    swarm: its id. digest: of the task as it travels, which is without held-out rows where held_out is false. mine: this home
    shares it; else it came from the swarm and the person accepted it.
    """

    swarm: Annotated[str, Meta(pattern=r"^[a-z2-7]{16}\Z")]
    name: Name
    digest: Sha256
    held_out: bool
    mine: bool


def read(folder: Path) -> tuple[Shared, ...]:
    """What the file in the folder of tasks says; nothing where it cannot be read, for then nothing leaves the machine."""
    path = folder / FILE
    try:
        if path.stat().st_size > MAX_BYTES:
            return ()
        return msgspec.json.decode(path.read_bytes(), type=tuple[Shared, ...])
    except (OSError, *UNREADABLE):
        return ()


def add(folder: Path, entry: Shared) -> None:
    """Note a task of a swarm, in the place of its earlier version. Raises OSError."""
    others = (known for known in read(folder) if (known.swarm, known.name) != (entry.swarm, entry.name))
    _write(folder, [*others, entry][-MAX_ENTRIES:])


def remove(folder: Path, swarm: str, name: str) -> None:
    """Forget a task of a swarm. Raises OSError."""
    _write(folder, [known for known in read(folder) if (known.swarm, known.name) != (swarm, name)])


def _write(folder: Path, entries: Iterable[Shared]) -> None:
    write_whole(folder / FILE, msgspec.json.encode(list(entries)), private=True)
