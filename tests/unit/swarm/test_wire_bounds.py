"""Every number and text that arrives over the network has bounds, whatever struct it stands in."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec
import pytest
from msgspec import inspect as mi

from sapo_swarm.coordinator import admin_client
from sapo_swarm.protocol import snapshot, wire
from sapo_swarm.protocol.wire import RoundReply, SwarmInfo, WireError, encode_message, unpack_json, unpack_msgpack

WIRE = [
    kind
    for module in (wire, snapshot, admin_client)
    for kind in vars(module).values()
    if isinstance(kind, type)
    and issubclass(kind, msgspec.Struct)
    and kind.__module__ == module.__name__
    and kind is not admin_client.AdminAccess  # a file of the host's own
]
"""Every struct that the modules of the wire define."""


def unbounded(kind: mi.Type, place: str) -> Iterator[str]:
    """Places below this type that take any number, any text or any number of things."""
    if isinstance(kind, mi.IntType | mi.FloatType):
        low, high = (kind.ge, kind.gt), (kind.le, kind.lt)
        if (
            set(low) == {None}
            or set(high) == {None}
            or not all(math.isfinite(v) for v in (*low, *high) if v is not None)
        ):
            yield place
    elif isinstance(kind, mi.StrType | mi.BytesType):
        ending = getattr(kind, "pattern", None) or ""
        if kind.max_length is None and not ending.endswith(r"\Z"):
            yield place
    elif isinstance(kind, mi.VarTupleType | mi.ListType | mi.DictType):
        if kind.max_length is None:
            yield place
        if not isinstance(kind, mi.DictType):
            yield from unbounded(kind.item_type, f"{place}[]")
    elif isinstance(kind, mi.UnionType):
        for part in kind.types:
            yield from unbounded(part, place)
    elif isinstance(kind, mi.StructType):
        for field in kind.fields:
            yield from unbounded(field.type, f"{place}.{field.name}")


@pytest.mark.parametrize("kind", WIRE)
def test_every_field_of_the_wire_is_bounded(kind: type[msgspec.Struct]) -> None:
    """Numbers have a smallest and a largest value, which leaves out NaN and infinities; texts and lists a length."""
    assert list(unbounded(mi.type_info(kind), kind.__name__)) == []


GOOD = {
    "results": [],
    "sample": [],
    "receipts": [],
    "uptake": 1,
    "mine": 1,
    "total": 2,
    "window_s": 3600.0,
    "nodes": 2,
    "rounds_per_s": 1.0,
    "pool": 3,
    "next_in_s": 5.0,
}


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan, 1e308, -1e308, -1, 2**63, 2**64 - 1, "1", None])
@pytest.mark.parametrize("name", [name for name, value in GOOD.items() if not isinstance(value, list)])
def test_a_reply_with_an_impossible_number_is_no_reply(name: str, value: object) -> None:
    """It would be written to the journal as null, and the journal could not be read any more."""
    assert unpack_msgpack(msgspec.msgpack.encode(GOOD), RoundReply).mine == 1
    with pytest.raises(WireError):
        unpack_msgpack(msgspec.msgpack.encode({**GOOD, name: value}), RoundReply)


@pytest.mark.parametrize("text", [b'{"share_fraction": 1e308}', b'{"share_fraction": 1e999}', b'{"time": NaN}'])
def test_numbers_beyond_the_bounds_do_not_parse_in_json_either(text: bytes) -> None:
    """msgspec lets 1e308 through where a field says float."""
    with pytest.raises(WireError):
        unpack_json(text, SwarmInfo)


def test_a_good_reply_passes_the_bounds() -> None:
    """The bounds leave room for what a coordinator says."""
    assert encode_message(unpack_msgpack(msgspec.msgpack.encode(GOOD), RoundReply))
