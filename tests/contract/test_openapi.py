"""The committed API description is the one the types give, and the server routes what it says."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from aiohttp import web

from sapo_swarm.coordinator.admin.routes import add_admin
from sapo_swarm.coordinator.domain.records import SwarmRecord
from sapo_swarm.coordinator.listing import Listing
from sapo_swarm.coordinator.openapi import document, rendered
from sapo_swarm.coordinator.server import Coordinator
from sapo_swarm.coordinator.settings import CoordinatorSettings
from sapo_swarm.coordinator.snapshots import add_snapshots
from sapo_swarm.coordinator.store.sqlite import SQLiteStore
from sapo_swarm.coordinator.tasks import add_tasks
from sapo_swarm.coordinator.web import add_page

ROOT = Path(__file__).parents[2]


def application(tmp_path: Path) -> web.Application:
    record = SwarmRecord(swarm="a" * 16, name="s", open=False, certificate=b"", key=b"", created=0)
    coordinator = Coordinator(CoordinatorSettings(), SQLiteStore(tmp_path / "s.sqlite"), record)
    app = coordinator.application()
    add_admin(app, coordinator, "key")
    add_tasks(app, coordinator)
    add_page(app, coordinator)
    add_snapshots(app, coordinator)
    Listing(coordinator).add(app)
    return app


def test_the_committed_description_is_the_generated_one() -> None:
    """Renew it: python -m sapo_swarm.coordinator.openapi > docs/openapi.json"""
    assert (ROOT / "docs" / "openapi.json").read_text() == rendered()


async def test_every_route_is_described_and_every_description_is_routed(tmp_path: Path) -> None:
    """Static files of the page are left out."""
    routes = {
        (route.resource.canonical, route.method.lower())
        for route in application(tmp_path).router.routes()
        if route.resource is not None and route.method != "HEAD" and not route.resource.canonical.startswith("/static")
    }
    described = {(path, method) for path, methods in document()["paths"].items() for method in methods}
    assert routes == described


def test_every_reference_resolves_and_no_python_regex_is_left() -> None:
    """Patterns are ECMA's."""
    text = json.dumps(document())
    schemas = document()["components"]["schemas"]
    for part in text.split('"#/components/schemas/')[1:]:
        assert part.split('"')[0] in schemas
    assert "\\\\Z" not in text


def test_unknown_fields_are_refused_on_paper_too() -> None:
    """additionalProperties is false wherever a node may send something."""
    schemas = document()["components"]["schemas"]
    for name in ("Upload", "SignedGroup", "GroupBody", "SharedCompletion", "TaskRef", "JoinRequest", "Ban"):
        assert schemas[name]["additionalProperties"] is False, name
    assert msgspec.json.decode(rendered().encode())["openapi"] == "3.1.0"
