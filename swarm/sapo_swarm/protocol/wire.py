"""What travels between a node and the coordinator (API v1): structs, limits, and the codec that refuses bombs.

Bodies of rounds are msgpack in one zstd frame; everything small is JSON. Unknown fields are refused. A group carries
coordinates and decoded text, never a reward, a truth, a prompt or a log-probability: the receiver computes its own.

Error tree::

    WireError            code "malformed" and a sentence; the bytes are not what the protocol says
    └── TooLarge         code "too_large"
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Annotated, TypeVar

import msgspec
import zstandard
from msgspec import Meta

from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own import folder
from sapo_swarm.tasks.own.folder import OwnTask, generator_id
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import PROTOCOL_VERSION, UNREADABLE, Finish, Generator, Name, NodeId, Sha256, TaskRef

MEDIA_TYPE = f"application/vnd.sapo.v{PROTOCOL_VERSION}+msgpack+zstd"
PROBLEM_TYPE = "application/problem+json"
H_PROTO, H_NODE, H_TIME = "Sapo-Proto", "Sapo-Node", "Sapo-Time"
H_NONCE, H_SIGNATURE = "Sapo-Nonce", "Sapo-Signature"
H_ORIGINS = "Sapo-Origins"
"""Sent by nodes that read RoundReply.origins; earlier ones would refuse a reply with them."""

MAX_BODY = 256 * 1024
"""Bytes of a compressed body, either way."""
MAX_RAW = 1024 * 1024
"""Bytes of a body after decompression, either way."""
MAX_WINDOW = 1024 * 1024
MAX_GROUPS = 9
MAX_WANT = 32
PER_SOURCE = 8
"""Most groups of one source in a sample, as many as a pool keeps; more than one only if there are fewer sources than groups
wanted."""
MAX_CLOCK_SKEW_S = 120.0

Label = Annotated[str, Meta(max_length=80, pattern=r"^[\x20-\x7e]*\Z", description="Printable ASCII")]
DisplayName = Annotated[str, Meta(max_length=40, description="Chosen by the node: peer text, show through safe_text")]
Nonce = Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
GroupId = Annotated[bytes, Meta(min_length=8, max_length=8)]
SwarmId = Annotated[str, Meta(pattern=r"^[a-z2-7]{16}\Z")]
Count = Annotated[int, Meta(ge=0, lt=2**53)]
"""Every number that arrives is bounded and hence finite: the codec refuses NaN and infinities."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
UnixTime = Annotated[float, Meta(ge=0, le=1e11)]
REFUSALS = ("schema", "author", "signature", "task", "seed", "too_long", "stale", "future", "duplicate")
"""Why a coordinator refuses a group; stable codes, counted and shown. "duplicate" is found by the store."""


class WireError(Exception):
    """Bytes that are not what the protocol says."""

    code = "malformed"


class TooLarge(WireError):
    """More bytes than a limit of the protocol."""

    code = "too_large"


