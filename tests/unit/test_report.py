"""What a node without a screen prints, and to whom."""

from __future__ import annotations

import os

from sapo_desktop.report import Reporter
from sapo_swarm.events import LogLine


def test_a_reader_that_goes_away_does_not_end_the_run() -> None:
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as out:
        reporter = Reporter(out, json=False, quiet=False)
        reporter.show(LogLine(level="info", text="heard"))
        assert os.read(reading, 100) == b"          heard\n"
        os.close(reading)
        for _ in range(3):
            reporter.show(LogLine(level="info", text="not heard any more"))
