"""Directories of swarms: a signed list in one JSON file that anybody can host and nobody can change, and how it is fetched."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Annotated, Literal
from urllib.parse import parse_qsl, urlsplit, urlunsplit

import aiohttp
import msgspec
from msgspec import Meta

from sapo_swarm.loopback import is_loopback
from sapo_swarm.protocol.client import open_session, why_not
from sapo_swarm.protocol.identity import Identity, node_id, verify_signature
from sapo_swarm.protocol.invite import BadInvite, parse_invite
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.types import UNREADABLE

# Directories of swarms: a signed list in one JSON file that anybody can host and nobody can change.
#
# The file holds the list, the signer's Ed25519 key and a signature over the list's bytes as they are in the file. A
# reader knows the key's id beforehand, from the line `https://host/file.json#key=<id>[&fp=<sha256 of the
# certificate>]`.

MAX_BYTES = 64 * 1024
"""Maximum size of the file."""
LONGEST_S = 400 * 86_400.0
"""Longest validity of a list."""
AHEAD_S = 86_400.0
"""The signer's clock may be this far ahead of the reader's."""
_DOMAIN = b"sapo-directory-v1\0"
_FORM = {"key": r"([a-z2-7]{26})?", "fp": r"([0-9a-f]{64})?"}
Text = Annotated[str, Meta(max_length=200)]


class BadDirectory(ValueError):
    """A directory that cannot be used; the message is one sentence that says why."""


class DirectoryEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One swarm. trains, checks: what it trains on and how groups are checked, in its host's words. join: an invite line
    without its token; "" if one has to ask. ask: whom to ask for an invite."""

    name: Annotated[str, Meta(min_length=1, max_length=40)]
    trains: Text
    nodes: Annotated[int, Meta(ge=0, le=10**9)]
    rounds_per_hour: Annotated[float, Meta(ge=0.0, le=1e9)]
    who: Literal["anyone", "invited"]
    checks: Text
    join: Annotated[str, Meta(max_length=600)] = ""
    ask: Text = ""


