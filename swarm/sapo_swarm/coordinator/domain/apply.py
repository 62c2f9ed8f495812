"""The coordinator's judgement of a group, as a pure function: everything it may know is passed in.

The coordinator checks form, authorship and coordinates. It never regenerates a question and never scores: whether a
text is any good is each receiver's own business.
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from sapo_swarm.protocol.identity import group_text, verify
from sapo_swarm.protocol.wire import GroupBody, SignedGroup, WireError, content_digest, unpack
from sapo_swarm.tasks.catalogue import is_train
from sapo_swarm.tasks.own.library import PRESET, is_own
from sapo_swarm.types import MAX_COMPLETION_BYTES, TaskRef


@dataclass(frozen=True, slots=True)
class Rules:
    """What a swarm accepts. own: (name, generator) of tasks of members' own. Ages in seconds."""

    swarm: str
    tasks: frozenset[str]
    presets: frozenset[str]
    generator: str
    max_age_s: float
    max_future_s: float
    own: frozenset[tuple[str, str]] = frozenset()


@dataclass(frozen=True, slots=True)
class Judged:
    """body is None when the group is refused for `reason`. content: digest of coordinates and texts."""

    reason: str
    body: GroupBody | None = None
    content: str = ""


def judge(
    group: SignedGroup, uploader: str, key: bytes, rules: Rules, now: float, check_signature: bool = True
) -> Judged:
    """The first reason to refuse the group, or its decoded body. Cheap checks come first.

    uploader, key: the member that signed the request, which covers the group too.
    """
    try:
        body = unpack(group.body, GroupBody)
    except WireError:
        return Judged("schema")
    if body.node != uploader or group.key != key:
        return Judged("author")
    reason = _coordinates(body, rules) or _age(body, rules, now)
    if reason:
        return Judged(reason)
    if any(len(c.text) * 4 > MAX_COMPLETION_BYTES and _size(c.text) > MAX_COMPLETION_BYTES for c in body.completions):
        return Judged("too_long")
    if check_signature and not verify(key, group.signature, group_text(rules.swarm, group.body)):
        return Judged("signature")
    return Judged("", body, content_digest(body))


class _Coordinates(msgspec.Struct, frozen=True):
    """The part of a GroupBody that says which question it answers; the texts are skipped."""

    ref: TaskRef


def task_of(blob: bytes) -> str:
    """Entry.task of a packed SignedGroup that was judged before; "" where it does not read."""
    try:
        return own_generator(unpack(unpack(blob, SignedGroup).body, _Coordinates).ref)
    except WireError:
        return ""


def own_generator(ref: TaskRef) -> str:
    """The generator of a task of members' own, "" for the app's tasks."""
    return ref.generator if is_own(ref) else ""


def _size(text: str) -> int:
    return len(text.encode())


def _coordinates(body: GroupBody, rules: Rules) -> str:
    ref = body.ref
    if ref.generator == rules.generator:
        known = ref.dataset in rules.tasks and ref.preset in rules.presets
    else:
        known = (ref.dataset, ref.generator) in rules.own and ref.preset == PRESET
    if not known:
        return "task"
    return "" if is_train(ref) else "seed"


def _age(body: GroupBody, rules: Rules, now: float) -> str:
    age = now - body.ts / 1000
    if age > rules.max_age_s:
        return "stale"
    return "future" if age < -rules.max_future_s else ""
