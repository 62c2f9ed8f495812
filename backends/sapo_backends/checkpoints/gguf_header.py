"""The header of a GGUF file: its metadata, and its tensors by name, shape and type. No weights are read.

A file may come from anywhere: every length is checked against what is left of the header before anything of that length
is allocated, and no more than HEADER_LIMIT bytes are read. Only the inspection child reads the vocabulary (see
gguf_view); a glance, which any process may take, keeps no more than a few MB. Format:
https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

from __future__ import annotations

import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

from sapo_backends.checkpoints.local_models import MAGIC, open_file
from sapo_backends.errors import ModelNotFound

HEADER_LIMIT = 96 << 20
"""Maximum bytes of a header: a vocabulary of 262,144 tokens with merges and scores takes 20 MB."""
_FIRST = 8 << 20
"""Bytes read at first; most headers are shorter."""
_ENTRIES, _TENSORS, _TEXT, _NUMBERS = 4096, 65_536, 1 << 20, 4096
"""Limits: entries, tensors, bytes of a text that is kept, numbers of an array that a glance keeps."""
_ITEMS, _TEXTS, _KEY, _NAME = 1 << 22, 16 << 20, 65_535, 256
"""Limits: items of all arrays together, characters of all keys and texts that are kept, bytes of a key (the format's
bound), bytes of a tensor's name (ggml has room for 64)."""
_STRING, _ARRAY = 8, 9
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
FILE_TYPES = {
    **{0: "F32", 1: "F16", 2: "Q4_0", 3: "Q4_1", 7: "Q8_0", 8: "Q5_0", 9: "Q5_1", 10: "Q2_K", 11: "Q3_K_S"},
    **{12: "Q3_K_M", 13: "Q3_K_L", 14: "Q4_K_S", 15: "Q4_K_M", 16: "Q5_K_S", 17: "Q5_K_M", 18: "Q6_K"},
    **{19: "IQ2_XXS", 20: "IQ2_XS", 21: "Q2_K_S", 22: "IQ3_XS", 23: "IQ3_XXS", 24: "IQ1_S", 25: "IQ4_NL"},
    **{26: "IQ3_S", 27: "IQ3_M", 28: "IQ2_S", 29: "IQ2_M", 30: "IQ4_XS", 31: "IQ1_M", 32: "BF16"},
    **{36: "TQ1_0", 37: "TQ2_0", 38: "MXFP4"},
}
"""general.file_type -> llama.cpp's name for it."""
TENSOR_TYPES = {
    **{0: ("F32", 1, 4), 1: ("F16", 1, 2), 2: ("Q4_0", 32, 18), 3: ("Q4_1", 32, 20), 6: ("Q5_0", 32, 22)},
    **{7: ("Q5_1", 32, 24), 8: ("Q8_0", 32, 34), 9: ("Q8_1", 32, 40), 10: ("Q2_K", 256, 84), 11: ("Q3_K", 256, 110)},
    **{12: ("Q4_K", 256, 144), 13: ("Q5_K", 256, 176), 14: ("Q6_K", 256, 210), 15: ("Q8_K", 256, 292)},
    **{16: ("IQ2_XXS", 256, 66), 17: ("IQ2_XS", 256, 74), 18: ("IQ3_XXS", 256, 98), 19: ("IQ1_S", 256, 50)},
    **{20: ("IQ4_NL", 32, 18), 21: ("IQ3_S", 256, 110), 22: ("IQ2_S", 256, 82), 23: ("IQ4_XS", 256, 136)},
    **{24: ("I8", 1, 1), 25: ("I16", 1, 2), 26: ("I32", 1, 4), 27: ("I64", 1, 8), 28: ("F64", 1, 8)},
    **{
        29: ("IQ1_M", 256, 56),
        30: ("BF16", 1, 2),
        34: ("TQ1_0", 256, 54),
        35: ("TQ2_0", 256, 66),
        39: ("MXFP4", 32, 17),
    },
}
"""ggml's types: (name, weights per block, bytes per block)."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """shape: in ggml's order, the row's length first. offset: counted from the first byte after the header."""

    name: str
    shape: tuple[int, ...]
    type: int
    offset: int

    @property
    def elements(self) -> int:
        """Number of weights."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes in the file; 0 for an unknown type."""
        _, block, size = TENSOR_TYPES.get(self.type, ("", 1, 0))
        return self.elements // block * size