class SwarmList(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The signed content. issued, expires: Unix seconds."""

    format: Literal[1] = 1
    name: Annotated[str, Meta(max_length=60)] = ""
    issued: Annotated[int, Meta(ge=0, le=2**40)] = 0
    expires: Annotated[int, Meta(ge=0, le=2**40)] = 0
    swarms: Annotated[tuple[DirectoryEntry, ...], Meta(max_length=100)] = ()


class SignedDirectory(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file. key: the signer's public key, signature: over the list's bytes; both hex."""

    list: msgspec.Raw
    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    signature: Annotated[str, Meta(pattern=r"^[0-9a-f]{128}$")]


@dataclass(frozen=True, slots=True)
class DirectoryAddress:
    """Where a directory is. key: the id of its signer's key; "" if not known yet. fingerprint: of a certificate that no
    authority vouches for, 64 hex digits; else ""."""

    url: str
    key: str = ""
    fingerprint: str = ""

    def __str__(self) -> str:
        fields = [f"{name}={value}" for name, value in (("key", self.key), ("fp", self.fingerprint)) if value]
        return self.url + ("#" + "&".join(fields) if fields else "")

    @property
    def host(self) -> str:
        """Its name or IP address, without the port."""
        return urlsplit(self.url).hostname or ""


def parse_address(text: str, need_key: bool = True) -> DirectoryAddress:
    """The line that names a directory. Raises BadDirectory."""
    text = text.strip()
    if len(text) > 500 or not re.fullmatch(r"[!-+\--~]+", text):
        raise BadDirectory(
            "A directory's address is one line of up to 500 plain characters, without spaces and commas."
        )
    try:
        parts = urlsplit(text)
        host, _ = parts.hostname or "", parts.port
    except ValueError as error:
        raise BadDirectory(f"The directory's address does not parse: {error}.") from error
    if parts.scheme not in ("https", "http") or not host or "@" in parts.netloc:
        raise BadDirectory(
            "A directory's address begins with https:// and a host, such as https://example.org/swarms.json"
        )
    fields = dict(parse_qsl(parts.fragment, keep_blank_values=True))
    if set(fields) - set(_FORM) or any(not re.fullmatch(form, fields.get(name, "")) for name, form in _FORM.items()):
        raise BadDirectory("The directory's address is cut off, or newer than this app: copy the whole line.")
    if need_key and not fields.get("key"):
        raise BadDirectory(
            "The directory's address needs #key=… behind it, the id of its signer's key: ask who told you of it."
        )
    if parts.scheme == "http" and (fields.get("fp") or not _near(host)):
        raise BadDirectory("A directory outside your own network is read by https:// only.")
    bare = urlunsplit((parts.scheme, parts.netloc, parts.path or "/", parts.query, ""))
    return DirectoryAddress(bare, fields.get("key", ""), fields.get("fp", ""))


def _near(host: str) -> bool:
    """This machine, or an address in a private network: a name could mean anything tomorrow."""
    try:
        address = ipaddress.ip_address(host.split("%")[0])
    except ValueError:
        return is_loopback(host)
    return address.is_private and not address.is_unspecified


def sign_directory(listing: SwarmList, identity: Identity) -> bytes:
    """The signed file, readable for people too. Raises BadDirectory if it could not be read back."""
    inner = as_text(listing)
    sealed = SignedDirectory(
        list=msgspec.Raw(inner), key=identity.public_key.hex(), signature=identity.sign(_DOMAIN + inner).hex()
    )
    data = msgspec.json.encode(sealed) + b"\n"
    verify_directory(data, identity.node, listing.issued)
    return data


def as_text(listing: SwarmList) -> bytes:
    """JSON for people to edit; parse_swarm_list() reads it."""
    return msgspec.json.format(msgspec.json.encode(listing), indent=2)


def verify_directory(data: bytes, key: str, now: float) -> SwarmList:
    """The list in the file, if that key ("" = whichever it holds) signed it and it is valid at this Unix time. Raises
    BadDirectory."""
    sealed = sealed_in(data)
    public = bytes.fromhex(sealed.key)
    if key and node_id(public) != key:
        raise BadDirectory(
            f"It is signed by another key ({node_id(public)}) than the one in your settings: do not trust it."
        )
    if not verify_signature(public, bytes.fromhex(sealed.signature), _DOMAIN + bytes(sealed.list)):
        raise BadDirectory("Its signature does not hold: it was forged, or changed after it was signed.")
    listing = parse_swarm_list(bytes(sealed.list))
    if now < listing.issued - AHEAD_S:
        raise BadDirectory("It is dated in the future: look whether this machine's clock is right.")
    if not 0 < listing.expires - listing.issued <= LONGEST_S:
        raise BadDirectory(f"It is valid for longer than {LONGEST_S / 86_400:.0f} days, or for no time at all.")
    if now >= listing.expires:
        days = (now - listing.expires) / 86_400
        raise BadDirectory(
            f"It expired {f'{days:.0f} days ago' if days >= 1.5 else 'lately'}: its signer has to sign it anew."
        )
    return listing


def sealed_in(data: bytes) -> SignedDirectory:
    """The file's parts, all still untrusted. Raises BadDirectory."""
    if len(data) > MAX_BYTES:
        raise BadDirectory(f"It has {len(data):,} bytes; a directory has {MAX_BYTES:,} at most.")
    try:
        return msgspec.json.decode(data, type=SignedDirectory)
    except UNREADABLE as error:
        try:
            fields = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        except UNREADABLE:
            raise BadDirectory("It is no directory of swarms: it does not read as JSON.") from error
        if "signature" not in fields:
            raise BadDirectory("It is not signed.") from error
        raise BadDirectory(f"It is no directory of swarms: {_where(error)}") from error


def parse_swarm_list(data: bytes) -> SwarmList:
    """A list as a person wrote it, with every address in it valid. Raises BadDirectory."""
    try:
        listing = msgspec.json.decode(data, type=SwarmList)
    except UNREADABLE as error:
        raise BadDirectory(f"Its list is not in the form of a directory: {_where(error)}") from error
    for entry in listing.swarms:
        try:
            invite = parse_invite(entry.join) if entry.join else None
        except BadInvite as error:
            raise BadDirectory(
                f"What {safe_text(entry.name, 40, lines=False)!r} in it is to be joined with is no invite."
            ) from error
        name = safe_text(entry.name, 40, lines=False)
        if invite is not None and invite.token:
            raise BadDirectory(f"What {name!r} in it is to be joined with holds a token, which lets every reader in.")
        if entry.who == "anyone" and invite is None:
            raise BadDirectory(f"{name!r} in it is for anyone, so it needs an address to join at.")
    return listing


def _where(error: Exception) -> str:
    return safe_text(str(error), 160, lines=False).rstrip(".") + "."


# Fetching a directory: one GET of a file whose size is known before it is read. No redirects, cookies or compression.

TIMEOUT_S = 10.0


async def fetch_directory(address: DirectoryAddress, timeout_s: float = TIMEOUT_S) -> bytes:
    """The file's bytes, not verified yet. Raises BadDirectory."""
    try:
        async with (
            open_session(address.fingerprint, timeout_s) as session,
            session.get(address.url, allow_redirects=False) as response,
        ):
            return await _body(response)
    except aiohttp.ServerFingerprintMismatch as error:
        raise BadDirectory(
            "It is behind another certificate than the one in your settings: do not trust it."
        ) from error
    except TimeoutError as error:
        raise BadDirectory("It does not answer in time.") from error
    except BadDirectory:
        raise
    except aiohttp.ClientSSLError as error:
        raise BadDirectory(
            "It cannot be reached: nobody vouches for its certificate, and its line names none."
        ) from error
    except (aiohttp.ClientError, OSError, EOFError, ValueError) as error:
        raise BadDirectory(f"It cannot be reached: {why_not(error).partition('. ')[0].rstrip('.')}.") from error


async def _body(response: aiohttp.ClientResponse) -> bytes:
    """Raises BadDirectory before reading a byte unless the file's size is known and small."""
    if 300 <= response.status < 400:
        raise BadDirectory("It moved: redirects are not followed. Ask for its new address.")
    if response.status != 200:
        raise BadDirectory(f"There is none: its host answers {response.status}.")
    size = response.content_length
    if size is None:
        raise BadDirectory("Its host does not say how large it is, so it is not read.")
    if size > MAX_BYTES:
        raise BadDirectory(f"It has {size:,} bytes; a directory has {MAX_BYTES:,} at most.")
    if response.headers.get("Content-Encoding", "identity") != "identity":
        raise BadDirectory("Its host sends it compressed, which was not asked for.")
    return await response.content.readexactly(size)
