"""What goes through the pipes between scorer and worker: msgpack frames after a four-byte length."""

from __future__ import annotations

from typing import BinaryIO, Literal

import msgspec

from sapo_swarm.types import RewardRule, TaskRef

MAX_FRAME = 64 * 2**20
Stage = Literal["", "generate", "score", "worker"]


class Job(msgspec.Struct, frozen=True, array_like=True):
    """Regenerate a question and score texts against it (none: only the question is wanted)."""

    ref: TaskRef
    texts: tuple[str, ...] = ()
    rule: RewardRule = RewardRule()


class Reply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one Job. failure is empty on success; stage says where it failed.

    stage "generate": there is no such question here; "score": the texts were at fault; "worker": the worker was.
    shortcut: places of the texts that a contrast cost something. costly: it failed for want of time or memory.
    seconds: of processor time that the job took.
    """

    prompt: str = ""
    rewards: tuple[float, ...] = ()
    well_formed: tuple[bool, ...] = ()
    failure: str = ""
    stage: Stage = ""
    shortcut: tuple[int, ...] = ()
    costly: bool = False
    seconds: float = 0.0


class Hello(msgspec.Struct, frozen=True, array_like=True):
    """The worker's first frame: its limits in force, or why it cannot work."""

    limits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failure: str = ""


class ConnectionLost(Exception):
    """The other side of the pipe is gone or speaks nonsense."""


def write_frame(pipe: BinaryIO, payload: bytes) -> None:
    """Into the pipe's buffer; the caller flushes."""
    pipe.write(len(payload).to_bytes(4, "little") + payload)


def read_frame(pipe: BinaryIO) -> bytes:
    """The next payload. Raises ConnectionLost at the end of the stream."""
    header = pipe.read(4)
    if len(header) < 4:
        raise ConnectionLost("The pipe was closed.")
    size = int.from_bytes(header, "little")
    if size > MAX_FRAME:
        raise ConnectionLost(f"A frame of {size} bytes is too long.")
    payload = pipe.read(size)
    if len(payload) < size:
        raise ConnectionLost("The pipe was closed inside a frame.")
    return payload
