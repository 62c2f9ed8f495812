"""Checks that only the machine itself can do, as findings that can be pasted into an issue: a separate node is started,
commanded and stopped in a folder with a space and letters of other alphabets, and the system's own facilities are probed.

Nothing of the person's is touched or named, nothing is installed, and what was created is removed.
"""

from __future__ import annotations

import contextlib
import json
import locale
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Literal, NamedTuple

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home, own_command
from sapo_desktop.services.machine import login

# One line of the doctor.

Verdict = Literal["ok", "note", "fail"]
COLUMN = 16
"""Columns of the longest name: thermal pressure."""


class Finding(NamedTuple):
    """One line of the doctor. text says what to do when it is not ok."""

    verdict: Verdict
    what: str
    text: str


ODD = "self test é 空"
"""Part of the folder's name: a space, an accent, and a character of two columns."""
STOP_S = 60.0
START_S = 120.0
VERB_S = 120.0
FAKE = ("--trainer", "fake", "--model", "fake", "--tasks", "basic_arithmetic", "--eval-every", "0")
SETTINGS = "[limits]\npause_on_battery = false\nmin_free_disk = 0\nmin_free_memory = 0\n"


def run() -> Iterator[Finding]:
    """One finding after another; the slowest takes a minute or two."""
    yield _system()
    yield _terminal()
    yield _clock()
    yield _awake()
    yield _login()
    try:
        with tempfile.TemporaryDirectory(prefix="sapo ", suffix=f" {ODD}", ignore_cleanup_errors=True) as folder:
            yield from _node(_home(Path(folder) / "node"))
            yield _rounds(_home(Path(folder) / "rounds"))
    except (OSError, UnicodeError) as error:
        yield Finding("fail", "folder", f"a folder named like {ODD!r} cannot be used: {without_names(str(error))}")


def _home(folder: Path) -> Path:
    """A home without models, so that nothing that ran in another home is continued."""
    folder.mkdir()
    (folder / "config.toml").write_text(SETTINGS, "utf-8")
    return folder


def _system() -> Finding:
    kind = "frozen app" if getattr(sys, "frozen", False) else f"Python {platform.python_version()}"
    names = f"file names {sys.getfilesystemencoding()}, texts {locale.getpreferredencoding(False)}"
    return Finding("ok", "system", f"{platform.platform()}, {platform.machine()}, {kind}, {names}")


def _terminal() -> Finding:
    size = shutil.get_terminal_size()
    term = os.environ.get("TERM", "") or (os.environ.get("WT_SESSION", "") and "Windows Terminal")
    place = "a terminal" if sys.stdout.isatty() else "no terminal"
    text = f"{place}, {size.columns} x {size.lines}, {sys.stdout.encoding}, {term or 'no TERM'}"
    return Finding("ok" if size.columns >= 80 else "note", "terminal", text)


def _clock() -> Finding:
    from sapo_swarm.node.clock import local_time, steady_seconds, week_minute

    before = steady_seconds()
    time.sleep(0.01)
    moved = steady_seconds() - before
    zone = time.strftime("%z", local_time())
    text = f"a steady clock that counts sleep moved {moved:.3f} s in 0.010, zone {zone}, minute {week_minute()} of the week"
    return Finding("ok" if 0.005 < moved < 5 else "fail", "clock", text)


def _awake() -> Finding:
    from sapo_swarm.node.governor.machine import inhibitor_command

    command = inhibitor_command()
    if sys.platform == "win32":
        return Finding("ok", "keep awake", "by SetThreadExecutionState")
    if not command or shutil.which(command[0]) is None:
        return Finding(
            "note", "keep awake", f"not available here: {command[0] if command else 'no program'} is missing"
        )
    return Finding("ok", "keep awake", f"by {command[0]}")


def _login() -> Finding:
    starter = login.login_service(Home.find())
    program = starter.install[0][0]
    if shutil.which(program) is None:
        return Finding("note", "login", f"not available here: {program} is missing, a node cannot start at login")
    text = "installed" if starter.file.exists() else "not installed"
    return Finding("ok", "login", f"by {program}: {text}")