@dataclass(frozen=True, slots=True)
class GgufHeader:
    """values: key -> number, text, or a short array of numbers. lengths: key -> number of entries of every array. data:
    where the first tensor begins. size: bytes of the file."""

    values: Mapping[str, Any]
    lengths: Mapping[str, int]
    tensors: tuple[TensorEntry, ...]
    data: int
    size: int

    @property
    def architecture(self) -> str:
        """llama.cpp's name for the family, "" if there is none."""
        return self.text("general.architecture")

    @property
    def parameters(self) -> int:
        """Number of weights in this file."""
        return sum(tensor.elements for tensor in self.tensors)

    @property
    def quantisation(self) -> str:
        """The name of its quantisation, such as Q4_K_M; if the file gives none, the type of most of its weights."""
        if named := FILE_TYPES.get(self.number("general.file_type", -1)):
            return named
        by_type: dict[int, int] = {}
        for tensor in self.tensors:
            by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.elements
        most = max(by_type, key=lambda kind: by_type[kind], default=-1)
        return TENSOR_TYPES.get(most, ("",))[0]

    @property
    def is_whole(self) -> bool:
        """Whether the file is as long as its tensors need; a truncated file is not."""
        return all(self.data + tensor.offset + tensor.bytes <= self.size for tensor in self.tensors)

    def text(self, key: str) -> str:
        """A text, "" if there is none."""
        value = self.values.get(key)
        return value if isinstance(value, str) else ""

    def number(self, key: str, default: int = 0) -> int:
        """A whole number; of an array with one per layer, the largest."""
        value = self.values.get(key)
        if isinstance(value, tuple):
            value = max((each for each in value if isinstance(each, int)), default=None)
        return int(value) if isinstance(value, int) and not isinstance(value, bool) else default

    def of_family(self, key: str, default: int = 0) -> int:
        """A number stored under the architecture's prefix."""
        return self.number(f"{self.architecture}.{key}", default)


def read_header(path: Path, vocabulary: bool = False) -> GgufHeader:
    """The header of a file. vocabulary: also keep arrays of texts and long arrays, which a glance skips.

    Raises ModelNotFound that says what is wrong with it.
    """
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            content = file.read(_FIRST)
            try:
                return _parsed(content, size, vocabulary)
            except struct.error:
                if len(content) == size or len(content) < _FIRST:
                    raise
                content += file.read(HEADER_LIMIT - _FIRST)
                return _parsed(content, size, vocabulary)
    except OSError as error:
        raise ModelNotFound(f"{path} cannot be read ({error.strerror or error}).") from error
    except (struct.error, OverflowError, ValueError) as error:
        raise ModelNotFound(f"{path} is no whole GGUF file: {_reason(error)}. Download it again.") from error


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, ValueError) else "its header is cut off"


