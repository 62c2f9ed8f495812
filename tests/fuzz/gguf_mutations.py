"""A GGUF file taken apart, one thing in it made hostile, and put together again: nothing of the app's reader or writer.

MUTATIONS change any field, array, tensor or byte at random; ATTACKS are aimed, each at one thing that a reader has to do.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
TEXT, ARRAY = 8, 9
F32 = 0
ESCAPE = "\x1b[2J\x1b]0;evil\x07\r\nFROM evil\u202e\x9b31m"
"""What a terminal would obey."""


@dataclass
class Array:
    """Of scalars, of texts (bytes), or of arrays. count: what the file claims, where that is not how many there are."""

    kind: int
    items: list[Any]
    count: int | None = None


@dataclass
class Entry:
    """A field of the header. value: a number, bytes for a text, an Array. length: what a text claims to have."""

    key: bytes
    kind: int
    value: Any
    length: int | None = None


@dataclass
class Tensor:
    """shape: the row first. axes: how many the file claims."""

    name: bytes
    shape: list[int]
    kind: int
    offset: int
    axes: int | None = None


@dataclass
class GgufImage:
    """A file in parts. entries_claimed, tensors_claimed: where these are not how many there are. tail: bytes of nothing at the
    end, which a file system need not store."""

    version: int
    entries: list[Entry]
    tensors: list[Tensor]
    data: bytes
    alignment: int = 32
    entries_claimed: int | None = None
    tensors_claimed: int | None = None
    tail: int = 0
    magic: bytes = b"GGUF"
    edges: list[int] = field(default_factory=list)

    def encoded(self) -> bytes:
        """The file without its tail. Notes in `edges` where each part begins."""
        claimed = (self.tensors_claimed, len(self.tensors)), (self.entries_claimed, len(self.entries))
        head = self.magic + struct.pack("<I", self.version & 0xFFFFFFFF)
        head += b"".join(_packed(10, real if said is None else said) for said, real in claimed)
        parts, self.edges = [head], [0, 4, 8, 16, 24]
        place = len(head)
        for part in (*map(_entry, self.entries), *map(_tensor, self.tensors)):
            self.edges += [place, place + len(part) // 2]
            parts.append(part)
            place += len(part)
        gap = -place % self.alignment
        self.edges += [place, place + gap, place + gap + len(self.data)]
        return b"".join([*parts, b"\0" * gap, self.data])

    def entry(self, ending: str) -> Entry:
        """A field by the end of its name; a new one where there is none."""
        for each in self.entries:
            if each.key.endswith(ending.encode()):
                return each
        added = Entry(ending.encode() if "." not in ending else self.key(ending), 4, 0)
        self.entries.append(added)
        return added

    def key(self, name: str) -> bytes:
        """The whole name of a field that stands under the architecture's."""
        family = next((each.value for each in self.entries if each.key == b"general.architecture"), b"")
        known = name.startswith(("general.", "tokenizer.", "split."))
        return name.encode() if known else bytes(family) + b"." + name.encode()

    def put(self, ending: str, kind: int, value: Any) -> None:
        """A field has another value."""
        changed = self.entry(ending)
        changed.kind, changed.value = kind, value

    def tensor(self, name: str) -> Tensor:
        """A tensor by its name; the first where there is none of it."""
        return next((each for each in self.tensors if each.name == name.encode()), self.tensors[0])


def _packed(kind: int, value: Any) -> bytes:
    """A scalar; what does not fit its type is cut to the type's bits."""
    form = SCALARS[kind]
    if form in "fd":
        return struct.pack(f"<{form}", value)
    size = struct.calcsize(form)
    return (int(value) & ((1 << 8 * size) - 1)).to_bytes(size, "little")


def _text(value: bytes, length: int | None = None) -> bytes:
    return _packed(10, len(value) if length is None else length) + value


def _array(array: Array) -> bytes:
    count = len(array.items) if array.count is None else array.count
    head = _packed(4, array.kind) + _packed(10, count)
    if array.kind == TEXT:
        return head + b"".join(map(_text, array.items))
    if array.kind == ARRAY:
        return head + b"".join(map(_array, array.items))
    return head + b"".join(_packed(array.kind if array.kind in SCALARS else 4, item) for item in array.items)