def _node(home: Path) -> Iterator[Finding]:
    """A background node with the test engine: started, queried, refused a second time, paused, stopped."""
    began = time.monotonic()
    child = subprocess.Popen(
        [*own_command(), "node", "--silo", "--quiet", *FAKE],
        env=_environment(home),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    try:
        status: Mapping[str, object] = {}
        while child.poll() is None and not status and time.monotonic() - began < START_S:
            with contextlib.suppress(ValueError):
                status = json.loads(_verb(home, "status", "--json").stdout or "{}")
        if not status:
            yield Finding("fail", "node", f"no answer after {time.monotonic() - began:.0f} s: {_last_words(child)}")
            return
        transport = "a socket file" if (home / "run" / "node.sock").is_socket() else "loopback with a token"
        yield Finding("ok", "node", f"answers after {time.monotonic() - began:.1f} s through {transport}")
        second = _verb(home, "node", "--silo", "--quiet", *FAKE)
        verdict = "ok" if second.returncode and "already" in second.stderr else "fail"
        text = "a second one is refused" if verdict == "ok" else f"a second one ended with {second.returncode}"
        yield Finding("ok" if verdict == "ok" else "fail", "one node", text)
        paused = _verb(home, "pause")
        yield Finding("fail" if paused.returncode else "ok", "pause", _line(paused))
        began = time.monotonic()
        stopped = _verb(home, "stop")
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(STOP_S)
        took = time.monotonic() - began
        ended = child.poll() == 0 and not stopped.returncode
        yield Finding("ok" if ended else "fail", "stop", f"{'gone' if ended else 'not gone'} after {took:.1f} s")
    finally:
        if child.poll() is None:
            child.kill()
        child.wait()
        if child.stderr is not None:
            child.stderr.close()


def _rounds(home: Path) -> Finding:
    """Three small rounds of the bundled model with the engine that a new run gets."""
    began = time.monotonic()
    try:
        small = ("--rounds=3", "--local-groups=2", "--group-size=4", "--max-new-tokens=32", "--eval-every=0")
        process = _verb(home, "node", "--silo", *small, "--json", limit_s=5 * VERB_S)
    except AppError as error:
        return Finding("fail", "training", str(error))
    objects = [json.loads(line) for line in process.stdout.splitlines() if line.startswith("{")]
    rounds = sum(event["covers"] for event in objects if event.get("kind") == "round")
    if process.returncode == 4:
        return Finding("note", "training", without_names(_line(process)))
    text = f"{rounds} of 3 rounds in {time.monotonic() - began:.1f} s"
    good = rounds == 3 and not process.returncode
    return Finding("ok" if good else "fail", "training", text if good else f"{text}: {without_names(_line(process))}")


def _verb(home: Path, *words: str, limit_s: float = VERB_S) -> subprocess.CompletedProcess[str]:
    """Run a command of the app to its end. Raises AppError where it takes too long."""
    try:
        return subprocess.run(
            [*own_command(), *words],
            env=_environment(home),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise AppError(f"{words[0]} took longer than {limit_s:.0f} s") from None


def _environment(home: Path) -> dict[str, str]:
    return os.environ | {"SAPO_HOME": str(home), "PYTHONIOENCODING": "utf-8"}


def _line(done: subprocess.CompletedProcess[str]) -> str:
    """The last line of its output."""
    lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
    return without_names(lines[-1].removeprefix("sapo-desktop: ") if lines else f"code {done.returncode}")


def _last_words(child: subprocess.Popen[bytes]) -> str:
    if child.poll() is None or child.stderr is None:
        return "it runs and does not answer"
    lines = child.stderr.read().decode("utf-8", "replace").strip().splitlines()
    return without_names(lines[-1] if lines else f"code {child.returncode}")


def without_names(text: str) -> str:
    """The text without home directories, so that an issue names nobody."""
    return text.replace(str(Path.home()), "~")[:400]
