"""The codec refuses bombs and nonsense before they cost anything."""

from __future__ import annotations

import msgspec
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.simulated_nodes import sim_group

from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import (
    MAX_BODY,
    MAX_RAW,
    GroupBody,
    JoinRequest,
    SignedGroup,
    TooLarge,
    Upload,
    WireError,
    decode_message,
    decompress_body,
    encode_message,
    unpack_json,
    unpack_msgpack,
)
from sapo_swarm.types import TaskRef


def zstd(data: bytes, declared: bool = True, **options: object) -> bytes:
    return zstandard.ZstdCompressor(write_content_size=declared, **options).compress(data)  # type: ignore[arg-type]


def rle_bomb(declared: int) -> bytes:
    """A frame whose header declares little and whose blocks repeat one byte for ever."""
    block = ((128 * 1024) << 3 | 1 << 1).to_bytes(3, "little") + b"A"
    last = ((128 * 1024) << 3 | 1 << 1 | 1).to_bytes(3, "little") + b"A"
    header = b"\x28\xb5\x2f\xfd" + bytes([0b1010_0000]) + declared.to_bytes(4, "little")
    return header + block * 5000 + last


def test_an_upload_survives_the_way_there() -> None:
    """encode and decode are inverses; a group's signed bytes are untouched."""
    group = sim_group(Identity.generate(), "a" * 16, 1, 0)
    upload = Upload(groups=(group,), want=4, have=(b"12345678",), reward_local=0.5)
    assert decode_message(encode_message(upload), Upload) == upload
    assert unpack_msgpack(group.body, GroupBody).completions[0].finish == "stop"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        (zstd(bytes(2**30 // 64)), TooLarge),
        (zstd(bytes(MAX_RAW + 1)), TooLarge),
        (bytes(MAX_BODY + 1), TooLarge),
        (zstd(b"\x80", declared=False), WireError),
        (zstd(b"\x80") + zstd(b"\x80"), WireError),
        (zstd(b"\x80") + b"tail", WireError),
        (zstd(b""), WireError),
        (b"", WireError),
        (b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd" + zstd(b"\x80"), WireError),
        (b"\x1f\x8b" + bytes(50), WireError),
        (rle_bomb(1000), WireError),
        (zstd(bytes(100))[:-3], WireError),
    ],
    ids=[
        "declares sixteen mebibytes",
        "declares one byte too many",
        "is too long as it came",
        "declares nothing",
        "holds two frames",
        "has a tail",
        "is empty inside",
        "is empty",
        "begins with a skippable frame",
        "is gzip",
        "lies about its size",
        "is cut off",
    ],
)
def test_a_bomb_is_refused(body: bytes, error: type[WireError]) -> None:
    """By the frame's header, or by a buffer of the declared size."""
    with pytest.raises(error):
        decompress_body(body)


@pytest.mark.parametrize(
    "raw",
    [
        b"\x91" * 100_000,
        b"\xdd\xff\xff\xff\xff",
        b"\xdb\xff\xff\xff\xff",
        b"\xc6\xff\xff\xff\xff",
        msgspec.msgpack.encode({"groups": [], "want": 0, "reward": 1}),
        msgspec.msgpack.encode({"groups": [], "want": 33}),
        msgspec.msgpack.encode({"groups": [None] * 10}),
        msgspec.msgpack.encode({"groups": [], "reward_local": float("nan")}),
        b"\x81\xa6groups\xa2\xff\xfe",
    ],
    ids=["deep", "array length", "string length", "bin length", "unknown", "want", "count", "nan", "utf-8"],
)
def test_malformed_messages_are_wire_errors(raw: bytes) -> None:
    """Depth, giant lengths, unknown fields, values out of range, bad text."""
    with pytest.raises(WireError):
        decode_message(encode_raw(raw), Upload)


def encode_raw(raw: bytes) -> bytes:
    return zstd(raw)


@pytest.mark.parametrize("name", ["bf\n", "BF", "../x", "bf\x00", "b" * 41, "", "b\u202ef"])
def test_names_match_whole(name: str) -> None:
    """A pattern that ends in `$` would let a newline through."""
    raw = msgspec.msgpack.encode({"dataset": name, "preset": "starter", "seed": 1})
    with pytest.raises(WireError):
        unpack_msgpack(raw, TaskRef)


def test_deep_json_is_a_wire_error() -> None:
    """As is JSON of another shape."""
    for body in (b"[" * 100_000, b"{}", b"\xff", b'{"key": "' + b"0" * 64 + b'", "admin": true}'):
        with pytest.raises(WireError):
            unpack_json(body, JoinRequest)


@settings(max_examples=300)
@given(st.binary(max_size=600))
def test_any_bytes_decode_or_are_refused(raw: bytes) -> None:
    """Nothing but WireError comes out, for every message type."""
    for kind in (Upload, SignedGroup, GroupBody):
        for body in (raw, zstd(raw)):
            try:
                decode_message(body, kind)
            except WireError:
                continue