def _entry(entry: Entry) -> bytes:
    head = _text(entry.key) + _packed(4, entry.kind)
    if isinstance(entry.value, Array):
        return head + _array(entry.value)
    if isinstance(entry.value, bytes):
        return head + _text(entry.value, entry.length)
    return head + _packed(entry.kind if entry.kind in SCALARS else 4, entry.value)


def _tensor(tensor: Tensor) -> bytes:
    axes = len(tensor.shape) if tensor.axes is None else tensor.axes
    sizes = b"".join(_packed(10, axis) for axis in tensor.shape)
    return _text(tensor.name) + _packed(4, axes) + sizes + _packed(4, tensor.kind) + _packed(10, tensor.offset)


def taken_apart(content: bytes, most: int = 1 << 20) -> GgufImage:
    """The parts of a whole file. Of its weights at most so many bytes are kept; the rest becomes a tail of zeros."""
    version, tensors, entries = struct.unpack_from("<IQQ", content, 4)
    place = 24

    def take(form: str) -> Any:
        nonlocal place
        value = struct.unpack_from(f"<{form}", content, place)
        place += struct.calcsize(f"<{form}")
        return value[0] if len(value) == 1 else list(value)

    def text() -> bytes:
        nonlocal place
        length = take("Q")
        place += length
        return content[place - length : place]

    def value(kind: int) -> Any:
        if kind == TEXT:
            return text()
        if kind != ARRAY:
            return take(SCALARS[kind])
        inner, count = take("I"), take("Q")
        return Array(inner, [value(inner) for _ in range(count)])

    image = GgufImage(version, [], [], b"")
    for _ in range(entries):
        key, kind = text(), take("I")
        image.entries.append(Entry(key, kind, value(kind)))
    for _ in range(tensors):
        name, axes = text(), take("I")
        shape = [take("Q") for _ in range(axes)]
        image.tensors.append(Tensor(name, shape, take("I"), take("Q")))
    start = place + -place % image.alignment
    image.data = content[start : start + most]
    image.tail = max(0, len(content) - start - most)
    return image


NUMBERS: tuple[tuple[int, Any], ...] = (
    (4, 0), (4, 1), (4, 3), (4, 2**31), (4, 2**32 - 1), (4, 4_000_000_000), (4, 10**9), (4, 65_536), (5, -1), (5, -(2**31)),
    (11, -1), (11, -(2**63)), (10, 2**63), (10, 2**64 - 1), (10, 2**40), (0, 255), (7, 0), (7, 1), (7, 2), (6, float("nan")),
    (6, float("inf")), (6, float("-inf")), (6, 0.0), (6, -1.5), (6, 1e-40), (6, 3e38), (12, 1e308), (12, float("nan")),
)  # fmt: skip
WORDS = (
    b"", b"x", b"none", b"yarn", b"llama", b"gemma3", b"phi3", b"gpt2", b"bert", b"\xff\xfe\x80", b"\xed\xa0\x80", b"\0",
    b"a" * 100_000, ESCAPE.encode(), ESCAPE.encode() * 3000, b"'" * 3000, b"{{ 'x'.center(3000000000) }}",
    b"\xf0\x9f\x90\xb8" * 300_000,
    b"{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", b"{" * 50_000, b"(" * 200_000, b" ",
)  # fmt: skip
ARRAYS = (
    Array(4, []), Array(TEXT, []), Array(4, [1] * 100_000), Array(TEXT, [b"a"] * 100_000), Array(6, [float("nan")] * 64),
    Array(4, [2**32 - 1, 0, 5]), Array(TEXT, [ESCAPE.encode()] * 40), Array(ARRAY, [Array(4, [1])]), Array(4, [1], 2**63),
    Array(TEXT, [b"x"], 2**64 - 1), Array(99, [1]), Array(ARRAY, [], 2**40), Array(7, [1] * 70), Array(0, [3] * 70),
    Array(5, [-1] * 70), Array(12, [1e308] * 70), Array(TEXT, [b""] * 5000),
)  # fmt: skip
ROOMS = (0, 1, 7, 31, 33, 2**16, 2**20, 2**31, 2**32, 2**39, 2**40, 2**62, 2**63, 2**64 - 1)
"""Axes of a tensor."""


