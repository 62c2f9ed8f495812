"""OpenAPI 3.1 of the coordinator, generated from the wire types: `python -m tests.support.openapi`.

The committed docs/openapi.json is what this prints; a test compares them.
"""

from __future__ import annotations

import inspect
import json
from http import HTTPStatus
from typing import Any

import msgspec

from sapo_swarm.coordinator.admin_client import Approve, Ban, DropTask, InviteView, NewInvite, Removed, Revoke, Waiting
from sapo_swarm.coordinator.requests import CODES
from sapo_swarm.coordinator.window_stats import Overview
from sapo_swarm.protocol.snapshot import SnapshotNews
from sapo_swarm.protocol.wire import (
    H_NODE,
    H_NONCE,
    H_PROTO,
    H_SIGNATURE,
    H_TIME,
    MAX_BODY,
    MAX_RAW,
    MAX_WINDOW,
    MEDIA_TYPE,
    PROBLEM_TYPE,
    GroupBody,
    JoinRequest,
    Leaderboard,
    Problem,
    RoundReply,
    SignedGroup,
    SwarmInfo,
    TaskOffers,
    TaskUpload,
    Upload,
)
from sapo_swarm.types import PROTOCOL_VERSION

_TYPES: tuple[type[Any], ...] = (
    SnapshotNews,
    Upload,
    SignedGroup,
    GroupBody,
    RoundReply,
    SwarmInfo,
    JoinRequest,
    Leaderboard,
    Problem,
    Overview,
    NewInvite,
    InviteView,
    Revoke,
    Ban,
    Approve,
    Waiting,
    Removed,
    TaskOffers,
    TaskUpload,
    DropTask,
)
_SIGNED = {
    H_NODE: "Node id: base32(SHA-256(public key))[:26], lower case",
    H_TIME: "Milliseconds since the Unix epoch; at most 120 s from the coordinator's clock",
    H_NONCE: "32 hex digits, never used before: sign each attempt anew",
    H_SIGNATURE: (
        'Ed25519 as 128 hex digits over "sapo-v1\\0" + method, path, swarm, time, nonce and the hex SHA-256 of the '
        'body, joined by "\\0"'
    ),
}

_WIRE = f"""An invite is the line `sapo://HOST:PORT/#fp=FP&t=TOKEN&s=SWARM`: FP is the hex SHA-256 of the certificate (DER), \
which is all that is checked of it; without it the swarm speaks HTTP, on loopback only. TOKEN is JoinRequest.invite, missing in \
an open swarm; SWARM is the swarm's id.

Bodies of type {MEDIA_TYPE} are msgpack in one zstd frame, {MAX_BODY // 1024} KiB packed and {MAX_RAW // 1024} KiB unpacked \
at most. The frame declares its size, needs a window of {MAX_WINDOW // 1024} KiB at most and no dictionary. In msgpack a \
struct is a map by field names, and what is binary here is of type bin: base64 is refused."""
_SNAPSHOT = """AES-256-GCM with SnapshotNews.key, a nonce of 12 zero bytes and the tag at the end, of msgpack in one zstd frame: \
{body, certificate, signature}, all bin. body: msgpack of {swarm, made, groups}, groups being SignedGroups; certificate: the \
swarm's, DER, of the invite's fingerprint; signature: ECDSA P-256 with SHA-256, DER, over "sapo-snapshot-v1\\n" + body."""


def openapi_document() -> dict[str, Any]:
    """The whole description as JSON values."""
    _, components = msgspec.json.schema_components(_TYPES, ref_template="#/components/schemas/{name}")
    for schema in components.values():  # Python 3.13 keeps docstrings without their indentation
        schema["description"] = inspect.cleandoc(schema.get("description", ""))
        for value in schema.get("properties", {}).values():
            _as_bin(value.get("items", value))
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "SAPO swarm coordinator",
            "version": str(PROTOCOL_VERSION),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
            "description": (
                f"Nodes of a swarm exchange rollout groups. Every /v1 request carries `{H_PROTO}: {PROTOCOL_VERSION}`; "
                f"every answer carries {H_PROTO}, and {H_TIME} where no cache may keep it. Refusals are RFC 9457 problem "
                "details whose `code` is one of: " + ", ".join(CODES) + ". 429 and 503 carry Retry-After.\n\n" + _WIRE
            ),
        },
        "paths": _paths(),
        "components": {
            "schemas": components,
            "securitySchemes": {"admin": {"type": "http", "scheme": "bearer"}},
        },
    }
    text: dict[str, Any] = json.loads(json.dumps(document).replace("\\\\Z", "$"))  # ECMA regular expressions
    return text


def _as_bin(schema: dict[str, Any]) -> None:
    """Bytes travel only in msgpack, which needs no base64. Lengths of base64 mean nothing then."""
    if schema.pop("contentEncoding", None):
        schema["format"] = "binary"
        for bound in ("minLength", "maxLength"):
            schema.pop(bound, None)


