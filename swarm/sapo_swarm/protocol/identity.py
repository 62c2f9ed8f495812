"""Who a node is: an Ed25519 key, and what it signs.

A node id is base32(SHA-256(public key))[:26] in lower case, so a key cannot claim another's id. Requests are signed
over method, path, swarm, time, nonce and body digest; groups are signed on their own, so that a receiver need not
trust the coordinator for authorship.
"""

from __future__ import annotations

import base64
import hashlib
import secrets
from dataclasses import dataclass

import msgspec
from nacl.exceptions import BadSignatureError
from nacl.signing import SigningKey, VerifyKey

from sapo_swarm.protocol.wire import H_NODE, H_NONCE, H_PROTO, H_SIGNATURE, H_TIME, GroupBody, SignedGroup, digest
from sapo_swarm.types import PROTOCOL_VERSION

_REQUEST = b"sapo-v1\0"
_GROUP = b"sapo-group-v1\0"


def node_id(public_key: bytes) -> str:
    """The id that belongs to a raw 32-byte public key."""
    return base64.b32encode(hashlib.sha256(public_key).digest()).decode().lower()[:26]


@dataclass(frozen=True, slots=True)
class Signed:
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
    """The bytes that a request's signature covers. body: itself or its digest, which is all that is signed of it."""
    named = body if isinstance(body, str) else digest(body)
    return _REQUEST + "\0".join((method, path, swarm, str(ts), nonce, named)).encode()


def group_text(swarm: str, body: bytes) -> bytes:
    """The bytes that a group's signature covers: the same group is worth nothing in another swarm."""
    return _GROUP + swarm.encode() + b"\0" + body


def verify(public_key: bytes, signature: bytes, text: bytes) -> bool:
    """True when the key signed the text. libsodium's check: half the time of OpenSSL's, and no keys of small order."""
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

    def sign_request(self, method: str, path: str, swarm: str, ts: int, body: bytes) -> Signed:
        """Signature headers with a fresh nonce: sign again for every attempt."""
        nonce = secrets.token_hex(16)
        return Signed(self.node, ts, nonce, self.sign(request_text(method, path, swarm, ts, nonce, body)))

    def sign_group(self, swarm: str, body: GroupBody) -> SignedGroup:
        """The group as it is uploaded. body.node must be this node."""
        if body.node != self.node:
            raise ValueError(f"Group of {body.node} cannot be signed by {self.node}.")
        packed = msgspec.msgpack.encode(body)
        return SignedGroup(body=packed, key=self.public_key, signature=self.sign(group_text(swarm, packed)))