def change_entry(image: GgufImage, rng: random.Random) -> None:
    """A field has a value of any type, a claimed length, another name, or is gone, or there twice."""
    changed, way = rng.choice(image.entries), rng.random()
    if way < 0.08:
        image.entries.remove(changed)
    elif way < 0.14:
        image.entries.insert(rng.randrange(len(image.entries)), replace(changed))
    elif way < 0.2:
        changed.key = rng.choice(
            (b"", ESCAPE.encode(), b"k" * 66_000, changed.key * 2, b"general.architecture", b"\xff")
        )
    elif way < 0.26:
        changed.kind = rng.choice((*range(14), 99, 2**31))
    elif way < 0.32 and isinstance(changed.value, bytes):
        changed.length = rng.choice((0, len(changed.value) - 1, len(changed.value) + 1, 2**31, 2**63, 2**64 - 1))
    elif way < 0.42 and isinstance(changed.value, (int, float)):
        changed.value = changed.value * rng.choice((-1, 2, 3, 1000, 10**6)) + rng.choice((-1, 0, 1))
        if isinstance(changed.value, float) and abs(changed.value) > 3e38:
            changed.kind = 12
    else:
        _set_any(changed, rng)


def _set_any(changed: Entry, rng: random.Random) -> None:
    alike = rng.random() < 0.6
    if isinstance(changed.value, bytes) == alike and rng.random() < 0.5:
        changed.kind, changed.value = TEXT, rng.choice(WORDS)
    elif isinstance(changed.value, Array) == alike and rng.random() < 0.5:
        changed.kind, changed.value = ARRAY, rng.choice(ARRAYS)
    else:
        changed.kind, changed.value = rng.choice(NUMBERS)


def change_array(image: GgufImage, rng: random.Random) -> None:
    """An array has other items, more or fewer of them, another type, or claims another length."""
    changed = rng.choice([each for each in image.entries if isinstance(each.value, Array)])
    array = Array(changed.value.kind, list(changed.value.items))
    changed.value, way = array, rng.random()
    texts = array.kind == TEXT
    hostile = [word for word in WORDS if len(word) < 400_000] if texts else [value for _, value in NUMBERS]
    if not texts and array.kind not in (6, 12):
        hostile = [value for value in hostile if isinstance(value, int)]
    if array.kind == 6:
        hostile = [value for value in hostile if abs(value) < 1e39 or value != value]
    if way < 0.4:
        for _ in range(rng.choice((1, 1, 3, 20))):
            array.items[rng.randrange(len(array.items))] = rng.choice(hostile)
    elif way < 0.5:
        array.items = [rng.choice(hostile)] * len(array.items)
    elif way < 0.6:
        del array.items[rng.randrange(len(array.items))]
    elif way < 0.7:
        array.items += rng.choices(array.items, k=rng.choice((1, 1000)))
    elif way < 0.75:
        array.items *= 300_000 // len(array.items) + 1
    elif way < 0.8:
        rng.shuffle(array.items)
    elif way < 0.9:
        array.count = rng.choice((0, 1, len(array.items) - 1, len(array.items) + 1, 2**22, 2**31, 2**63, 2**64 - 1))
    else:
        array.kind = rng.choice((*range(14), 99))
        if array.kind == ARRAY or texts != (array.kind == TEXT):
            array.items = [] if array.kind == ARRAY else [b"7" if array.kind == TEXT else 7] * len(array.items)


def change_tensor(image: GgufImage, rng: random.Random) -> None:
    """A tensor has another name, shape, type or place, is gone, or is there twice."""
    changed, way = rng.choice(image.tensors), rng.random()
    other = rng.choice(image.tensors)
    if way < 0.08:
        image.tensors.remove(changed)
    elif way < 0.16:
        image.tensors.append(replace(changed, name=changed.name if rng.random() < 0.5 else b"blk.0.attn_norm2.weight"))
    elif way < 0.3:
        hostile = (b"", ESCAPE.encode(), b"a" * 255, b"a" * 70_000, b"\xff", other.name, b"blk.99999999.attn_q.weight")
        changed.name = rng.choice(
            (*hostile, "blk.²³.attn_q.weight".encode(), b"blk.00.attn_q.weight", b"rope_freqs.weight")
        )
    elif way < 0.5:
        changed.shape = list(changed.shape)
        changed.shape[rng.randrange(len(changed.shape))] = rng.choice(ROOMS)
    elif way < 0.6:
        shapes = (changed.shape[::-1], changed.shape[:1], [*changed.shape, 1], [], [2**39] * 4, [1] * 5)
        changed.shape = list(rng.choice(shapes))
    elif way < 0.64:
        changed.axes = rng.choice((0, 1, 2, 3, 4, 5, 2**31, 2**32 - 1))
    elif way < 0.8:
        changed.kind = rng.choice((*range(46), 99, 2**31))
    else:
        near = (other.offset, other.offset + 1, other.offset + 32, changed.offset - 32, changed.offset + 4)
        changed.offset = rng.choice(
            (*near, 0, 1, 2**31, 2**62, 2**63, 2**64 - 1, len(image.data), len(image.data) + 32)
        )


