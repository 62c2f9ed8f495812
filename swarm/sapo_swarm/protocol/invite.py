"""Invites: one line that says where a swarm is, which certificate to trust, and that its bearer may join.

`sapo://host:port/#fp=<sha256 of the certificate>&t=<128-bit token>&s=<swarm id>`. No `fp` means plain HTTP, which is used on
loopback only. The secret is in the fragment, which no program sends by itself.
"""

from __future__ import annotations

import base64
import datetime
import hashlib
import ipaddress
import re
import secrets
import socket
from dataclasses import dataclass, replace
from urllib.parse import parse_qsl, urlsplit

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from sapo_swarm.loopback import is_loopback

DEFAULT_PORT = 7361
_AROUND = " \"'`“”‘’<>.,;"


class BadInvite(ValueError):
    """The text is not an invite; the message says what is wrong with it."""


@dataclass(frozen=True, slots=True)
class Invite:
    """fingerprint: 64 hex digits, or "" for plain HTTP on loopback. token: 32 hex digits, or "" (open swarm)."""

    host: str
    port: int
    swarm: str
    fingerprint: str = ""
    token: str = ""

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        parts = [("fp", self.fingerprint), ("t", self.token), ("s", self.swarm)]
        return f"sapo://{host}:{self.port}/#" + "&".join(f"{key}={value}" for key, value in parts if value)

    def __repr__(self) -> str:
        return f"Invite(host={self.host!r}, port={self.port}, swarm={self.swarm!r}, token=…)"

    @property
    def url(self) -> str:
        """Base URL of the coordinator."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{'https' if self.fingerprint else 'http'}://{host}:{self.port}"

    def at(self, host: str) -> Invite:
        """The same invite for another address of the same host."""
        return replace(self, host=host)


def is_host(text: str) -> bool:
    """Whether it is a name or an IP address that an invite may hold, without a port."""
    try:
        return bool(ipaddress.ip_address(text))
    except ValueError:
        return re.fullmatch(r"[A-Za-z0-9.\-_]{1,253}", text) is not None


def means_this_machine(host: str) -> bool:
    """Whether the text is any spelling of loopback, or of no address at all, that a system's resolver accepts without asking
    anybody."""
    name = host.split("%")[0].rstrip(".").lower()
    if name in ("localhost", "localhost4", "localhost6") or name.endswith(
        (".localhost", "localhost.localdomain", ".localdomain4", ".localdomain6", "-localhost", "-loopback")
    ):
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        try:
            address = ipaddress.ip_address(socket.inet_aton(name))
        except OSError:
            return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped:
        address = address.ipv4_mapped
    return address.is_loopback or address.is_unspecified


def parse_invite(text: str) -> Invite:
    """Line breaks, which terminals insert into long lines, and quotes and a full stop around it are ignored. Raises BadInvite
    with a sentence."""
    text = "".join(line.strip() for line in text.splitlines()).strip(_AROUND)
    if len(text) > 600:
        raise BadInvite("An invite is one short line that begins with sapo://.")
    try:
        parts = urlsplit(text)
        host, port = parts.hostname or "", parts.port or DEFAULT_PORT
    except ValueError as error:
        raise BadInvite(f"The invite's address does not parse: {error}.") from error
    if parts.scheme != "sapo" or not host:
        raise BadInvite("An invite begins with sapo:// and a host, such as sapo://192.168.1.20:7361/#fp=…&t=…&s=…")
    if not is_host(host):
        raise BadInvite("The invite's host holds characters that no address has.")
    fields = dict(parse_qsl(parts.fragment))
    unknown = set(fields) - {"fp", "t", "s"}
    if unknown:
        raise BadInvite("The invite holds parts that this version does not know: is it newer than this app?")
    patterns = {"s": r"[a-z2-7]{16}", "fp": r"([0-9a-f]{64})?", "t": r"([0-9a-f]{32})?"}
    for key, pattern in patterns.items():
        if not re.fullmatch(pattern, fields.get(key, "")):
            raise BadInvite(f"The invite's part {key!r} is missing or cut off: copy the whole line.")
    if not fields.get("fp") and not is_loopback(host):
        raise BadInvite("An invite without a certificate fingerprint is good on this machine only (loopback).")
    return Invite(host, port, fields["s"], fields.get("fp", ""), fields.get("t", ""))


def new_token() -> str:
    """128 random bits as hex."""
    return secrets.token_hex(16)


def token_hash(token: str) -> str:
    """The stored form of a token."""
    return hashlib.sha256(b"sapo-invite-v1\0" + token.encode()).hexdigest()


def new_swarm_id() -> str:
    """80 random bits in base32: 16 characters."""
    return base64.b32encode(secrets.token_bytes(10)).decode().lower()


@dataclass(frozen=True, slots=True)
class Certificate:
    """A self-signed certificate and its key, both PEM. Members pin the fingerprint: no authority is involved."""

    certificate: bytes
    key: bytes

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the DER certificate, 64 hex digits."""
        loaded = x509.load_pem_x509_certificate(self.certificate)
        return loaded.fingerprint(hashes.SHA256()).hex()


def make_certificate(swarm: str, now: datetime.datetime) -> Certificate:
    """P-256, valid for ten years: the pin in the invite, not the date, is what members check."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"sapo-{swarm}")])
    built = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))
        .not_valid_after(now + datetime.timedelta(days=3653))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(f"sapo-{swarm}")]), critical=False)
        .sign(key, hashes.SHA256())
    )
    return Certificate(
        built.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
