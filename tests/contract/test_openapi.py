"""The committed API description is the one the types give, and the server routes what it says."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from nacl.signing import SigningKey
from tests.support.openapi import openapi_document, render_openapi
from tests.unit.swarm.test_receive import ME, NOW, SWARM, AddOne, prompt_of

from sapo_swarm.coordinator.admin import add_admin
from sapo_swarm.coordinator.listing import SwarmListing
from sapo_swarm.coordinator.reads import add_snapshots, add_tasks
from sapo_swarm.coordinator.records import SwarmRecord
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.coordinator.web import add_page
from sapo_swarm.protocol.receive import GroupReceiver
from sapo_swarm.protocol.wire import PER_SOURCE, Upload, WireError, unpack_msgpack
from sapo_swarm.tasks.catalogue import TRAIN_LIMIT
from sapo_swarm.types import TaskRef

ROOT = Path(__file__).parents[2]


def application(tmp_path: Path) -> web.Application:
    record = SwarmRecord(swarm="a" * 16, name="s", open=False, certificate=b"", key=b"", created=0)
    coordinator = Coordinator(CoordinatorSettings(), SQLiteStore(tmp_path / "s.sqlite"), record)
    app = coordinator.application()
    add_admin(app, coordinator, "key")
    add_tasks(app, coordinator)
    add_page(app, coordinator)
    add_snapshots(app, coordinator)
    SwarmListing(coordinator).add(app)
    return app


def test_the_committed_description_is_the_generated_one() -> None:
    """Renew it: python -m tests.support.openapi > docs/openapi.json"""
    assert (ROOT / "docs" / "openapi.json").read_text() == render_openapi()


async def test_every_route_is_described_and_every_description_is_routed(tmp_path: Path) -> None:
    """Static files of the page are left out."""
    routes = {
        (route.resource.canonical, route.method.lower())
        for route in application(tmp_path).router.routes()
        if route.resource is not None and route.method != "HEAD" and not route.resource.canonical.startswith("/static")
    }
    described = {(path, method) for path, methods in openapi_document()["paths"].items() for method in methods}
    assert routes == described


def test_every_reference_resolves_and_no_python_regex_is_left() -> None:
    """Patterns are ECMA's."""
    text = json.dumps(openapi_document())
    schemas = openapi_document()["components"]["schemas"]
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.split('"')[0] in schemas
    assert "\\\\Z" not in text


def test_unknown_fields_are_refused_on_paper_too() -> None:
    """additionalProperties is false wherever a node may send something."""
    schemas = openapi_document()["components"]["schemas"]
    for name in ("Upload", "SignedGroup", "GroupBody", "SharedCompletion", "TaskRef", "JoinRequest", "Ban"):
        assert schemas[name]["additionalProperties"] is False, name
    assert msgspec.json.decode(render_openapi().encode())["openapi"] == "3.1.0"


async def test_a_client_written_from_openapi_json_alone_signs_a_group_that_verifies() -> None:
    """Field names, what is signed, which text is hashed and what is binary: read here from the committed file."""
    described = json.loads((ROOT / "docs" / "openapi.json").read_text())["components"]["schemas"]
    key = SigningKey(bytes(range(32)))
    public = bytes(key.verify_key)
    prompt = prompt_of(TaskRef("basic_arithmetic", "starter", 5))
    texts = [{"text": text, "finish": "stop"} for text in ("<answer>6</answer>", "no idea")]
    fields = {
        "ref": {"dataset": "basic_arithmetic", "preset": "starter", "seed": 5},
        "prompt_sha256": hashlib.sha256(prompt.encode()).hexdigest(),
        "completions": texts,
        "node": base64.b32encode(hashlib.sha256(public).digest()).decode().lower()[:26],
        "model": "another client",
        "policy_step": 0,
        "ts": int(NOW * 1000),
    }
    body = msgspec.msgpack.encode({name: fields[name] for name in described["GroupBody"]["required"]})
    quoted = re.findall(r'"([^"]*)"', described["SignedGroup"]["description"])
    prefix, between = (part.replace(r"\0", "\0").encode() for part in quoted)
    text = prefix + SWARM.encode() + between + body
    group = {"body": body, "key": public, "signature": key.sign(text).signature}
    assert {described["SignedGroup"]["properties"][name]["format"] for name in group} == {"binary"}
    assert "contentEncoding" not in json.dumps(described)
    (taken,) = await GroupReceiver(SWARM, ME.node, AddOne()).receive([msgspec.msgpack.encode(group)], NOW)
    assert taken.rewards == (1.0, 0.0)
    upload = {"groups": [group], "have": [hashlib.sha256(body).digest()[:8]]}
    assert unpack_msgpack(msgspec.msgpack.encode(upload), Upload).groups[0].body == body
    with pytest.raises(WireError, match="Expected `bytes`"):
        unpack_msgpack(msgspec.msgpack.encode({"groups": [group | {"key": public.hex()}]}), Upload)


def test_numbers_in_its_sentences_are_the_codes() -> None:
    schemas = openapi_document()["components"]["schemas"]
    assert f"at most {PER_SOURCE} of one" in schemas["RoundReply"]["description"]
    assert TRAIN_LIMIT == 2**31 - 2**20
    assert "under 2^31 - 2^20 only" in schemas["TaskRef"]["description"]
