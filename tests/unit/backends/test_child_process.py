"""Work in a process of its own: its job and its lines, its end, its last words, and how it is stopped."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

import psutil
import pytest

from sapo_backends.child_process import (
    ChildProcess,
    child_environment,
    describe_end,
    last_line,
    open_child,
    python_command,
    stderr_lines,
)


def script(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_a_child_gets_its_job_answers_in_lines_and_leaves_its_last_words() -> None:
    code = "import sys; [print(w) for w in sys.stdin.read().split()]; print('sapo-desktop: no', file=sys.stderr); sys.exit(3)"
    with ChildProcess(script(code), child_environment(), b"one two") as child:
        assert [line.split() for line in child.lines()] == [[b"one"], [b"two"]]
        assert (child.code, last_line(child.read_errors())) == (3, "no")


def test_leaving_the_block_ends_the_child_and_a_look_that_raises_is_passed_on() -> None:
    def look() -> None:
        raise KeyboardInterrupt

    with ChildProcess(script("import time; time.sleep(100)"), os.environ) as child:
        assert not child.ends_within(0.0)
        with pytest.raises(KeyboardInterrupt):
            child.ends_within(50.0, look)
    assert describe_end(child.code) == "signal 9"


def test_a_private_child_gets_no_secret_of_the_persons(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "secret")
    assert "HF_TOKEN" in child_environment()
    assert "HF_TOKEN" not in child_environment({"X": "1"}, private=True)
    assert child_environment({"X": "1"}, private=True)["X"] == "1"


def test_a_command_that_is_not_there_is_an_error_of_the_system(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"), ChildProcess([str(tmp_path / "gone")], os.environ):
        pass
    assert python_command("a.module", "x")[1:] == ["-P", "-m", "a.module", "x"]


@pytest.mark.parametrize("grace_s", [0.0, 30.0])
async def test_a_child_of_an_event_loop_is_gone_when_the_block_is_left(grace_s: float) -> None:
    code = "import sys, time; print('begun', file=sys.stderr, flush=True); time.sleep(100)"
    async with open_child(script(code), grace_s=grace_s) as child:
        async for line in stderr_lines(child):
            assert line == "begun"
            break
    assert child.returncode
    assert not psutil.pid_exists(child.pid)


async def test_a_cancel_ends_the_child() -> None:
    pids: list[int] = []
    running = asyncio.Event()

    async def work() -> None:
        async with open_child(script("import time; time.sleep(100)")) as child:
            pids.append(child.pid)
            running.set()
            await child.wait()

    task = asyncio.create_task(work())
    await running.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert not psutil.pid_exists(pids[0])
