"""The update log, and a round in flight as a file and back: what survives a stop or a crash, and whether it still fits the
run."""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import zstandard

from sapo_backends.base import Completion, PolicyUpdate, TrainSample
from sapo_swarm.node.rollouts import prompt_ids
from sapo_swarm.node.round_phases import RoundContext, RoundWork
from sapo_swarm.node.swarm_exchange import GROUP_LIFE_S
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.types import UNREADABLE, Group, Question, Sha256, TaskRef
from sapo_swarm.whole_file import write_atomically

# What lies beside the checkpoints so that a stop or a kill loses nothing that was finished.
#
# The updates since the newest checkpoint, which are repeated on opening: after-000123.log has a header that names the
# weights it starts from, then one record per round with everything that the engine's update got, and the round's
# events. A record is a length, a CRC-32 and zstd-compressed msgpack; a truncated record at the end is ignored. Engines
# compute the same update again from the same weights (bit-exact on CPU).
#
# The rollouts of the unfinished round: in_flight.msgpack, written beside its name and renamed. It is valid only for the
# same round under the same settings (`restore_round`).

_FRAME = struct.Struct("<II")
LARGEST_RECORD = 256 * 2**20
LEVEL = 1


class ResumeHeader(msgspec.Struct, frozen=True):
    """The checkpoint that the updates follow."""

    rounds_done: int
    weights: str
    rollbacks: int
    format: int = 1


class LoggedSample(msgspec.Struct, frozen=True, array_like=True):
    """A TrainSample; prompt: its index among the record's prompts."""

    prompt: int
    completion: tuple[int, ...]
    advantage: float
    external: bool
    old_logprobs: tuple[float, ...] | None
    behaviour_logprobs: tuple[float, ...] | None
    loss_mask: tuple[bool, ...] | None = None


class LoggedUpdate(msgspec.Struct, frozen=True, array_like=True):
    """One finished round. events: its stored events, encoded. policy: None if the engine trains nothing."""

    round: int
    seed: int
    policy: PolicyUpdate | None
    prompts: tuple[tuple[int, ...], ...]
    samples: tuple[LoggedSample, ...]
    events: tuple[bytes, ...]
    solved: tuple[str, ...]

    def batch(self) -> list[TrainSample]:
        """The samples as the engine got them."""
        return [
            TrainSample(
                self.prompts[s.prompt],
                s.completion,
                s.advantage,
                s.external,
                s.old_logprobs,
                s.behaviour_logprobs,
                s.loss_mask,
            )
            for s in self.samples
        ]


def make_logged_update(
    round_number: int,
    seed: int,
    policy: PolicyUpdate | None,
    batch: Sequence[TrainSample],
    events: Sequence[bytes],
    solved: Sequence[str],
) -> LoggedUpdate:
    """The record of a round; each prompt is in it once."""
    places: dict[tuple[int, ...], int] = {}
    samples = tuple(
        LoggedSample(
            places.setdefault(s.prompt, len(places)),
            s.completion,
            s.advantage,
            s.external,
            s.old_logprobs,
            s.behaviour_logprobs,
            s.loss_mask,
        )
        for s in batch
    )
    return LoggedUpdate(round_number, seed, policy, tuple(places), samples, tuple(events), tuple(solved))