def change_frame(image: GgufImage, rng: random.Random) -> None:
    """What stands around the parts: magic, version, counts, alignment, what lies behind."""
    way = rng.randrange(6)
    if way == 0:
        image.magic = rng.choice((b"GGUF", b"FUGG", b"ggml", b"\0\0\0\0", b"PK\x03\x04"))
        image.version = rng.choice((0, 1, 2, 4, 2**31, 0x03000000))
    elif way == 1:
        image.version = rng.choice((0, 1, 2, 3, 4, 99, 2**31, 0x03000000))
    elif way == 2:
        image.entries_claimed = rng.choice(
            (0, 1, len(image.entries) - 1, len(image.entries) + 1, 4096, 2**31, 2**63, 2**64 - 1)
        )
    elif way == 3:
        image.tensors_claimed = rng.choice(
            (0, 1, len(image.tensors) - 1, len(image.tensors) + 1, 65_536, 2**31, 2**63, 2**64 - 1)
        )
    elif way == 4:
        image.put("general.alignment", *rng.choice(NUMBERS))
    else:
        image.data = rng.choice((b"", image.data[: len(image.data) // 2], image.data[:-1], image.data + b"x" * 999))


def change_weights(image: GgufImage, rng: random.Random) -> None:
    """A tensor's weights are no numbers, infinite, enormous, or noise."""
    chosen = rng.choice(image.tensors)
    size = 4
    for axis in chosen.shape:
        size *= axis
    value = rng.choice((b"\0\0\xc0\x7f", b"\0\0\x80\x7f", b"\0\0\x80\xff", b"\xff\xff\x7f\x7f", b"\0\0\0\0", b""))
    data = (value * (size // 4)) if value else rng.randbytes(size)
    image.data = image.data[: chosen.offset] + data + image.data[chosen.offset + size :]


MUTATIONS: dict[str, tuple[int, Callable[[GgufImage, random.Random], None]]] = {
    "field": (30, change_entry),
    "array": (20, change_array),
    "tensor": (25, change_tensor),
    "frame": (5, change_frame),
    "weights": (4, change_weights),
}
"""Name -> (how often, what it does to a file in parts)."""
CUTS, FLIPS = 8, 8
"""How often a file ends early, or some bits of its header are flipped."""


def damage_bytes(content: bytes, edges: list[int], cut: bool, rng: random.Random) -> bytes:
    """The file ends at a boundary of its parts or beside it, or one to eight bits of its header are others."""
    if cut:
        return content[: max(0, rng.choice(edges) + rng.choice((-1, 0, 0, 1, 4)))]
    damaged, header = bytearray(content), edges[-2]
    for _ in range(rng.choice((1, 1, 2, 8))):
        # the vocabulary is most of a header: every second flip is in the first bytes or among the tensors
        place = rng.choice((rng.randrange(header), rng.choice(edges[:-1]) + rng.randrange(24)))
        damaged[min(place, header - 1)] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def mutate_gguf(file: Path, original: bytes, rng: random.Random) -> str:
    """Write a changed file; which kind of change it was."""
    image = taken_apart(original)
    names = [*MUTATIONS, "cut", "flip"]
    kind = rng.choices(names, [*(weight for weight, _ in MUTATIONS.values()), CUTS, FLIPS])[0]
    if kind in MUTATIONS:
        for _ in range(rng.choice((1, 1, 1, 2))):
            MUTATIONS[kind][1](image, rng)
    content = image.encoded()
    if kind not in MUTATIONS:
        content = damage_bytes(content, image.edges, kind == "cut", rng)
    write_sparse(file, content, 0 if kind == "cut" else image.tail)
    return kind


def write_sparse(file: Path, content: bytes, tail: int) -> None:
    """A file that ends in so many zeros, of which a file system stores none."""
    with file.open("wb") as stream:
        stream.write(content)
        stream.truncate(len(content) + tail)


# Aimed at what a reader has to do.


def _tokens(image: GgufImage, tokens: list[bytes], kind: int = 1) -> None:
    """The vocabulary is this, its first three tokens kept; the embedding is as long."""
    kept = image.entry("ggml.tokens").value.items[:3]
    kinds = image.entry("ggml.token_type").value.items[:3]
    count = len(tokens) + len(kept)
    image.put("ggml.tokens", ARRAY, Array(TEXT, [*kept, *tokens]))
    image.put("ggml.token_type", ARRAY, Array(5, [*kinds, *[kind] * len(tokens)]))
    if any(each.key.endswith(b"ggml.scores") for each in image.entries):
        image.put("ggml.scores", ARRAY, Array(6, [-float(number) for number in range(count)]))
    for name in ("token_embd.weight", "output.weight"):
        if (changed := image.tensor(name)).name == name.encode():
            changed.shape = [changed.shape[0], count]
            changed.offset = len(image.data) + image.tail
            image.tail += -(-4 * changed.shape[0] * count // 32) * 32


def _lengths(count: int, length: int, letters: bytes = b"ab") -> list[bytes]:
    rng = random.Random(count)
    return [bytes(rng.choices(letters, k=length)) for _ in range(count)]


def _huge(image: GgufImage) -> None:
    """An embedding of 2^21 rows in a file that claims a terabyte and stores nothing of it."""
    embedding = image.tensor("token_embd.weight")
    embedding.shape = [embedding.shape[0], 1 << 34]
    embedding.offset = len(image.data)
    image.tail = 4 * embedding.shape[0] << 34


def _many_layers(image: GgufImage) -> None:
    """A thousand layers that lie in one another's place: a small file that claims to be a large model."""
    image.put("block_count", 4, 1024)
    layer = [each for each in image.tensors if each.name.startswith(b"blk.0.")]
    image.tensors = [each for each in image.tensors if not each.name.startswith(b"blk.")]
    for number in range(1024):
        image.tensors += [replace(each, name=each.name.replace(b"blk.0.", b"blk.%d." % number)) for each in layer]


def _not_numbers(image: GgufImage, value: float) -> None:
    """Factors by which positions are stretched, or the weights of a norm."""
    for name in ("rope_freqs.weight", "rope_factors_long.weight", "output_norm.weight"):
        if (changed := image.tensor(name)).name == name.encode():
            many = changed.shape[0]
            image.data = (
                image.data[: changed.offset] + struct.pack("<f", value) * many + image.data[changed.offset + 4 * many :]
            )
            return


def _template(image: GgufImage, source: str) -> None:
    image.put("tokenizer.chat_template", TEXT, source.encode())


def _within(image: GgufImage) -> None:
    one, other = image.tensors[-1], image.tensors[-2]
    one.offset = other.offset


def _chained(image: GgufImage) -> None:
    """Merges that build one token of 2^16 letters, each of the one before."""
    tokens = [b"a" * (1 << power) for power in range(17)]
    merges = [b"a" * (1 << power) + b" " + b"a" * (1 << power) for power in range(16)]
    _tokens(image, tokens)
    image.put("tokenizer.ggml.merges", ARRAY, Array(TEXT, merges * 100))


def _all_merges(image: GgufImage) -> None:
    """As many merges as there is room for, none of a token."""
    image.put("tokenizer.ggml.merges", ARRAY, Array(TEXT, [b"a b"] * 1_000_000))


def _same_prefix(image: GgufImage) -> None:
    """Tokens whose every beginning and every end is a token."""
    _tokens(
        image,
        [b"a" * (i % 255 + 1) + str(i).encode() for i in range(1000)] + [b"a" * i for i in range(1, 256)],
    )


def _of_endings(image: GgufImage, count: int, length: int) -> None:
    _tokens(image, list(dict.fromkeys(_lengths(count, length))))


ATTACKS: dict[str, Callable[[GgufImage], object]] = {
    "more heads than hidden": lambda image: image.put("attention.head_count", 4, 4096),
    "more heads than hidden, no key length": lambda image: (
        image.entries.remove(image.entry("attention.key_length")),
        image.put("attention.head_count", 4, 4096),
    ),
    "keys of 4e9": lambda image: image.put("attention.key_length", 4, 4_000_000_000),
    "a negative number of key heads": lambda image: image.put("attention.head_count_kv", 5, -2),
    "three key heads for four": lambda image: image.put("attention.head_count_kv", 4, 3),
    "heads by layer that differ": lambda image: image.put("attention.head_count_kv", ARRAY, Array(5, [1, 2])),
    "heads by layer, text": lambda image: image.put("attention.head_count", ARRAY, Array(TEXT, [b"4", b"4"])),
    "a context of 0": lambda image: image.put("context_length", 4, 0),
    "a context of 2^63": lambda image: image.put("context_length", 10, 2**63),
    "epsilon that is no number": lambda image: image.put("layer_norm_rms_epsilon", 6, float("nan")),
    "negative epsilon": lambda image: image.put("layer_norm_rms_epsilon", 6, -1.0),
    "base frequency 0": lambda image: image.put("rope.freq_base", 6, 0.0),
    "base frequency below 0": lambda image: image.put("rope.freq_base", 6, -10_000.0),
    "endless base frequency": lambda image: image.put("rope.freq_base", 12, 1e308),
    "positions stretched without end": lambda image: (
        image.put("rope.scaling.type", TEXT, b"linear"),
        image.put("rope.scaling.factor", 6, float("inf")),
    ),
    "positions stretched by less than nothing": lambda image: (
        image.put("rope.scaling.type", TEXT, b"linear"),
        image.put("rope.scaling.factor", 6, -2.0),
    ),
    "stretched in a way with escapes": lambda image: image.put("rope.scaling.type", TEXT, ESCAPE.encode()),
    "an original context of 1": lambda image: image.put("rope.scaling.original_context_length", 4, 1),
    "factors that are no numbers": lambda image: _not_numbers(image, float("nan")),
    "endless factors": lambda image: _not_numbers(image, float("inf")),
    "factors of 0": lambda image: _not_numbers(image, 0.0),
    "negative factors": lambda image: _not_numbers(image, -8.0),
    "a rotated part of odd width": lambda image: image.put("rope.dimension_count", 4, 3),
    "a rotated part wider than a head": lambda image: image.put("rope.dimension_count", 4, 2**31),
    "a window of 1": lambda image: image.put("attention.sliding_window", 4, 1),
    "a window of 2^32": lambda image: image.put("attention.sliding_window", 4, 2**32 - 1),
    "one in another's place": _within,
    "a thousand layers in one place": _many_layers,
    "a terabyte of nothing": _huge,
    "no tensors": lambda image: image.tensors.clear(),
    "an architecture with escapes": lambda image: image.put("general.architecture", TEXT, ESCAPE.encode()),
    "an architecture of a megabyte": lambda image: image.put("general.architecture", TEXT, b"z" * 1_000_000),
    "a kind of tokenizer of a megabyte": lambda image: image.put("tokenizer.ggml.model", TEXT, b"z" * 1_000_000),
    "a way of splitting of a megabyte": lambda image: image.put("tokenizer.ggml.pre", TEXT, ESCAPE.encode() * 30_000),
    "a name of a megabyte": lambda image: image.put("general.name", TEXT, ESCAPE.encode() * 30_000),
    "a kind of file with escapes": lambda image: image.put("general.type", TEXT, ESCAPE.encode()),
    "a licence with escapes": lambda image: image.put("general.license", TEXT, ESCAPE.encode()),
    "a last token with escapes": lambda image: image.entry("ggml.tokens").value.items.__setitem__(2, ESCAPE.encode()),
    "tokens with escapes": lambda image: _tokens(image, [ESCAPE.encode() + bytes([65 + i]) for i in range(50)], 3),
    "tokens all alike": lambda image: _tokens(image, [b"a"] * 5000),
    "empty tokens": lambda image: _tokens(image, [b""] * 5000, 3),
    "control tokens of every letter": lambda image: _tokens(image, [bytes([32 + i]) for i in range(95)], 3),
    "a blank as a control token": lambda image: _tokens(image, [b" ", b"\n", b"  "], 3),
    "a hundred thousand control tokens": lambda image: _tokens(image, _lengths(100_000, 20, b"abcdefgh"), 3),
    "control tokens within one another": lambda image: _tokens(image, [b"a" * i for i in range(1, 3000)], 3),
    "own tokens within one another": lambda image: _tokens(image, [b"a" * i for i in range(1, 3000)], 4),
    "a token of 10 MB": lambda image: _tokens(image, [b"a" * 10_000_000]),
    "a control token of 5 MB": lambda image: _tokens(image, [b"a" * 5_000_000], 3),
    "tokens of 256 letters": lambda image: _of_endings(image, 150_000, 256),
    "tokens of 16 letters": lambda image: _of_endings(image, 600_000, 16),
    "as many tokens as the header takes": lambda image: _tokens(image, [b"%d" % i for i in range(4_000_000)]),
    "tokens of every beginning": _same_prefix,
    "merges that double": _chained,
    "a million merges": _all_merges,
    "every token unknown": lambda image: image.put(
        "ggml.token_type", ARRAY, Array(5, [2] * len(image.entry("ggml.tokens").value.items))
    ),
    "kinds of no kind": lambda image: image.put(
        "ggml.token_type", ARRAY, Array(5, [-7] * len(image.entry("ggml.tokens").value.items))
    ),
    "scores that are no numbers": lambda image: image.put(
        "ggml.scores", ARRAY, Array(6, [float("nan")] * len(image.entry("ggml.tokens").value.items))
    ),
    "scores that are texts": lambda image: image.put(
        "ggml.scores", ARRAY, Array(TEXT, [b"1"] * len(image.entry("ggml.tokens").value.items))
    ),
    "an end that is no token": lambda image: image.put("eos_token_id", 4, 2**32 - 1),
    "an end below 0": lambda image: image.put("eos_token_id", 5, -1),
    "an end that is no number": lambda image: image.put("eos_token_id", 6, float("nan")),
    "a beginning below 0": lambda image: image.put("bos_token_id", 11, -(2**63)),
    "a template that repeats": lambda image: _template(image, "{{ 'x' * 3000000000 }}"),
    "a template that centres": lambda image: _template(image, "{{ 'x'.center(3000000000) }}"),
    "a template that indents": lambda image: _template(image, "{{ messages | tojson(indent=2000000000) }}"),
    "a template of loops": lambda image: _template(image, "{% for a in range(99999) %}" * 4 + "x" + "{% endfor %}" * 4),
    "a template that doubles": lambda image: _template(
        image, "{% set n = namespace(t='ab') %}{% for i in range(60) %}{% set n.t = n.t + n.t %}{% endfor %}{{ n.t }}"
    ),
    "a template that calls itself": lambda image: _template(image, "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"),
    "a template nested deep": lambda image: _template(image, "{{" + "(" * 5000 + "1" + ")" * 5000 + "}}"),
    "a template of a megabyte": lambda image: _template(image, "{% if 1 %}" * 50_000 + "{% endif %}" * 50_000),
    "a template that refuses in escapes": lambda image: _template(
        image, "{{ raise_exception(" + json.dumps(ESCAPE) + ") }}"
    ),
    "a template that writes escapes": lambda image: _template(image, ESCAPE + "{{ messages[0].content }}"),
    "a template out of its sandbox": lambda image: _template(image, "{{ ''.__class__.__mro__[1].__subclasses__() }}"),
    "a template of powers": lambda image: _template(image, "{{ 9 ** 9 ** 9 ** 9 }}"),
    "a template of splits": lambda image: _template(image, "{{ ('a ' * 100000).split() | join('b' * 1000) }}"),
    "four thousand fields": lambda image: image.entries.extend(Entry(b"x%d" % i, 4, i) for i in range(4000)),
    "sixty thousand tensors": lambda image: image.tensors.extend(
        Tensor(b"t%d" % i, [1], F32, 0) for i in range(60_000)
    ),
    "a hundred megabytes of fields": lambda image: image.entries.extend(
        Entry(b"x%d" % i, TEXT, b"y" * 1_000_000) for i in range(90)
    ),
    "a hundred megabytes of numbers": lambda image: image.put("x", ARRAY, Array(0, [0] * 4_000_000)),
    "a mixture of experts": lambda image: image.put("expert_count", 4, 8),
    "one of two parts": lambda image: image.put("split.count", 2, 2),
    "an adapter": lambda image: image.put("general.type", TEXT, b"adapter"),
    "an alignment of 1": lambda image: image.put("general.alignment", 4, 1),
    "an alignment of 65535": lambda image: image.put("general.alignment", 4, 65_535),
}
"""Name -> what it does to a file in parts."""


def attack_gguf(file: Path, original: bytes, name: str) -> None:
    """Write a file that was made for one attack."""
    image = taken_apart(original)
    ATTACKS[name](image)
    write_sparse(file, image.encoded(), image.tail)
