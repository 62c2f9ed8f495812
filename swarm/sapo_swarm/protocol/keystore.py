"""Where a node's secret lies: the system's keyring when it works, else a file that only its owner can read.

Keyrings fail in every way there is (raise, swallow writes silently, hang while locked): each call runs in a thread
with a deadline, a write is read back, and the first failure decides for the whole process. A file beside it says whose
key a keyring holds: one that is away for once (SSH, systemd, locked) must not give the node another identity.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol, TypeVar

from sapo_swarm.protocol.identity import Identity

SERVICE = "sapo-desktop"
TIMEOUT_S = 3.0

T = TypeVar("T")


class Keyring(Protocol):
    """The calls of the keyring package that are used."""

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
    """The secret cannot be read or kept; the message says what to do."""


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
    """The node's identity, made on first use. Call it only when a swarm is joined: silo touches no keyring.

    folder: where the fallback file lies (`<name>.key`, mode 0600), or `<name>.id`, the node whose key is in the keyring.
    keyring: None uses the system's. Blocks up to timeout_s twice. Raises KeyStoreError.
    """
    path, marker = folder / f"{name}.key", folder / f"{name}.id"
    if path.exists():
        return StoredIdentity(_read_file(path), "file", f"The node's secret key is in {path} (readable by you only).")
    ring = keyring if keyring is not None else _system_keyring()
    if ring is not None and id(ring) not in _broken:
        try:
            known = marker.read_text("utf-8").strip() if marker.exists() else ""
            identity = Identity(bytes.fromhex(_with_deadline(lambda: _from_keyring(ring, name, not known), timeout_s)))
            if known not in ("", identity.node):
                raise KeyStoreError("The keyring holds the key of another node.")
        except Exception:
            _broken.add(id(ring))
        else:
            if not known:
                with contextlib.suppress(KeyStoreError):  # a full disk: the next time comes
                    _write_secret(marker, identity.node)
            return StoredIdentity(identity, "keyring", f"The node's secret key is in the keyring, as {SERVICE}.")
    if marker.exists():
        raise KeyStoreError(
            "The node's secret key is in the system's keyring, which does not give it here. Unlock the keyring, or start the "
            f"node in your desktop session. To be a new node instead, remove {marker}."
        )
    identity = Identity.generate()
    _write_file(path, identity)
    return StoredIdentity(identity, "file", f"No keyring works here: the node's secret key is in {path} (mode 0600).")


def _system_keyring() -> Keyring | None:
    try:
        import keyring
    except Exception:  # a broken back end must not stop a node
        return None
    return keyring


def _from_keyring(ring: Keyring, name: str, make: bool) -> str:
    stored = ring.get_password(SERVICE, name)
    if stored is None and not make:
        raise KeyStoreError("The keyring does not hold the key.")
    if stored is None:
        stored = Identity.generate().secret.hex()
        ring.set_password(SERVICE, name, stored)
        if ring.get_password(SERVICE, name) != stored:  # the null keyring swallows writes
            raise KeyStoreError("The keyring does not keep what it is given.")
    return stored


def _read_file(path: Path) -> Identity:
    try:
        return Identity(bytes.fromhex(path.read_text().strip()))
    except (OSError, ValueError) as error:
        raise KeyStoreError(
            f"{path} is not a node key ({error}). Move it away to get a new identity, or restore it from a backup."
        ) from error


def _write_file(path: Path, identity: Identity) -> None:
    _write_secret(path, identity.secret.hex())


def _write_secret(path: Path, text: str) -> None:
    """Whole or not at all: half a key would be refused for ever."""
    partial = path.with_name(f"{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        partial.unlink(missing_ok=True)
        handle = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(handle, "w") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
    except OSError as error:
        raise KeyStoreError(f"The secret cannot be kept in {path}: {error}.") from error


def keep_text(folder: Path, name: str, text: str, keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """Keep a secret of one line (a token, say): in the keyring, else in `<name>.secret` in the folder, mode 0600.

    Gives the sentence that tells the person where it lies. "" forgets it. Raises KeyStoreError.
    """
    path = folder / f"{name}.secret"
    try:
        path.unlink(missing_ok=True)
    except OSError as error:
        raise KeyStoreError(f"{path} cannot be removed: {error}.") from error
    ring = keyring if keyring is not None else _system_keyring()
    if ring is not None and id(ring) not in _broken:
        try:
            _with_deadline(lambda: ring.set_password(SERVICE, name, text), timeout_s)
            if (_with_deadline(lambda: ring.get_password(SERVICE, name), timeout_s) or "") == text:
                return f"in the keyring, as {SERVICE}"
        except Exception:
            _broken.add(id(ring))
    if text:
        _write_secret(path, text)
    return f"in {path} (readable by you only), because no keyring works here"


def kept_text(folder: Path, name: str, keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> str:
    """What keep_text kept; "" where there is nothing."""
    try:
        if text := (folder / f"{name}.secret").read_text("utf-8").strip():
            return text
    except (OSError, UnicodeDecodeError):
        pass
    ring = keyring if keyring is not None else _system_keyring()
    if ring is None or id(ring) in _broken:
        return ""
    try:
        return _with_deadline(lambda: ring.get_password(SERVICE, name), timeout_s) or ""
    except Exception:
        _broken.add(id(ring))
        return ""


def in_keyring(names: Sequence[str], keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> list[str]:
    """Those of the names under which the keyring holds something. Raises KeyStoreError where it does not say."""
    ring = keyring if keyring is not None else _system_keyring()
    return _asked(lambda: [n for n in names if ring and ring.get_password(SERVICE, n) is not None], timeout_s)


def forget(names: Sequence[str], keyring: Keyring | None = None, timeout_s: float = TIMEOUT_S) -> None:
    """Remove these entries from the keyring. Raises KeyStoreError where one of them stays."""
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
