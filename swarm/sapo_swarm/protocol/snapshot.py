"""Snapshots of a pool: immutable files from which nodes sample by themselves.

A snapshot is named by the SHA-256 of its bytes, signed with the swarm's certificate (whose fingerprint is in the invite) and
encrypted with its own key, which only members are given: whoever serves the bytes need not be trusted, so an HTTP cache
could, if nodes were given its address. Every group in it is signed by its author all the same.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import Annotated

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, InvalidTag, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from msgspec import Meta

from sapo_swarm.protocol.wire import (
    MAX_BODY,
    Count,
    Seconds,
    SwarmId,
    UnixTime,
    WireError,
    decode_message,
    encode_message,
    sha256_hex,
    unpack_msgpack,
)
from sapo_swarm.types import Sha256

SNAPSHOT_GROUPS = 256
"""Most groups in one snapshot; its bytes are limited as every body's are."""
_CONTEXT = b"sapo-snapshot-v1\n"
_NONCE = bytes(12)
"""Constant, because each key encrypts one snapshot."""


class SnapshotNews(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GET /v1/snapshots/newest, for members. id: of the newest; key: 64 hex digits; every_s: when to ask again. groups: in it."""

    id: Sha256
    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z")]
    made: UnixTime
    every_s: Seconds
    groups: Count


class PoolSnapshot(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The signed content. groups: SignedGroups of many nodes, at most one per source, each to be judged separately."""

    swarm: SwarmId
    made: UnixTime
    groups: Annotated[list[msgspec.Raw], Meta(max_length=SNAPSHOT_GROUPS)]


class _Sealed(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    body: Annotated[bytes, Meta(max_length=512 * 1024)]
    certificate: Annotated[bytes, Meta(max_length=4096)]
    signature: Annotated[bytes, Meta(max_length=256)]


def seal_snapshot(
    swarm: str, certificate: bytes, key: bytes, groups: Sequence[bytes], made: float, every_s: float
) -> tuple[SnapshotNews, bytes]:
    """The news of a snapshot, and its bytes. certificate, key: of the swarm, PEM. Raises TooLarge."""
    body = msgspec.msgpack.encode(PoolSnapshot(swarm=swarm, made=made, groups=[msgspec.Raw(group) for group in groups]))
    signer = serialization.load_pem_private_key(key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    der = x509.load_pem_x509_certificate(certificate).public_bytes(serialization.Encoding.DER)
    signature = signer.sign(_CONTEXT + body, ec.ECDSA(hashes.SHA256()))
    secret = secrets.token_bytes(32)
    data = AESGCM(secret).encrypt(
        _NONCE, encode_message(_Sealed(body=body, certificate=der, signature=signature)), None
    )
    announcement = SnapshotNews(id=sha256_hex(data), key=secret.hex(), made=made, every_s=every_s, groups=len(groups))
    return announcement, data


def open_snapshot(data: bytes, news: SnapshotNews, swarm: str, fingerprint: str) -> PoolSnapshot:
    """The snapshot in these bytes, wherever they came from. fingerprint: of the invite, "" on loopback. Raises WireError."""
    if len(data) > MAX_BODY + 16 or sha256_hex(data) != news.id:
        raise WireError("The snapshot is not the one that was announced.")
    try:
        sealed = decode_message(AESGCM(bytes.fromhex(news.key)).decrypt(_NONCE, data, None), _Sealed)
        if fingerprint and hashlib.sha256(sealed.certificate).hexdigest() != fingerprint:
            raise WireError("The snapshot carries another certificate than the invite's.")
        signer = x509.load_der_x509_certificate(sealed.certificate).public_key()
        if not isinstance(signer, ec.EllipticCurvePublicKey):
            raise WireError("The snapshot's certificate is not of this protocol.")
        signer.verify(sealed.signature, _CONTEXT + sealed.body, ec.ECDSA(hashes.SHA256()))
    except (InvalidTag, InvalidSignature, UnsupportedAlgorithm, ValueError) as error:
        raise WireError("The snapshot is not signed by this swarm.") from error
    snapshot = unpack_msgpack(sealed.body, PoolSnapshot)
    if snapshot.swarm != swarm or snapshot.made != news.made:
        raise WireError("The snapshot is of another swarm, or of another time.")
    return snapshot