def _parsed(content: bytes, size: int, vocabulary: bool) -> GgufHeader:
    """Raises struct.error if the content ends too early, ValueError if it says something impossible."""
    if content[:4] != MAGIC:
        raise ValueError("it does not begin with GGUF")
    version, tensors, entries = struct.unpack_from("<IQQ", content, 4)
    if version not in (2, 3):
        raise ValueError(f"its version is {version}, and 2 and 3 are read")
    if entries > _ENTRIES or tensors > _TENSORS:
        raise ValueError(f"it claims {entries:,} entries and {tensors:,} tensors")
    place, values, lengths = 24, dict[str, Any](), dict[str, int]()
    items, characters, keys = _ITEMS, _TEXTS, set[str]()
    for _ in range(entries):
        key, place = _text(content, place, _KEY)
        if key in keys:
            raise ValueError(f"it has two entries {key[:80]!r}")
        keys.add(key)
        (kind,) = struct.unpack_from("<I", content, place)
        value, place, length = _value(content, place + 4, kind, vocabulary, items)
        items -= length or 0
        characters -= len(key) + (len(value) if isinstance(value, str) else 0)
        if characters < 0:
            raise ValueError(f"its texts have more than {_TEXTS:,} characters")
        if length is not None:
            lengths[key] = length
        if value is not None:
            values[key] = value
    listed, place = _tensors(content, place, tensors)
    alignment = values.get("general.alignment", 32)
    if not isinstance(alignment, int) or not 0 < alignment <= 1 << 16:
        raise ValueError("its alignment is impossible")
    return GgufHeader(values, lengths, tuple(listed), -(-place // alignment) * alignment, size)


def _tensors(content: bytes, place: int, count: int) -> tuple[list[TensorEntry], int]:
    """`count` tensors, and where the header ends."""
    listed, names = [], set[str]()
    for _ in range(count):
        name, place = _text(content, place, _NAME)
        if name in names:
            raise ValueError(f"it has two tensors {name!r}")
        names.add(name)
        (axes,) = struct.unpack_from("<I", content, place)
        if not 1 <= axes <= 4:
            raise ValueError(f"a tensor has {axes} axes")
        *shape, kind, offset = struct.unpack_from(f"<{axes}QIQ", content, place + 4)
        if any(not 0 < axis < 1 << 40 for axis in shape):
            raise ValueError("a tensor has an impossible shape")
        listed.append(TensorEntry(name, tuple(shape), kind, offset))
        place += 16 + 8 * axes
    return listed, place


def _text(content: bytes, place: int, most: int = 0) -> tuple[str, int]:
    """(a text, where it ends). most: the maximum bytes of a valid text, 0 to cut longer ones off instead."""
    (length,) = struct.unpack_from("<Q", content, place)
    if most and length > most:
        raise ValueError(f"a name in it has {length:,} bytes")
    end = place + 8 + length
    if end > len(content):
        raise struct.error("a text ends behind the header")
    return content[place + 8 : min(end, place + 8 + _TEXT)].decode("utf-8", "replace"), end


def _value(content: bytes, place: int, kind: int, vocabulary: bool, items: int) -> tuple[Any, int, int | None]:
    """(the kept value, where the next entry begins, how many items an array has, at most `items`)."""
    if kind == _STRING:
        text, place = _text(content, place)
        return text, place, None
    if kind == _ARRAY:
        inner, count = struct.unpack_from("<IQ", content, place)
        if count > items:
            raise ValueError(f"its arrays have more than {_ITEMS:,} items")
        return *_array(content, place + 12, inner, count, vocabulary), count
    if kind not in _SCALARS:
        raise ValueError(f"an entry has the unknown type {kind}")
    (value,) = struct.unpack_from(f"<{_SCALARS[kind]}", content, place)
    return value, place + struct.calcsize(f"<{_SCALARS[kind]}"), None


def _array(content: bytes, place: int, inner: int, count: int, vocabulary: bool) -> tuple[Any, int]:
    """(its values, where it ends). Without `vocabulary`, texts and long arrays are skipped: a glance does not need
    them."""
    if inner == _STRING:
        read, end, texts = struct.Struct("<Q").unpack_from, place, list[str]()
        for _ in range(count):
            begin = end + 8
            end = begin + read(content, end)[0]
            if vocabulary:
                if end > len(content):
                    raise struct.error("a text ends behind the header")
                texts.append(content[begin:end].decode("utf-8", "replace"))
        return tuple(texts) if vocabulary else None, end
    if inner not in _SCALARS:
        raise ValueError("an array holds arrays")
    size = struct.calcsize(f"<{_SCALARS[inner]}")
    if size * count > len(content) - place:
        raise struct.error("more numbers than the header has room for")
    wanted = vocabulary or count <= _NUMBERS
    numbers = struct.unpack_from(f"<{count}{_SCALARS[inner]}", content, place) if wanted else None
    return numbers, place + size * count