class _Wire(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    pass


class SharedCompletion(_Wire, frozen=True):
    """One decoded completion and why it ended."""

    text: Annotated[str, Meta(max_length=8192)]
    finish: Finish


class GroupBody(_Wire, frozen=True):
    """The signed part of a group. prompt_sha256: of the question alone as UTF-8, as its generator gives it. ts: milliseconds
    since the Unix epoch when it was signed."""

    ref: TaskRef
    prompt_sha256: Sha256
    completions: Annotated[tuple[SharedCompletion, ...], Meta(min_length=2, max_length=16)]
    node: NodeId
    model: Label
    policy_step: Annotated[int, Meta(ge=0, lt=2**40)]
    ts: Annotated[int, Meta(ge=0, lt=2**53)]


class SignedGroup(_Wire, frozen=True):
    """body: msgpack of GroupBody, signed as it is so that nobody needs a canonical form. key: the author's Ed25519, 32 bytes.
    signature: 64 bytes over "sapo-group-v1\\0" + swarm + "\\0" + body, swarm being the swarm's id."""

    body: Annotated[bytes, Meta(max_length=160 * 1024)]
    key: Annotated[bytes, Meta(min_length=32, max_length=32)]
    signature: Annotated[bytes, Meta(min_length=64, max_length=64)]


class Upload(_Wire, frozen=True, omit_defaults=True):
    """Body of PUT /v1/rounds/{sha256 of body}.

    want: groups of others to send back. have: received lately, not to be sent again: the first 8 bytes of the SHA-256 of each
    body. reward_local: the node's own mean reward, as it says, for the status page only. accepts: generators of the members'
    own tasks that this node takes groups of (not sent where there are none: earlier coordinators do not know it).
    """

    groups: Annotated[tuple[SignedGroup, ...], Meta(max_length=MAX_GROUPS)]
    want: Annotated[int, Meta(ge=0, le=MAX_WANT)] = 0
    have: Annotated[tuple[GroupId, ...], Meta(max_length=256)] = ()
    reward_local: Fraction | None = None
    accepts: Annotated[tuple[Generator, ...], Meta(max_length=16)] = ()


class GroupResult(_Wire, frozen=True):
    """In the order of the upload. reason: "" when accepted, else a stable code such as "duplicate"."""

    accepted: bool
    reason: Annotated[str, Meta(pattern=r"^[a-z_]{0,32}\Z")] = ""


class Receipt(_Wire, frozen=True):
    """Another node sampled this node's groups `count` times since the last exchange."""

    node: NodeId
    count: Count


class RoundReply(_Wire, frozen=True, omit_defaults=True):
    """Answer to a round.

    sample: SignedGroups of others, at most 8 of one, as raw msgpack so that each is judged on its own. origins: for each of
    them, if the request has a header Sapo-Origins, a tag that is equal for nodes of one invite, or in an open swarm of one
    network ("" on this machine); only this coordinator can tell which one.
    uptake: times others sampled this node's groups, ever (a lost reply loses no count). mine / total: accepted groups
    in the last window_s seconds, of this node and of all. pool: live groups. nodes: seen in the window.
    """

    results: Annotated[tuple[GroupResult, ...], Meta(max_length=MAX_GROUPS)]
    sample: Annotated[list[msgspec.Raw], Meta(max_length=MAX_WANT)]
    receipts: Annotated[tuple[Receipt, ...], Meta(max_length=64)]
    uptake: Count
    mine: Count
    total: Count
    window_s: Seconds
    nodes: Count
    rounds_per_s: Annotated[float, Meta(ge=0, le=1e9)]
    pool: Count
    next_in_s: Annotated[float, Meta(ge=0, le=3600)]
    origins: Annotated[tuple[Annotated[str, Meta(pattern=r"^([0-9a-f]{16})?\Z")], ...], Meta(max_length=MAX_WANT)] = ()


class Limits(_Wire, frozen=True):
    """What the coordinator accepts, for clients and people: sizes in bytes, times in seconds."""

    body_bytes: Count = MAX_BODY
    raw_bytes: Count = MAX_RAW
    groups: Count = MAX_GROUPS
    want: Count = MAX_WANT
    completions_min: Count = 2
    completions_max: Count = 16
    completion_bytes: Count = 8192
    round_every_s: Seconds = 5.0
    round_burst: Count = 3
    clock_skew_s: Seconds = MAX_CLOCK_SKEW_S
    group_age_s: Seconds = 900.0


class SwarmInfo(_Wire, frozen=True):
    """GET /v1/swarm. open: anyone may join, so nobody here is trusted. epoch: changes when the pool starts anew."""

    swarm: SwarmId
    name: DisplayName
    protocol: Count
    open: bool
    tasks: Annotated[tuple[Name, ...], Meta(max_length=256)]
    presets: Annotated[tuple[Name, ...], Meta(max_length=16)]
    generator: Annotated[str, Meta(max_length=40)]
    shards: Count
    epoch: Count
    share_fraction: Fraction
    min_client: Annotated[str, Meta(max_length=20)]
    limits: Limits
    nodes: Count
    time: UnixTime


class JoinRequest(_Wire, frozen=True):
    """Body of POST /v1/join; the request's own signature proves possession of the key. invite: "" in an open swarm."""

    key: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}\Z", description="Ed25519 public key")]
    invite: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    name: DisplayName = ""
    model: Label = ""


class LeaderRow(_Wire, frozen=True):
    """One node in the window. share = groups / all groups; uptake: times others sampled its groups in the window."""

    node: NodeId
    name: DisplayName
    model: Label
    groups: Count
    share: Fraction
    uptake: Count
    seen_s: Annotated[float, Meta(ge=-1, le=1e9)]


class Leaderboard(_Wire, frozen=True):
    """GET /v1/leaderboard. total: accepted groups of all nodes in window_s seconds."""

    window_s: Seconds
    total: Count
    nodes: Annotated[tuple[LeaderRow, ...], Meta(max_length=1000)]


class Problem(_Wire, frozen=True):
    """RFC 9457 problem details; `code` is stable, `detail` is for people."""

    title: Annotated[str, Meta(max_length=200)]
    status: Annotated[int, Meta(ge=100, le=999)]
    code: Annotated[str, Meta(pattern=r"^[a-z_]{1,40}\Z")]
    detail: Annotated[str, Meta(max_length=2000)]
    type: Annotated[str, Meta(max_length=200)] = "about:blank"
    retry_after_s: Annotated[float, Meta(ge=0, le=86_400)] | None = None