def _paths() -> dict[str, Any]:
    text = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "/v1/swarm": {"get": _operation("The swarm, its limits and tasks", 200, SwarmInfo)},
        "/v1/join": {
            "post": _operation(
                "Enter the swarm; the request's signature proves possession of the key",
                200,
                SwarmInfo,
                JoinRequest,
                True,
            )
        },
        "/v1/rounds/{id}": {
            "put": _operation(
                "Upload this round's groups and sample groups of others. Idempotent: a repeated body is stored once",
                200,
                RoundReply,
                Upload,
                True,
                MEDIA_TYPE,
                [_parameter("id", "path", "Lower-case hex SHA-256 of the body", "^[0-9a-f]{64}$")],
            )
        },
        "/v1/leaderboard": {"get": _operation("Accepted groups and uptake of the last hour", 200, Leaderboard)},
        "/v1/tasks": {"get": _operation("Tasks of members' own, for invite holders", 200, TaskOffers, None, True)},
        "/v1/tasks/{hash}": {
            "get": _operation(
                "A task's canonical bytes in one zstd frame, for invite holders",
                200,
                bytes,
                None,
                True,
                "application/zstd",
                [_parameter("hash", "path", "Lower-case hex SHA-256 of the canonical bytes", "^[0-9a-f]{64}$")],
            )
        },
        "/v1/leave": {"post": _operation("Take this node's groups out of the pool", 204, None, None, True)},
        "/v1/snapshots/newest": {
            "get": _operation("Which snapshot of the pool is the newest, and its key", 200, SnapshotNews, None, True)
        },
        "/v1/snapshots/{id}": {
            "get": _plain(
                "A snapshot: immutable, signed, encrypted",
                {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
            )
            | {"description": _SNAPSHOT}
            | {"parameters": [_parameter("id", "path", "SHA-256 of its bytes", "^[0-9a-f]{64}$")]}
        },
        "/healthz": {"get": _plain("The process answers", text)},
        "/readyz": {"get": _plain("The store answers", text)},
        "/metrics": {"get": _plain("Prometheus metrics, on loopback", text)},
        "/": {"get": _plain("The status page", {"text/html": {"schema": {"type": "string"}}})},
        "/directory.json": {
            "get": _plain("The signed list, with --list", {"application/json": {"schema": {"type": "object"}}})
        },
        "/events": {
            "get": _plain("Server-sent events, an Overview each", {"text/event-stream": {"schema": _ref(Overview)}})
        },
        "/admin/invites": {
            "get": _admin("Every invite", {"type": "array", "items": _ref(InviteView)}),
            "post": _admin("Make an invite", _ref(InviteView), NewInvite),
        },
        "/admin/revoke": {"post": _admin("Revoke an invite with everything it admitted", _ref(Removed), Revoke)},
        "/admin/ban": {"post": _admin("Ban a node, or lift its ban", _ref(Removed), Ban)},
        "/admin/waiting": {"get": _admin("Nodes that wait for the host", {"type": "array", "items": _ref(Waiting)})},
        "/admin/approve": {"post": _admin("Let a node in, or all that wait", _ref(Removed), Approve)},
        "/admin/stop": {"post": _admin("End the coordinator in order", _ref(Removed))},
        "/admin/tasks": {
            "post": _admin(
                "Take a task of the host's own in", _ref(TaskOffers), TaskUpload, body_media="application/msgpack"
            )
        },
        "/admin/untask": {"post": _admin("Take a task out", _ref(TaskOffers), DropTask)},
        "/admin/export": {
            "get": _admin(
                "The swarm with its private key",
                {"type": "string", "format": "binary"},
                None,
                "application/octet-stream",
            )
        },
    }


def _operation(
    summary: str,
    status: int,
    answer: type | None,
    body: type | None = None,
    signed: bool = False,
    media: str = "application/json",
    parameters: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    headers = [_parameter(H_PROTO, "header", "Major version of the protocol", f"^{PROTOCOL_VERSION}$")]
    if signed:
        headers += [_parameter(name, "header", text) for name, text in _SIGNED.items()]
    done: dict[str, Any] = {"description": HTTPStatus(status).phrase}
    if answer is not None:
        schema = {"type": "string", "format": "binary"} if answer is bytes else _ref(answer)
        done["content"] = {media: {"schema": schema}}
    operation: dict[str, Any] = {
        "summary": summary,
        "parameters": [*(parameters or []), *headers],
        "responses": {str(status): done, "default": _problem()},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {media: {"schema": _ref(body)}}}
    return operation


def _admin(
    summary: str,
    answer: dict[str, Any],
    body: type | None = None,
    media: str = "application/json",
    body_media: str = "application/json",
) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": summary,
        "description": "Loopback only.",
        "security": [{"admin": []}],
        "responses": {"200": {"description": "OK", "content": {media: {"schema": answer}}}, "default": _problem()},
    }
    if body is not None:
        operation["requestBody"] = {"required": True, "content": {body_media: {"schema": _ref(body)}}}
    return operation


def _plain(summary: str, content: dict[str, Any]) -> dict[str, Any]:
    return {"summary": summary, "responses": {"200": {"description": "OK", "content": content}, "default": _problem()}}


def _problem() -> dict[str, Any]:
    return {"description": "Problem details", "content": {PROBLEM_TYPE: {"schema": _ref(Problem)}}}


def _parameter(name: str, place: str, text: str, pattern: str = "") -> dict[str, Any]:
    schema = {"type": "string"} | ({"pattern": pattern} if pattern else {})
    return {"name": name, "in": place, "required": True, "description": text, "schema": schema}


def _ref(kind: type) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{kind.__name__}"}


def render_openapi() -> str:
    """The committed file's text."""
    return json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    print(render_openapi(), end="")
