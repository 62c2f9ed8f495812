"""Messages through the pipes between scorer and worker: msgpack frames after a four-byte length."""

from __future__ import annotations

from typing import BinaryIO, Literal

import msgspec

from sapo_swarm.scoring.environments import EpisodeStep
from sapo_swarm.types import MAX_COMPLETION_BYTES, RewardRule, TaskRef

MAX_FRAME = 64 * 2**20
START_S = 180.0
"""Longest start of a worker (it imports reasoning_gym and sympy), and longest reading of one custom task, on a busy machine:
a node yields to other programs."""
Stage = Literal["", "generate", "score", "worker"]


class ScoringJob(msgspec.Struct, frozen=True, array_like=True):
    """Regenerate a question and score texts against it (no texts: only the question is wanted).

    turns: of the model in one episode of the task's environment, to be answered; final: there is no room for another. truth:
    the task's own answer is wanted too. It never leaves this machine. read: only have the custom task read. example: wanted
    is a whole completion that earns the full reward, in the form that is asked for.
    """

    ref: TaskRef
    texts: tuple[str, ...] = ()
    rule: RewardRule = RewardRule()
    turns: tuple[str, ...] = ()
    final: bool = False
    truth: bool = False
    read: bool = False
    example: bool = False


class ScoringReply(msgspec.Struct, frozen=True, array_like=True):
    """The answer to one ScoringJob. failure is empty on success; stage says where it failed.

    stage "generate": there is no such question here; "score": the texts were at fault; "worker": the worker was. shortcut:
    indices of the texts that lost reward to a contrast. costly: it failed for lack of time or memory. seconds: of processor
    time that the job took. tools: of the task's environment, as JSON. step: the state of the episode. truth: the task's own
    answer, cut to MAX_COMPLETION_BYTES; "" if there is none (a judge decides, code decides). For an example: the completion,
    "" if the task's own answer does not pass its own verifier. last: the worker ran out of memory, and exits after this
    reply.
    """

    prompt: str = ""
    rewards: tuple[float, ...] = ()
    well_formed: tuple[bool, ...] = ()
    failure: str = ""
    stage: Stage = ""
    shortcut: tuple[int, ...] = ()
    costly: bool = False
    seconds: float = 0.0
    tools: str = ""
    step: EpisodeStep | None = None
    truth: str = ""
    last: bool = False


class WorkerHello(msgspec.Struct, frozen=True, array_like=True):
    """The worker's first frame: its limits in force, or why it cannot work."""

    limits: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    failure: str = ""


def cap_completion(text: str) -> str:
    """The last MAX_COMPLETION_BYTES of the text in UTF-8: the answer stands at the end. Lone surrogates become "?"."""
    if text.isascii() and len(text) <= MAX_COMPLETION_BYTES:
        return text
    return text.encode("utf-8", "replace")[-MAX_COMPLETION_BYTES:].decode("utf-8", "ignore")


class ConnectionLost(Exception):
    """The other side of the pipe is gone or speaks nonsense."""


def write_frame(pipe: BinaryIO, payload: bytes) -> None:
    """Write into the pipe's buffer; the caller flushes."""
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
