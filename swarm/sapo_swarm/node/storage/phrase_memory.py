"""The phrase memory of a model (protocol.drift.phrases) on the disk, so that a restart does not whitewash what others taught it.

phrases.msgpack in the model's folder: one zstd frame, written beside its name and renamed. A file that cannot be read counts
as none: then what the model writes first is its own again, which is said. So none is written that is too large to be read.
"""

from __future__ import annotations

from pathlib import Path

import msgspec
import zstandard

from sapo_swarm.protocol.drift import KeptPhrases, PhraseWatch
from sapo_swarm.types import UNREADABLE
from sapo_swarm.whole_file import write_whole

NAME = "phrases.msgpack"
LARGEST = 96 * 2**20
"""Bytes of the file after decompression."""


def keep(folder: Path, watch: KeptPhrases) -> None:
    """Write it, whole or not at all; of more groups taken than the file has room for, the newest. Raises OSError."""
    while len(plain := msgspec.msgpack.encode(watch)) > LARGEST and watch.taken:
        watch = msgspec.structs.replace(watch, taken=watch.taken[(len(watch.taken) + 3) // 4 :])
    write_whole(folder / NAME, zstandard.compress(plain, 1), private=True)


def kept(folder: Path) -> tuple[PhraseWatch, str]:
    """What was kept, or a new memory; and a sentence where there was a file that cannot be read, else ""."""
    path = folder / NAME
    try:
        packed = path.read_bytes() if path.stat().st_size <= LARGEST else b""
        if zstandard.get_frame_parameters(packed).content_size > LARGEST:
            raise zstandard.ZstdError("too large")
        plain = zstandard.decompress(packed, max_output_size=LARGEST)
        return PhraseWatch.unpacked(msgspec.msgpack.decode(plain, type=KeptPhrases)), ""
    except FileNotFoundError:
        return PhraseWatch(), ""
    except (OSError, zstandard.ZstdError, *UNREADABLE):
        return PhraseWatch(), (
            f"{path} cannot be read: phrases that others taught this model before count as its own from now on."
        )
