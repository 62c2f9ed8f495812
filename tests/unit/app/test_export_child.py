"""What the parent of an export hears from its child."""

from __future__ import annotations

import msgspec

from sapo_desktop.services.models.exports.export import decode_replies
from sapo_desktop.services.models.exports.job import JobProgress


def test_what_a_library_prints_between_replies_is_none() -> None:
    reply = JobProgress(0.5, "writing")
    assert list(decode_replies([b"\xff a warning\n", msgspec.json.encode(reply) + b"\n", b'{"type":"prog'])) == [reply]
