"""What differs on Windows and macOS, as their documentation has it: locks, consoles, Intel programs on Apple Silicon."""

from __future__ import annotations

import io
import sys

import pytest

from sapo_desktop.services.machine import doctor
from sapo_desktop.services.nodes import children, supervisor
from sapo_swarm.node.governor.rules import command_output


class Locked(io.StringIO):
    def read(self, size: int | None = -1) -> str:
        raise PermissionError(13, "Permission denied")


def test_a_lock_whose_holder_cannot_be_read_is_refused_in_words_all_the_same() -> None:
    """Windows lets nobody read what another process has locked."""
    assert supervisor._holder(io.StringIO(" 77\n")) == "77"
    assert supervisor._holder(Locked("77")) == "?"


def test_a_node_in_the_background_belongs_to_no_console() -> None:
    assert children.detached_popen_options("linux") == {"start_new_session": True}
    no_window, group_of_its_own = 0x08000000, 0x200
    assert children.detached_popen_options("win32") == {"creationflags": no_window | group_of_its_own}


@pytest.mark.parametrize(
    ("system", "machine", "reply", "translated"),
    [
        ("darwin", "x86_64", "1\n", True),
        ("darwin", "x86_64", "", False),  # an Intel Mac knows no such name
        ("darwin", "arm64", "1\n", False),
        ("linux", "x86_64", "1\n", False),
    ],
)
def test_a_python_for_intel_on_apple_silicon_is_known(system: str, machine: str, reply: str, translated: bool) -> None:
    assert doctor.runs_under_rosetta(system, machine, lambda _: reply) is translated


def test_what_a_program_prints_need_not_be_utf_8() -> None:
    """An error here would be one of the governor's."""
    command = [sys.executable, "-c", 'import os; os.write(1, b\'"Product" = "\\xff"\\n"HIDIdleTime" = 5\')']
    assert '"HIDIdleTime" = 5' in command_output(command)