T = TypeVar("T")
_decoders: dict[object, msgspec.msgpack.Decoder[object]] = {}
_compress = zstandard.ZstdCompressor(level=1, write_content_size=True)
_decompress = zstandard.ZstdDecompressor(max_window_size=MAX_WINDOW)


def unpack_msgpack(data: bytes | bytearray | memoryview | msgspec.Raw, kind: type[T]) -> T:
    """The struct in msgpack bytes. Raises WireError for anything that is not exactly one."""
    decoder = _decoders.get(kind)
    if decoder is None:
        decoder = _decoders[kind] = msgspec.msgpack.Decoder(kind)
    try:
        return decoder.decode(data)  # type: ignore[return-value]
    except UNREADABLE as error:
        raise WireError(f"The message is not a valid {kind.__name__}: {str(error)[:200]}") from error


def unpack_json(data: bytes, kind: type[T]) -> T:
    """The struct in JSON bytes. Raises WireError."""
    try:
        return msgspec.json.decode(data, type=kind)
    except UNREADABLE as error:
        raise WireError(f"The message is not a valid {kind.__name__}: {str(error)[:200]}") from error


def decompress_body(data: bytes, most: int = MAX_BODY, most_raw: int = MAX_RAW) -> bytes:
    """Undo one zstd frame. The header is judged before a byte is decompressed. Raises WireError, TooLarge."""
    if len(data) > most:
        raise TooLarge(f"The body has {len(data)} bytes; the limit is {most}.")
    try:
        header = zstandard.get_frame_parameters(data)
        if header.content_size in (0, zstandard.CONTENTSIZE_UNKNOWN, zstandard.CONTENTSIZE_ERROR):
            raise WireError("The zstd frame must declare its size.")
        if header.content_size > most_raw or header.window_size > MAX_WINDOW:
            raise TooLarge(f"The body would unpack to {header.content_size} bytes; the limit is {most_raw}.")
        if header.dict_id:
            raise WireError("zstd dictionaries are not part of the protocol.")
        return _decompress.decompress(data, max_output_size=most_raw, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise WireError(f"The body is not one zstd frame: {str(error)[:100]}") from error


def decode_message(data: bytes, kind: type[T]) -> T:
    """One compressed message. Raises WireError, TooLarge."""
    return unpack_msgpack(decompress_body(data), kind)


def encode_message(message: msgspec.Struct) -> bytes:
    """Inverse of decode_message. Raises TooLarge if the other side would refuse it."""
    raw = msgspec.msgpack.encode(message)
    packed = _compress.compress(raw)
    if len(raw) > MAX_RAW or len(packed) > MAX_BODY:
        raise TooLarge(f"The message has {len(packed)} bytes ({len(raw)} unpacked): more than the protocol allows.")
    return packed


def printable_label(text: str) -> str:
    """The text as a label: anything but printable ASCII becomes "?", cut to 80."""
    return "".join(char if " " <= char <= "~" else "?" for char in text)[:80]


def sha256_hex(data: bytes) -> str:
    """Lower-case hex SHA-256."""
    return hashlib.sha256(data).hexdigest()


def group_id(body: bytes) -> bytes:
    """The short id of a group: the first 8 bytes of the SHA-256 of its signed body."""
    return hashlib.sha256(body).digest()[:8]


def content_digest(body: GroupBody) -> str:
    """Equal for two groups with the same question and texts, whoever signed them."""
    state = hashlib.sha256(body.ref.label.encode())
    for completion in body.completions:
        text = completion.text.encode()
        state.update(len(text).to_bytes(4, "big") + text)
    return state.hexdigest()[:32]


# A custom task in a swarm: its offer to members, and its content as stored at the coordinator.

MAX_PACKED = 2 * 2**20
"""Bytes of a task on the wire and in the store; unpacked, folder.MAX_BYTES."""
MAX_TASKS = 8
"""Most tasks of one swarm."""
_task_offer_compress = zstandard.ZstdCompressor(
    compression_params=zstandard.ZstdCompressionParameters.from_level(9, window_log=20, write_content_size=1)
)

Rows = Annotated[int, Meta(ge=0, le=100_000)]


class TaskOffer(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What a swarm's members are told of a task before they fetch it.

    hash: SHA-256 of its canonical bytes, its version. description, licence: peer text, show through safe_text. train,
    held_out: rows (0 held out: those stay with the host). size: bytes unpacked; packed: bytes to fetch.
    """

    name: Name
    hash: Sha256
    description: Annotated[str, Meta(max_length=2000)] = ""
    licence: Annotated[str, Meta(max_length=200)] = ""
    train: Rows
    held_out: Rows
    size: Annotated[int, Meta(ge=1, le=folder.MAX_BYTES)]
    packed: Annotated[int, Meta(ge=1, le=MAX_PACKED)]

    @property
    def generator(self) -> str:
        """The generator of references to this version."""
        return generator_id(self.hash)


class TaskOffers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """GET /v1/tasks: the tasks of members' own that this swarm trains on."""

    tasks: Annotated[tuple[TaskOffer, ...], Meta(max_length=MAX_TASKS)]


class TaskUpload(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Body of POST /admin/tasks as msgpack. packed: see pack()."""

    offer: TaskOffer
    packed: Annotated[bytes, Meta(max_length=MAX_PACKED)]


def build_task_upload(task: OwnTask, held_out: bool) -> TaskUpload:
    """The task for a swarm, with or without its held-out rows. Raises BadTask for one that cannot travel."""
    raw = folder.task_to_bytes(task, held_out)
    body = _task_offer_compress.compress(raw)
    spec = task.spec
    if len(body) > MAX_PACKED:
        raise BadTask(
            f"Task {spec.name!r} has {len(body):,} bytes packed; up to {MAX_PACKED:,} travel. Share fewer rows."
        )
    offer = TaskOffer(
        name=spec.name,
        hash=sha256_hex(raw),
        description=spec.description,
        licence=spec.licence,
        train=len(task.train),
        held_out=len(task.held_out) if held_out else 0,
        size=len(raw),
        packed=len(body),
    )
    return TaskUpload(offer=offer, packed=body)


def unpack_task(offer: TaskOffer, body: bytes) -> OwnTask:
    """The task that the offer names, read as a folder is, from bytes of unknown origin. Raises BadTask for anything else."""
    if offer.name in CATALOGUE:
        raise BadTask(f"Task {offer.name!r} has the name of one of the app's tasks. Its host must rename it.")
    try:
        raw = decompress_body(body, MAX_PACKED, folder.MAX_BYTES)
    except (TooLarge, WireError) as error:
        raise BadTask(f"Task {offer.name!r} cannot be unpacked: {error}") from error
    if sha256_hex(raw) != offer.hash or len(raw) != offer.size:
        raise BadTask(f"What came is not the task {offer.name!r} that was offered: its hash is another one.")
    task = folder.task_from_bytes(raw, offer.name, offer.description, offer.licence)
    if (len(task.train), len(task.held_out)) != (offer.train, offer.held_out):
        raise BadTask(f"Task {offer.name!r} has other numbers of rows than it was offered with.")
    return task


# Why groups were not taken, in words that need no manual.

REFUSAL_WORDS = {
    "no_signal": "had no rollout better than the rest",
    "stale": "came too late",
    "future": "were dated in the future",
    "duplicate": "were known already",
    "source": "were one more of a node that this sample had already",
    "own": "were this node's own",
    "quota": "came from nodes whose time to be checked was used up",
    "struck": "came from nodes that are heard no more",
    "author": "were signed by somebody else than they say",
    "signature": "had a signature that does not hold",
    "schema": "were not in the form of the protocol",
    "task": "were of a task that is not trained here",
    "seed": "had a seed that training may not use",
    "held_out": "were held-out questions",
    "length": "were too long",
    "too_long": "were too long",
    "no_question": "had a question that cannot be made here",
    "prompt_hash": "had another question than this node makes of it",
    "unscorable": "could not be scored",
    "logprob": "had text that this model would hardly ever write",
    "unlikely": "came from nodes that sent much text that this model would hardly ever write",
    "phrase": "had a phrase that spreads between nodes",
    "repeats": "had the question again before right answers, as too many did lately",
    "other": "were refused for a reason that this version does not know",
}
"""For every reason for which a node (receive) or a coordinator refuses a group."""


def refusals_in_words(reasons: Mapping[str, int], whole: int = 0) -> list[str]:
    """ "6 of 8 had no rollout better than the rest", the most frequent first. whole: number of groups, 0 = unknown."""
    ranked = sorted(
        ((number, name) for name, number in reasons.items() if number), key=lambda pair: (-pair[0], pair[1])
    )
    among = f" of {whole:,}" if whole else ""
    return [
        f"{number:,}{among} {REFUSAL_WORDS.get(name) or safe_text(name, 40, lines=False).replace('_', ' ')}"
        for number, name in ranked
    ]