class UpdateLog:
    """The log of one model. folder: where its checkpoints are. written: bytes written by this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._torn: tuple[Path, int] | None = None
        """Set while the log could not be reopened after a failed write: its path and how many of its bytes are valid."""
        self._header: ResumeHeader | None = None
        self._pack = zstandard.ZstdCompressor(level=LEVEL)
        self.written = 0

    def start(self, header: ResumeHeader) -> None:
        """Follow another checkpoint from now on; older logs are deleted. Raises OSError; append() then retries this first."""
        self._header = header
        self._begin(header)

    def _begin(self, header: ResumeHeader) -> None:
        """Write a log with its header, or none at all: nobody would read rounds without a header."""
        self.close()
        path = self._path(header.rounds_done)
        for old in self._folder.glob("after-*.log"):
            old.unlink(missing_ok=True)
        self._file = path.open("xb")
        try:
            self._write(msgspec.msgpack.encode(header))
        except OSError:
            self.close()
            raise

    def append(self, update: LoggedUpdate) -> None:
        """Add a round; a reader after a kill sees it whole or not at all. Raises OSError."""
        assert self._header is not None
        if self._torn is not None:
            self._reopen(*self._torn)
        elif self._file is None:
            self._begin(self._header)
        self._write(msgspec.msgpack.encode(update))

    def _write(self, plain: bytes) -> None:
        assert self._file is not None
        packed = self._pack.compress(plain)
        start = self._file.tell()
        try:
            self._file.write(_FRAME.pack(len(packed), zlib.crc32(packed)) + packed)
            self._file.flush()
        except OSError:
            self._take_back(start)
            raise
        self.written += _FRAME.size + len(packed)

    def _take_back(self, start: int) -> None:
        """After a full disk: what is half written, here or in a buffer, must not hide what follows. On a disk that is away it
        is truncated before the next record."""
        assert self._file is not None
        self._torn = Path(self._file.name), start
        with contextlib.suppress(OSError):
            self._file.close()
        with contextlib.suppress(OSError):
            self._reopen(*self._torn)

    def _reopen(self, path: Path, start: int) -> None:
        os.truncate(path, start)
        self._file, self._torn = path.open("ab"), None

    def read(self, header: ResumeHeader) -> list[LoggedUpdate]:
        """Finished rounds that follow this checkpoint without a gap; none if the log belongs to other weights."""
        records = _records(self._path(header.rounds_done))
        try:
            if msgspec.msgpack.decode(next(records, b""), type=ResumeHeader) != header:
                return []
            updates: list[LoggedUpdate] = []
            for plain in records:
                update = msgspec.msgpack.decode(plain, type=LoggedUpdate)
                if update.round != header.rounds_done + len(updates):
                    break
                updates.append(update)
        except UNREADABLE:
            return []
        return updates

    def bytes(self) -> int:
        """Size of the files on disk."""
        return sum(path.stat().st_size for path in self._folder.glob("after-*.log"))

    def close(self) -> None:
        """Close the file; it stays on disk."""
        if self._file is not None:
            self._file.close()
            self._file = self._torn = None

    def _path(self, rounds_done: int) -> Path:
        return self._folder / f"after-{rounds_done:06d}.log"


def _records(path: Path) -> Iterator[bytes]:
    """Whole records in order, up to a truncated or damaged one."""
    unpack = zstandard.ZstdDecompressor()
    try:
        with path.open("rb") as file:
            while len(frame := file.read(_FRAME.size)) == _FRAME.size:
                length, checksum = _FRAME.unpack(frame)
                packed = file.read(length) if length <= LARGEST_RECORD else b""
                if len(packed) != length or zlib.crc32(packed) != checksum:
                    return
                yield unpack.decompress(packed, max_output_size=LARGEST_RECORD)
    except (OSError, zstandard.ZstdError):
        return


NAME = "in_flight.msgpack"
LARGEST = 256 * 2**20


class KeptQuestion(msgspec.Struct, frozen=True, array_like=True):
    """A question by its coordinates; the hash tells whether they still give the same question. completions: as far as
    sampled. read_sha256: of the tokens that the model read; "" in files of older versions."""

    ref: TaskRef
    prompt_sha256: Sha256
    completions: tuple[Completion, ...]
    read_sha256: str = ""


class InFlight(msgspec.Struct, frozen=True):
    """round: rounds done before it. belongs: fingerprint of everything that determines its rollouts. external: external
    groups that were taken for it, None while none were requested; taken: when, in Unix time, 0 in files of older versions.
    seconds: worked on it, by phase."""

    round: int
    belongs: str
    questions: tuple[KeptQuestion, ...]
    external: tuple[Group, ...] | None
    bytes_sent: int
    bytes_received: int
    seconds: dict[str, float]
    format: int = 1
    taken: float = 0.0


def save_in_flight(folder: Path, work: InFlight) -> None:
    """Write the file, whole or not at all. Raises OSError."""
    write_atomically(folder / NAME, msgspec.msgpack.encode(work))


def load_in_flight(folder: Path) -> InFlight | None:
    """The saved rollouts; None if there are none, or they cannot be read."""
    path = folder / NAME
    try:
        if path.stat().st_size > LARGEST:
            return None
        return msgspec.msgpack.decode(path.read_bytes(), type=InFlight)
    except (OSError, *UNREADABLE):
        return None


def delete_in_flight(folder: Path) -> None:
    """Call when the round is done, or will be sampled again."""
    (folder / NAME).unlink(missing_ok=True)


# A round in flight as a file, and back: which rollouts survive a stop, and whether they and the external groups that
# were taken for the round still fit.

_DECIDES = ("tasks", "preset", "group_size", "local_groups", "external_groups", "max_new_tokens", "temperature", "seed")
"""Settings that determine the rollouts of a round."""


def rollout_fingerprint(context: RoundContext) -> str:
    """SHA-256 of everything but the round and the weights that determines a round's rollouts."""
    info = context.host.engine.info
    parts = {name: getattr(context.config, name) for name in _DECIDES}
    parts |= (
        {"limits": {task: new_tokens(context.config, task) for task in context.config.tasks}}
        if context.config.task_tokens
        else {}
    )
    parts |= {"node": context.node_key, "swarm": context.swarm, "model": info.model, "method": info.method}
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _sha256(prompt: list[int]) -> str:
    return hashlib.sha256(msgspec.json.encode(prompt)).hexdigest()


