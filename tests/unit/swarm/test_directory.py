"""The signed list of swarms: what a reader takes, and the sentence for what it does not."""

from __future__ import annotations

import json
from typing import Literal

import msgspec
import pytest

from sapo_swarm.protocol.directory import (
    LONGEST_S,
    MAX_BYTES,
    BadDirectory,
    DirectoryEntry,
    SwarmList,
    parse_address,
    parse_swarm_list,
    sign_directory,
    verify_directory,
)
from sapo_swarm.protocol.identity import Identity

NOW = 1_800_000_000
KEEPER = Identity.generate()
JOIN = "sapo://192.0.2.7:7361/#fp=" + "a" * 64 + "&s=" + "b" * 16
OPEN = DirectoryEntry(
    name="evenings", trains="sums", nodes=12, rounds_per_hour=90.5, who="anyone", checks="by all", join=JOIN
)
LIST = SwarmList(name="friends", issued=NOW, expires=NOW + 86_400, swarms=(OPEN,))


def refused(data: bytes, key: str = KEEPER.node, now: float = NOW + 5) -> str:
    with pytest.raises(BadDirectory) as error:
        verify_directory(data, key, now)
    said = str(error.value)
    assert said.isprintable()
    assert "\n" not in said
    assert said.endswith(".")
    return said


def test_what_was_signed_is_read_again() -> None:
    assert verify_directory(sign_directory(LIST, KEEPER), KEEPER.node, NOW + 5) == LIST


def test_a_forged_list_is_refused_in_one_sentence() -> None:
    """A changed byte, another's signature, another's key."""
    good = sign_directory(LIST, KEEPER)
    assert "signature does not hold" in refused(good.replace(b"evenings", b"mornings"))
    other = Identity.generate()
    assert "another key" in refused(sign_directory(LIST, other))
    claimed = json.loads(sign_directory(LIST, other)) | {"key": KEEPER.public_key.hex()}
    assert "signature does not hold" in refused(json.dumps(claimed).encode())


def test_reordered_or_respaced_bytes_are_not_what_was_signed() -> None:
    assert "signature does not hold" in refused(json.dumps(json.loads(sign_directory(LIST, KEEPER))).encode())


def test_a_stale_list_is_refused_in_one_sentence() -> None:
    good = sign_directory(LIST, KEEPER)
    assert "expired lately" in refused(good, now=LIST.expires)
    assert "expired 9 days ago" in refused(good, now=LIST.expires + 9 * 86_400)
    assert "future" in refused(good, now=NOW - 2 * 86_400)


def test_a_list_cannot_be_made_to_count_for_ever() -> None:
    for expires in (NOW, NOW + int(LONGEST_S) + 1):
        with pytest.raises(BadDirectory, match="valid for longer"):
            sign_directory(msgspec.structs.replace(LIST, expires=expires), KEEPER)


def test_a_huge_list_is_refused_before_it_is_parsed() -> None:
    assert f"{MAX_BYTES:,} at most" in refused(b"[" * (MAX_BYTES + 1))


def test_an_unsigned_list_is_refused_in_one_sentence() -> None:
    assert refused(msgspec.json.encode(LIST)) == "It is not signed."


@pytest.mark.parametrize(
    "data",
    [b"", b"null", b"<html>", b"[" * 50_000, b"\xff\xfe", b'{"list": 1, "key": 2, "signature": 3}', b'{"\x1b[2J": 1}'],
)
def test_something_else_is_refused_in_one_sentence(data: bytes) -> None:
    refused(data)


@pytest.mark.parametrize(
    "change",
    [
        {"nodes": -1},
        {"nodes": "many"},
        {"rounds_per_hour": 1e300},
        {"name": ""},
        {"name": "n" * 41},
        {"checks": "c" * 201},
        {"who": "everybody"},
        {"join": "https://example.org"},
        {"join": "sapo://192.0.2.7/#s=" + "b" * 16},
        {"join": JOIN + "&t=" + "c" * 32},
        {"join": ""},
        {"extra": 1},
    ],
)
def test_a_signed_list_of_wrong_types_is_refused_all_the_same(change: dict[str, object]) -> None:
    """A signature says whose it is, not that it is sound."""
    plain = json.loads(msgspec.json.encode(LIST))
    plain["swarms"][0] |= change
    inner = json.dumps(plain).encode()
    sealed = b'{"list":%s,"key":"%s","signature":"%s"}' % (
        inner,
        KEEPER.public_key.hex().encode(),
        KEEPER.sign(b"sapo-directory-v1\0" + inner).hex().encode(),
    )
    refused(sealed)
    with pytest.raises(BadDirectory):
        parse_swarm_list(inner)


@pytest.mark.parametrize("who", ["anyone", "invited"])
def test_a_directory_with_a_token_in_one_of_its_lines_is_refused(who: Literal["anyone", "invited"]) -> None:
    """Joined by the line that `sapo-desktop directory` prints, such a swarm had no trial."""
    told = msgspec.structs.replace(OPEN, name="lucky", who=who, join=JOIN + "&t=" + "c" * 32)
    inner = msgspec.json.encode(msgspec.structs.replace(LIST, swarms=(OPEN, told)))
    with pytest.raises(BadDirectory, match="What 'lucky' in it is to be joined with holds a token"):
        parse_swarm_list(inner)


def test_a_node_s_signature_of_a_group_is_no_signature_of_a_list() -> None:
    inner = msgspec.json.encode(LIST)
    sealed = json.loads(sign_directory(LIST, KEEPER)) | {"signature": KEEPER.sign(inner).hex()}
    assert "signature does not hold" in refused(json.dumps(sealed).encode())


def test_an_address_names_its_signer() -> None:
    address = parse_address(f" https://example.org/swarms.json#key={KEEPER.node}&fp={'a' * 64} ")
    assert (address.url, address.key, address.fingerprint) == ("https://example.org/swarms.json", KEEPER.node, "a" * 64)
    assert parse_address(str(address)) == address


@pytest.mark.parametrize("place", ["127.0.0.1:8000", "localhost", "192.168.1.20", "[::1]:8000", "10.0.0.1"])
def test_plain_http_is_for_the_own_network(place: str) -> None:
    assert parse_address(f"http://{place}/a.json#key={KEEPER.node}").url == f"http://{place}/a.json"


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("http://example.org/a.json#key={key}", "https:// only"),
        ("http://8.8.8.8/a.json#key={key}", "https:// only"),
        ("http://localhost.evil.org/a.json#key={key}", "https:// only"),
        ("http://0.0.0.0/a.json#key={key}", "https:// only"),
        ("https://example.org/a.json", "needs #key="),
        ("https://example.org/a.json#key=abc", "copy the whole line"),
        ("https://example.org/a.json#key={key}&x=1", "copy the whole line"),
        ("https://me@example.org/a.json#key={key}", "begins with https://"),
        ("ftp://example.org/a.json#key={key}", "begins with https://"),
        ("https://example.org:99999/a.json#key={key}", "does not parse"),
        ("https://example.org/a b.json#key={key}", "plain characters"),
        ("https://example.org/a,b.json#key={key}", "plain characters"),
        ("", "plain characters"),
    ],
)
def test_an_address_that_cannot_work_says_why(line: str, said: str) -> None:
    with pytest.raises(BadDirectory, match=said):
        parse_address(line.format(key=KEEPER.node))
