"""Weights of a Hugging Face folder as NumPy float32, one tensor at a time, bfloat16 included.

The safetensors package gives NumPy no bfloat16 without another dependency; the format is simple enough to read: eight
bytes of header length, a JSON header, the tensors (https://github.com/huggingface/safetensors#format).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sapo_backends.checkpoints import gguf_model as gguf_weights
from sapo_backends.checkpoints.locate import weight_files
from sapo_backends.checkpoints.spec import is_vision_tensor, own_name
from sapo_backends.errors import ModelNotFound

Float32 = NDArray[np.float32]
_TYPES = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
_LARGEST_HEADER = 25_000_000
"""Bytes: enough for more than 100,000 tensors."""


def iter_tensors(folder: Path) -> Iterator[tuple[str, Float32]]:
    """(own name, float32 array) of every floating-point tensor outside the vision part. Raises ModelNotFound if a file
    is damaged."""
    for file in weight_files(folder):
        with _damage_in_words(file):
            yield from gguf_weights.iter_gguf_tensors(file) if _is_gguf(file) else _read(file)


def iter_tensor_shapes(folder: Path) -> Iterator[tuple[str, tuple[int, ...]]]:
    """(name, shape) of every tensor that `iter_tensors` gives, in its order, from the headers alone. Raises
    ModelNotFound."""
    for file in weight_files(folder):
        with _damage_in_words(file):
            if _is_gguf(file):
                yield from gguf_weights.iter_gguf_shapes(file)
                continue
            entries = _header(file)[0].items()
            yield from (
                (own_name(name), tuple(e["shape"]))
                for name, e in entries
                if e["dtype"] in _TYPES and not is_vision_tensor(name)
            )


def count_weights(folder: Path, *, packed: int = 8) -> int:
    """Number of weights in a folder without the vision part, counted from the headers; an element of a quantised tensor
    (uint32) counts as `packed` weights.

    Raises ModelNotFound if a file is damaged.
    """
    total = 0
    for file in weight_files(folder):
        with _damage_in_words(file):
            if _is_gguf(file):
                total += sum(prod(shape) for _, shape in gguf_weights.iter_gguf_shapes(file))
                continue
            entries = [entry for name, entry in _header(file)[0].items() if not is_vision_tensor(name)]
            total += sum(prod(e["shape"]) * (packed if e["dtype"] == "U32" else 1) for e in entries)
    return total


@contextmanager
def _damage_in_words(file: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ModelNotFound(f"{file} is damaged: {error}. Copy or download the model again.") from error


PIECE = 1 << 24
"""Bytes that are read at once."""


def raw_pieces(file: Path) -> Iterator[tuple[str, str, tuple[int, ...], int, bytearray]]:
    """(own name, type as the header writes it, shape, first element, bytes) of every tensor, a piece at a time.

    The file is read, not mapped, so that its pages never count as this process's memory. Raises OSError, ValueError,
    ModelNotFound.
    """
    if _is_gguf(file):
        for name, shape, first, values in gguf_weights.iter_gguf_pieces(file):
            yield name, "F32", shape, first, bytearray(values.tobytes())
        return
    header, start = _header(file)
    with file.open("rb", buffering=0) as stream:
        for name, entry in header.items():
            begin, end = entry["data_offsets"]
            count = prod(entry["shape"])
            width = (end - begin) // count if count else 1
            stream.seek(start + begin)
            for at in range(begin, end, PIECE):
                piece = bytearray(min(PIECE, end - at))
                if stream.readinto(piece) != len(piece):
                    raise ValueError(f"it ends within {name}")
                yield own_name(name), entry["dtype"], tuple(entry["shape"]), (at - begin) // width, piece


def _is_gguf(file: Path) -> bool:
    return file.suffix != ".safetensors"


def _header(file: Path) -> tuple[dict[str, Any], int]:
    """The header's entry for each tensor, and where the tensor bytes begin. Raises ValueError, also if the file or a
    tensor that is read has a different size than the header says."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 + length:
            raise ValueError("it ends within its header")
        if not 2 <= length <= _LARGEST_HEADER:
            raise ValueError("its header has no sensible length")
        try:
            header = json.loads(stream.read(length))
        except (RecursionError, MemoryError):
            raise ValueError("its header is nested too deep or too large") from None
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    header.pop("__metadata__", None)
    for name, entry in header.items():
        begin, end = entry["data_offsets"]
        kind = _TYPES.get(entry["dtype"])
        if kind and end - begin != prod(entry["shape"]) * np.dtype(kind).itemsize:
            raise ValueError(f"{name} has {end - begin:,} bytes, which is not what its shape says")
    end = 8 + length + max((end for _, end in (entry["data_offsets"] for entry in header.values())), default=0)
    if size < end:
        raise ValueError(f"it ends after {size:,} of {end:,} bytes")
    return header, 8 + length


def _read(file: Path) -> Iterator[tuple[str, Float32]]:
    header, start = _header(file)
    with file.open(
        "rb"
    ) as stream:  # not mapped: a file that is cut off meanwhile would end the process with a bus error
        for name, entry in header.items():
            if entry["dtype"] not in _TYPES or is_vision_tensor(name):
                continue
            begin, end = entry["data_offsets"]
            stream.seek(start + begin)
            data = stream.read(end - begin)
            if len(data) < end - begin:
                raise ValueError(f"it ends within {name}")
            raw = np.frombuffer(data, dtype=_TYPES[entry["dtype"]]).reshape(entry["shape"])
            yield own_name(name), bfloat16_to_float32(raw) if entry["dtype"] == "BF16" else raw.astype(np.float32)


def bfloat16_to_float32(halves: NDArray[np.uint16]) -> Float32:
    """bfloat16 bit patterns as float32: bfloat16 is the upper half of a float32."""
    wide: Float32 = (halves.astype(np.uint32) << 16).view(np.float32)
    return wide
