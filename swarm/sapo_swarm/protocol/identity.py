"""A node's identity: an Ed25519 key, what it signs, and where the secret is kept."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import secrets
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

import msgspec
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from sapo_swarm.protocol.wire import H_NODE, H_NONCE, H_PROTO, H_SIGNATURE, H_TIME, GroupBody, SignedGroup, sha256_hex
from sapo_swarm.types import PROTOCOL_VERSION
from sapo_swarm.whole_file import write_atomically

# A node's identity: an Ed25519 key, and what it signs.
#
# A node id is base32(SHA-256(public key))[:26] in lower case, so a key cannot claim another's id. Requests are signed
# over method, path, swarm, time, nonce and body digest; groups are signed separately, so that a receiver need not trust
# the coordinator for authorship.

_REQUEST = b"sapo-v1\0"
_GROUP = b"sapo-group-v1\0"


def node_id(public_key: bytes) -> str:
    """The id that belongs to a raw 32-byte public key."""
    return base64.b32encode(hashlib.sha256(public_key).digest()).decode().lower()[:26]


@dataclass(frozen=True, slots=True)
class SignatureHeaders:
    """The signature headers of a request, as strings. ts: milliseconds since the Unix epoch."""

    node: str
    ts: int
    nonce: str
    signature: bytes

    def headers(self) -> dict[str, str]:
        """The signature as HTTP headers."""
        return {
            H_PROTO: str(PROTOCOL_VERSION),
            H_NODE: self.node,
            H_TIME: str(self.ts),
            H_NONCE: self.nonce,
            H_SIGNATURE: self.signature.hex(),
        }


def request_text(method: str, path: str, swarm: str, ts: int, nonce: str, body: bytes | str) -> bytes:
    """The bytes that a request's signature covers. body: itself or its digest, since only the digest is signed."""
    named = body if isinstance(body, str) else sha256_hex(body)
    return _REQUEST + "\0".join((method, path, swarm, str(ts), nonce, named)).encode()


def group_text(swarm: str, body: bytes) -> bytes:
    """The bytes that a group's signature covers, which include the swarm: the group is worth nothing in another one."""
    return _GROUP + swarm.encode() + b"\0" + body


