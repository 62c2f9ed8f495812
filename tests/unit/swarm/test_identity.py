"""Keys, ids, signatures, and where the secret lies."""

from __future__ import annotations

import stat
import threading
from pathlib import Path

import msgspec
import pytest
from tests.support.simulated_nodes import sim_group

from sapo_swarm.protocol import identity
from sapo_swarm.protocol.identity import (
    Identity,
    KeyStoreError,
    group_text,
    load_or_create,
    node_id,
    request_text,
    verify_signature,
)
from sapo_swarm.protocol.wire import GroupBody, unpack_msgpack
from sapo_swarm.types import NodeId


@pytest.fixture(autouse=True)
def all_keyrings_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """A keyring of this test may lie where a broken one of another test lay."""
    monkeypatch.setattr(identity, "_broken", set())


class Memory:
    """A keyring that works."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        del self.kept[service, username]


class Null(Memory):
    """Swallows what it is given, as keyring.backends.null does."""

    def set_password(self, service: str, username: str, password: str) -> None:
        return None


class Broken(Memory):
    """Raises, as keyring.backends.fail does."""

    def get_password(self, service: str, username: str) -> str | None:
        raise RuntimeError("No recommended backend was available.")


class Locked(Memory):
    """Waits for somebody to unlock it."""

    def __init__(self) -> None:
        super().__init__()
        self.unlocked = threading.Event()

    def get_password(self, service: str, username: str) -> str | None:
        self.unlocked.wait(30)
        return None


def test_ids_follow_from_keys() -> None:
    """26 characters of base32; the same key gives the same id."""
    one = Identity(bytes(32))
    assert msgspec.convert(one.node, NodeId) == node_id(one.public_key) == Identity(bytes(32)).node
    assert one.node != Identity(bytes([1]) * 32).node


def test_a_signature_covers_every_part_of_a_request() -> None:
    """Change one part and it is false; a part cannot flow into its neighbour."""
    node = Identity.generate()
    parts = ("PUT", "/v1/rounds/x", "a" * 16, 5, "n" * 32, b"body")
    signature = node.sign(request_text(*parts))
    assert verify_signature(node.public_key, signature, request_text(*parts))
    for place, other in enumerate(("POST", "/v1/rounds/y", "b" * 16, 6, "m" * 32, b"bodies")):
        changed = [*parts[:place], other, *parts[place + 1 :]]
        assert not verify_signature(node.public_key, signature, request_text(*changed))  # type: ignore[arg-type]
    assert request_text("P", "UT/x", "s", 1, "n", b"") != request_text("PU", "T/x", "s", 1, "n", b"")


def test_a_group_signature_is_good_in_one_swarm_only() -> None:
    """And no request signature is a group signature."""
    node = Identity.generate()
    group = sim_group(node, "a" * 16, 1, 0)
    assert verify_signature(group.key, group.signature, group_text("a" * 16, group.body))
    assert not verify_signature(group.key, group.signature, group_text("b" * 16, group.body))
    with pytest.raises(ValueError, match="cannot be signed by"):
        Identity.generate().sign_group("a" * 16, unpack_msgpack(group.body, GroupBody))


def test_a_key_of_small_order_signs_nothing() -> None:
    """The neutral element as key and as half of a signature fulfils the equation for every text: OpenSSL takes it."""
    neutral = bytes([1]) + bytes(31)
    assert not verify_signature(neutral, neutral + bytes(32), b"whatever somebody else wrote")


@pytest.mark.parametrize("key", [b"", bytes(31), bytes(33), b"\xff" * 32])
def test_bad_keys_verify_nothing(key: bytes) -> None:
    """Of any length or none."""
    assert not verify_signature(key, bytes(64), b"text")


def test_a_working_keyring_keeps_the_secret(tmp_path: Path) -> None:
    """The same identity comes back; the one file that is made says whose key it is."""
    pool = Memory()
    first = load_or_create(tmp_path, keyring=pool)
    assert first.place == "keyring"
    (only,) = tmp_path.iterdir()
    assert (only.name, only.read_text()) == ("node.id", first.identity.node + "\n")
    assert load_or_create(tmp_path, keyring=pool).identity.node == first.identity.node


def test_a_key_under_the_one_name_of_earlier_versions_is_found_by_the_home_whose_it_is(tmp_path: Path) -> None:
    """Another home of the account does not take it."""
    old, pool = Identity.generate(), Memory()
    pool.kept[identity.SERVICE, "node"] = old.secret.hex()
    (tmp_path / "node.id").write_text(old.node)
    assert load_or_create(tmp_path, keyring=pool).identity.node == old.node
    assert load_or_create(tmp_path / "other", keyring=pool).identity.node != old.node


def test_a_key_that_no_file_can_name_does_not_stay_in_the_keyring(tmp_path: Path) -> None:
    pool = Memory()
    (tmp_path / "identity").write_text("a file where the folder should be")
    with pytest.raises(KeyStoreError, match="cannot be kept"):
        load_or_create(tmp_path / "identity", keyring=pool)
    assert pool.kept == {}


def test_each_home_keeps_a_token_of_its_own(tmp_path: Path) -> None:
    """A judge's key is for the endpoint that the same home's settings name."""
    pool = Memory()
    for home in ("one", "two"):
        assert "in the keyring" in identity.keep_text(tmp_path / home, "judge-key", home, pool)
    identity.keep_text(tmp_path / "two", "judge-key", "second", pool)
    assert [identity.kept_text(tmp_path / home, "judge-key", pool) for home in ("one", "two")] == ["one", "second"]
    assert sorted(pool.kept.values()) == ["one", "second"]
    with pytest.raises(KeyStoreError, match=r"Unlock it, or remove .*judge-key\.secret"):
        identity.keep_text(tmp_path / "two", "judge-key", "", Broken())
    identity.keep_text(tmp_path / "two", "judge-key", "", pool)
    assert list(pool.kept.values()) == ["one"]
    assert not (tmp_path / "two" / "judge-key.secret").exists()


@pytest.mark.parametrize("away", [Null(), Broken(), Locked(), Memory()], ids=["null", "fail", "locked", "another"])
def test_a_keyring_that_is_away_for_once_does_not_replace_the_node(tmp_path: Path, away: Memory) -> None:
    """Over SSH, say: it is said what to do, nothing is made, and in the desktop session it is the same node again."""
    pool = Memory()
    first = load_or_create(tmp_path, keyring=pool)
    for _ in range(2):
        with pytest.raises(KeyStoreError, match=r"Unlock the keyring.* remove .*node\.id"):
            load_or_create(tmp_path, keyring=away, timeout_s=0.05)
    assert (away.kept, (tmp_path / "node.key").exists()) == ({}, False)
    assert load_or_create(tmp_path, keyring=pool).identity.node == first.identity.node
    if isinstance(away, Locked):
        away.unlocked.set()
    (tmp_path / "node.id").unlink()
    assert load_or_create(tmp_path, keyring=away).place == "file"


def test_a_keyring_with_another_nodes_key_does_not_replace_the_node(tmp_path: Path) -> None:
    load_or_create(tmp_path, keyring=Memory())
    other = Memory()
    load_or_create(tmp_path / "other", keyring=other)
    with pytest.raises(KeyStoreError, match="Unlock the keyring"):
        load_or_create(tmp_path, keyring=other)


@pytest.mark.parametrize("pool", [Null(), Broken(), Locked()], ids=["null", "fail", "locked"])
def test_a_keyring_that_fails_is_replaced_by_a_file(tmp_path: Path, pool: Memory) -> None:
    """Mode 0600, and the sentence says where it is."""
    first = load_or_create(tmp_path, keyring=pool, timeout_s=0.05)
    path = tmp_path / "node.key"
    assert (first.place, str(path) in first.sentence) == ("file", True)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create(tmp_path, keyring=pool, timeout_s=0.05).identity.node == first.identity.node
    if isinstance(pool, Locked):
        pool.unlocked.set()


def test_a_damaged_key_file_is_named(tmp_path: Path) -> None:
    """It is never overwritten: an identity is worth something."""
    (tmp_path / "node.key").write_text("junk")
    with pytest.raises(KeyStoreError, match=r"node\.key is not a node key"):
        load_or_create(tmp_path)