def in_flight(context: RoundContext, work: RoundWork) -> InFlight | None:
    """What is worth saving of the round; None while nothing is sampled."""
    rows = work.completions or work.partial
    if work.questions is None or not any(c.tokens for row in rows for c in row):
        return None
    return InFlight(
        round=work.round,
        belongs=rollout_fingerprint(context),
        questions=tuple(
            KeptQuestion(q.ref, q.prompt_sha256, tuple(row), _sha256(prompt))
            for q, row, prompt in zip(work.questions, rows, work.prompts, strict=True)
        ),
        external=work.external,
        bytes_sent=work.bytes_sent,
        bytes_received=work.bytes_received,
        seconds=dict(work.seconds),
        taken=work.taken,
    )


async def restore_round(context: RoundContext, kept: InFlight) -> RoundWork | None:
    """The round as it was, or None if settings, tasks or model have changed. Rewards are computed again."""
    if kept.belongs != rollout_fingerprint(context):
        return None
    questions = await context.scorer.questions([q.ref for q in kept.questions])
    size = context.config.group_size
    work = RoundWork(kept.round, external=kept.external, taken=kept.taken, seconds=dict(kept.seconds))
    work.bytes_sent, work.bytes_received = kept.bytes_sent, kept.bytes_received
    work.questions = []
    for question, was in zip(questions, kept.questions, strict=True):
        same = isinstance(question, Question) and question.prompt_sha256 == was.prompt_sha256
        if not isinstance(question, Question) or not same or len(was.completions) != size:
            return None
        prompt = prompt_ids(context.host.engine.tokenizer, context.scorer, question)
        if was.read_sha256 not in ("", _sha256(prompt)):
            return None
        work.questions.append(question)
        work.prompts.append(prompt)
        work.partial.append(list(was.completions))
    return work


def update_interrupted(work: RoundWork) -> bool:
    """Its update of several steps failed midway: the weights may hold a part of it."""
    if work.call is None or work.stats is not None:
        return False
    return work.call.policy.epochs * work.call.policy.minibatches > 1


def external_expired(work: RoundWork, now: float) -> bool:
    """Its external groups have waited longer than a pool would have kept them. now: Unix time; a clock that was set back
    counts as expiry."""
    return not 0 <= now - work.taken <= GROUP_LIFE_S


def drop_external(work: RoundWork) -> None:
    """Unless the round is in the weights already, it is trained without external groups."""
    if work.external and work.stats is None:
        work.external = ()
