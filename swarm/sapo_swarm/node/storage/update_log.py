"""The updates since the newest checkpoint, so that a kill takes back nothing that was finished: they are taken again.

A file beside the checkpoints, after-000123.log: a header that names the weights that it starts from, then a record a round
with everything that the engine's update got, and the round's events. A record is a length, a CRC-32 and zstd-compressed
msgpack; a torn one at the end is no record. Engines compute the same update again from the same weights (bit-exact on CPU).
"""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import msgspec
import zstandard

from sapo_backends.base import PolicyUpdate, TrainSample

_FRAME = struct.Struct("<II")
LARGEST_RECORD = 256 * 2**20
LEVEL = 1


class Header(msgspec.Struct, frozen=True):
    """The checkpoint that the updates follow."""

    rounds_done: int
    weights: str
    rollbacks: int
    format: int = 1


class LoggedSample(msgspec.Struct, frozen=True, array_like=True):
    """A TrainSample; prompt: its place among the record's prompts."""

    prompt: int
    completion: tuple[int, ...]
    advantage: float
    external: bool
    old_logprobs: tuple[float, ...] | None
    behaviour_logprobs: tuple[float, ...] | None


class LoggedUpdate(msgspec.Struct, frozen=True, array_like=True):
    """One finished round. events: its stored events, encoded. policy: None where the engine trains nothing."""

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
                self.prompts[s.prompt], s.completion, s.advantage, s.external, s.old_logprobs, s.behaviour_logprobs
            )
            for s in self.samples
        ]


def logged(
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
        )
        for s in batch
    )
    return LoggedUpdate(round_number, seed, policy, tuple(places), samples, tuple(events), tuple(solved))


class UpdateLog:
    """The log of one model. folder: where its checkpoints are. written: bytes written by this process."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._file: IO[bytes] | None = None
        self._pack = zstandard.ZstdCompressor(level=LEVEL)
        self.written = 0

    def start(self, header: Header) -> None:
        """Follow another checkpoint from now on; older logs go. Raises OSError."""
        self.close()
        path = self._path(header.rounds_done)
        for old in self._folder.glob("after-*.log"):
            old.unlink(missing_ok=True)
        self._file = path.open("xb")
        self._write(msgspec.msgpack.encode(header))

    def append(self, update: LoggedUpdate) -> None:
        """Add a round; whole or, for who reads it after a kill, not at all. Raises OSError."""
        self._write(msgspec.msgpack.encode(update))

    def _write(self, plain: bytes) -> None:
        assert self._file is not None
        packed = self._pack.compress(plain)
        start = self._file.tell()
        try:
            self._file.write(_FRAME.pack(len(packed), zlib.crc32(packed)) + packed)
            self._file.flush()
        except OSError:
            with contextlib.suppress(OSError):  # a full disk: what is half written must not hide what follows
                self._file.seek(start)
                self._file.truncate(start)
            raise
        self.written += _FRAME.size + len(packed)

    def read(self, header: Header) -> list[LoggedUpdate]:
        """Finished rounds that follow this checkpoint without a gap; none when the log belongs to other weights."""
        records = _records(self._path(header.rounds_done))
        try:
            if msgspec.msgpack.decode(next(records, b""), type=Header) != header:
                return []
            found: list[LoggedUpdate] = []
            for plain in records:
                update = msgspec.msgpack.decode(plain, type=LoggedUpdate)
                if update.round != header.rounds_done + len(found):
                    break
                found.append(update)
        except msgspec.MsgspecError:
            return []
        return found

    def bytes(self) -> int:
        """Of the files on the disk."""
        return sum(path.stat().st_size for path in self._folder.glob("after-*.log"))

    def close(self) -> None:
        """Let go of the file; it stays."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _path(self, rounds_done: int) -> Path:
        return self._folder / f"after-{rounds_done:06d}.log"


def _records(path: Path) -> Iterator[bytes]:
    """Whole records in order, up to a torn or damaged one."""
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
