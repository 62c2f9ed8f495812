"""A node steps back as a process, and with its session where the session is its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

GROUP = Path("/proc/self/autogroup")


def session_niceness() -> str:
    """As Linux shows it: "/autogroup-7 nice 0"; empty where it groups no sessions or this process is in no group."""
    shown = GROUP.read_text().split() if GROUP.exists() else []
    return shown[-1] if shown else ""


CODE = """
import os
from sapo_swarm.node.governor.machine import step_back
step_back(12)
print(os.nice(0), open("/proc/self/autogroup").read().split()[-1])
"""


@pytest.mark.skipif(session_niceness() != "0", reason="needs Linux' session groups")
def test_the_session_steps_back_where_the_node_leads_it_and_not_where_it_is_a_persons() -> None:
    def priorities(own: bool) -> list[str]:
        command = [sys.executable, "-c", CODE]
        done = subprocess.run(command, start_new_session=own, capture_output=True, text=True, check=True)
        return done.stdout.split()

    stepped_back = str(min(os.nice(0) + 12, 19))
    assert priorities(own=True) == [stepped_back, "12"]
    assert priorities(own=False) == [stepped_back, "0"]
    assert session_niceness() == "0"