def verify_signature(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """Whether the key signed the text. libsodium's check: half the time of OpenSSL's, and no keys of small order."""
    try:
        VerifyKey(public_key).verify(text, signature)
    except (BadSignatureError, ValueError):
        return False
    return True


class Identity:
    """A node's key pair. The secret leaves this object only through `secret`, towards the key store."""

    def __init__(self, secret: bytes) -> None:
        """secret: 32 bytes. Raises ValueError for another length."""
        self._key = SigningKey(secret)
        self.secret = secret
        self.public_key = bytes(self._key.verify_key)
        self.node = node_id(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        """A new identity."""
        return cls(secrets.token_bytes(32))

    def sign(self, text: bytes) -> bytes:
        """The Ed25519 signature of the bytes, 64 bytes."""
        return self._key.sign(text).signature

    def sign_request(self, method: str, path: str, swarm: str, ts: int, body: bytes) -> SignatureHeaders:
        """Signature headers with a fresh nonce: sign again for every attempt."""
        nonce = secrets.token_hex(16)
        return SignatureHeaders(self.node, ts, nonce, self.sign(request_text(method, path, swarm, ts, nonce, body)))

    def sign_group(self, swarm: str, body: GroupBody) -> SignedGroup:
        """The group as it is uploaded. body.node must be this node."""
        if body.node != self.node:
            raise ValueError(f"Group of {body.node} cannot be signed by {self.node}.")
        packed = msgspec.msgpack.encode(body)
        return SignedGroup(body=packed, key=self.public_key, signature=self.sign(group_text(swarm, packed)))


# Where a node's secret is stored: in the system's keyring if that works, else in a file that only its owner can read.
#
# Keyrings fail in every way there is (raise, swallow writes silently, hang while locked): each call runs in a thread
# with a deadline, a write is read back, and the first failure decides for the whole process. An account has one keyring
# for all of its homes: a file in the home names this home's entry. The file also says that there is one: a keyring that
# is temporarily unavailable (SSH, systemd, locked) must not give the node another identity.

SERVICE = "sapo-desktop"
TIMEOUT_S = 3.0
_ENTRY = "keyring: "
"""Prefix of a file that names an entry of the keyring. No secret has a space."""

T = TypeVar("T")


class Keyring(Protocol):
    """The part of the keyring package that is used."""

    def get_password(self, service: str, username: str) -> str | None:
        """The secret, None where there is none."""
        ...

    def set_password(self, service: str, username: str, password: str) -> None:
        """Store the secret."""
        ...

    def delete_password(self, service: str, username: str) -> None:
        """Remove the entry."""
        ...


class KeyStoreError(Exception):
    """The secret cannot be read or stored; the message says what to do."""


@dataclass(frozen=True, slots=True)
class StoredIdentity:
    """An identity and one sentence that tells the person where its secret lies."""

    identity: Identity
    place: Literal["keyring", "file"]
    sentence: str


_broken: set[int] = set()
"""ids of keyring objects that failed in this process; not tried again."""


def _with_deadline(call: Callable[[], T], timeout_s: float) -> T:
    """The call's result. Raises TimeoutError after the deadline (the daemon thread is left behind), or its error."""
    result: list[T] = []
    error: list[BaseException] = []

    def work() -> None:
        try:
            result.append(call())
        except BaseException as caught:  # keyring back ends raise anything
            error.append(caught)

    thread = threading.Thread(target=work, daemon=True, name="keyring")
    thread.start()
    thread.join(timeout_s)
    if error:
        raise error[0]
    if not result:
        raise TimeoutError("The keyring did not answer.")
    return result[0]


def load_or_create(
    folder: Path, name: str = "node", keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S
) -> StoredIdentity:
    """The node's identity, created on first use. Call it only when a swarm is joined: a node alone touches no keyring.

    folder: for the fallback file (`<name>.key`, mode 0600), or `<name>.id`, the node whose key is in the keyring. keyring:
    None uses the system's. Blocks up to timeout_s twice. Raises KeyStoreError.
    """
    path, marker = folder / f"{name}.key", folder / f"{name}.id"
    if path.exists():
        return StoredIdentity(_read_file(path), "file", f"The node's secret key is in {path} (readable by you only).")
    ring = keyring if keyring is not None else _system_keyring()
    if ring is not None and id(ring) not in _broken:
        try:
            marked_node = _line(marker)
            if marked_node:
                identity = _identity(_with_deadline(lambda: _held(ring, name, marked_node)[1], timeout_s))
            else:
                identity = Identity.generate()
                entry, secret = f"{name}-{identity.node}", identity.secret.hex()
                _with_deadline(lambda: _put(ring, entry, secret), timeout_s)
        except Exception:
            _broken.add(id(ring))
        else:
            if not marked_node:
                _name_entry(ring, entry, marker, identity.node, timeout_s)
            return StoredIdentity(identity, "keyring", f"The node's secret key is in the keyring, as {SERVICE}.")
    if marker.exists():
        raise KeyStoreError(
            "The node's secret key is in the system's keyring, which does not give it here. Unlock the keyring, or start the "
            f"node in your desktop session. To be a new node instead, remove {marker}."
        )
    identity = Identity.generate()
    _write_secret(path, identity.secret.hex())
    return StoredIdentity(identity, "file", f"No keyring works here: the node's secret key is in {path} (mode 0600).")


def _system_keyring() -> Keyring | None:
    try:
        import keyring
    except Exception:  # a broken back end must not stop a node
        return None
    return keyring


def _held(ring: Keyring, name: str, node: str) -> tuple[str, str]:
    """The entry with this node's key, and the key. Raises KeyStoreError if there is none."""
    for entry in (f"{name}-{node}", name):  # once, all homes of an account shared one entry
        stored = ring.get_password(SERVICE, entry)
        if stored and _identity(stored).node == node:
            return entry, stored
    raise KeyStoreError("The keyring does not hold the key.")


def _put(ring: Keyring, entry: str, text: str) -> None:
    ring.set_password(SERVICE, entry, text)
    if ring.get_password(SERVICE, entry) != text:  # the null keyring swallows writes
        raise KeyStoreError("The keyring does not keep what it is given.")


def _name_entry(ring: Keyring, entry: str, path: Path, text: str, timeout_s: float) -> None:
    """Write the file that names a new entry; if that fails, the entry is removed. Raises KeyStoreError."""
    try:
        _write_secret(path, text)
    except KeyStoreError:
        with contextlib.suppress(Exception):
            _with_deadline(lambda: ring.delete_password(SERVICE, entry), timeout_s)
        raise


def _line(path: Path) -> str:
    """The content of a one-line file; "" if it is missing, or not text."""
    try:
        return path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _identity(secret: str) -> Identity:
    return Identity(bytes.fromhex(secret))


def _read_file(path: Path) -> Identity:
    try:
        return _identity(path.read_text().strip())
    except (OSError, ValueError) as error:
        raise KeyStoreError(
            f"{path} is not a node key ({error}). Move it away to get a new identity, or restore it from a backup."
        ) from error


def _write_secret(path: Path, text: str) -> None:
    """Whole or not at all: half a key would be refused for ever."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        write_atomically(path, text + "\n", private=True)
    except OSError as error:
        raise KeyStoreError(f"The secret cannot be kept in {path}: {error}.") from error


def keep_text(folder: Path, name: str, text: str, keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Store a secret of one line (such as a token): in the keyring, else in `<name>.secret` in the folder, mode 0600. With
    the keyring, that file names its entry.

    Returns the sentence that tells the person where it is. "" deletes it. Raises KeyStoreError.
    """
    path, before = folder / f"{name}.secret", entry_named(folder, name)
    try:
        delete_keyring_entries(in_keyring([before] if before else [], keyring, timeout_s), keyring, timeout_s)
    except KeyStoreError as error:
        raise KeyStoreError(f"{error} It holds the one before. Unlock it, or remove {path}.") from error
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be removed: {error}.") from error
    ring = keyring if keyring is not None else _system_keyring()
    if ring is not None and id(ring) not in _broken:
        entry = f"{name}-{secrets.token_hex(8)}"
        try:
            if text:
                _with_deadline(lambda: _put(ring, entry, text), timeout_s)
        except Exception:
            _broken.add(id(ring))
        else:
            if text:
                _name_entry(ring, entry, path, _ENTRY + entry, timeout_s)
            return f"in the keyring, as {SERVICE}"
    if text:
        _write_secret(path, text)
    return f"in {path} (readable by you only), because no keyring works here"


def kept_text(folder: Path, name: str, keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """The text stored by keep_text; "" if there is none."""
    entry = entry_named(folder, name)
    if not entry:
        return _line(folder / f"{name}.secret")
    ring = keyring if keyring is not None else _system_keyring()
    if ring is None or id(ring) in _broken:
        return ""
    try:
        return _with_deadline(lambda: ring.get_password(SERVICE, entry), timeout_s) or ""
    except Exception:
        _broken.add(id(ring))
        return ""


def entry_named(folder: Path, name: str) -> str:
    """The keyring's entry that holds keep_text's secret; "" if none does."""
    line = _line(folder / f"{name}.secret")
    return line.removeprefix(_ENTRY) if line.startswith(_ENTRY) else ""


def node_in_keyring(
    folder: Path, name: str = "node", keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S
) -> tuple[str, str]:
    """The keyring's entry of this home's node, and the node's secret key; twice "" if there is none.

    Raises KeyStoreError if the keyring does not answer.
    """
    ring, node = keyring if keyring is not None else _system_keyring(), _line(folder / f"{name}.id")
    if ring is None or not node:
        return "", ""

    def find() -> tuple[str, str]:
        try:
            return _held(ring, name, node)
        except KeyStoreError:
            return "", ""

    return _asked(find, timeout_s)


def in_keyring(names: Sequence[str], keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> list[str]:
    """The names under which the keyring holds something. Raises KeyStoreError if it does not answer."""
    ring = keyring if keyring is not None else _system_keyring()
    return _asked(lambda: [n for n in names if ring and ring.get_password(SERVICE, n) is not None], timeout_s)


def delete_keyring_entries(names: Sequence[str], keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> None:
    """Remove these entries from the keyring. Raises KeyStoreError if one of them remains."""
    ring = keyring if keyring is not None else _system_keyring()

    def delete(held: Keyring) -> int:
        for name in names:
            held.delete_password(SERVICE, name)
        return len(names)

    if ring is not None:
        _asked(lambda: delete(ring), timeout_s)


def _asked(call: Callable[[], T], timeout_s: float) -> T:
    try:
        return _with_deadline(call, timeout_s)
    except Exception as error:
        why = str(error).partition(".")[0] or type(error).__name__
        raise KeyStoreError(f"The system's keyring does not answer ({why}).") from error
