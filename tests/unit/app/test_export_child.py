"""What the parent of an export hears from its child."""

from __future__ import annotations

import queue
import subprocess
import sys

import msgspec

from sapo_desktop.services.models.exports.child import _pass_on
from sapo_desktop.services.models.exports.job import Progressed, Reply


def test_what_a_library_prints_between_replies_is_none_and_the_end_is_told() -> None:
    reply = Progressed(0.5, "writing")
    said = b"\xff a warning\n" + msgspec.json.encode(reply) + b'\n{"type":"prog'
    child = subprocess.Popen(
        [sys.executable, "-c", f"import sys; sys.stdout.buffer.write({said!r})"], stdout=subprocess.PIPE
    )
    replies: queue.SimpleQueue[Reply | None] = queue.SimpleQueue()
    _pass_on(child, replies)
    child.wait()
    assert [replies.get(timeout=60) for _ in range(2)] == [reply, None]
