"""What the parent of an export hears from its child."""

from __future__ import annotations

import msgspec

from sapo_desktop.services.models.exports.export import replies
from sapo_desktop.services.models.exports.job import Progressed


def test_what_a_library_prints_between_replies_is_none() -> None:
    reply = Progressed(0.5, "writing")
    assert list(replies([b"\xff a warning\n", msgspec.json.encode(reply) + b"\n", b'{"type":"prog'])) == [reply]
