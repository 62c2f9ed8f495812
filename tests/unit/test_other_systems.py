"""Windows and macOS are not here: what can be held without them is that nothing is imported that they lack."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
UNIX_ONLY = ("fcntl", "resource", "termios", "pty", "tty", "pwd", "grp")
BEHIND_A_CHECK = {
    "app/sapo_desktop/paths.py": "whose home directory it is",
    "app/sapo_desktop/services/nodes/supervisor.py": "one lock a home: msvcrt on Windows",
    "app/sapo_desktop/dashboard/app.py": "a terminal that hangs up",
    "backends/sapo_backends/checkpoints/inspection.py": "how a child that inspects a model ended",
    "backends/sapo_backends/child_process.py": "the memory and time of that child",
    "backends/sapo_backends/measure/probe.py": "the peak memory of a child",
    "swarm/sapo_swarm/coordinator/listener.py": "how many connections the system allows",
    "swarm/sapo_swarm/node/governor/machine.py": "a wall for the memory of the node",
    "swarm/sapo_swarm/whole_file.py": "past the drive's cache, on macOS",
    "swarm/sapo_swarm/scoring/sandbox.py": "the memory and time of the scorer worker",
}
"""The modules that may name one of these, each inside a function or behind a check of the platform, and for what."""

WINDOWS = f"""
for name in {UNIX_ONLY!r}:
    sys.modules[name] = None                         # importing it raises ImportError
for module, gone in ((os, "getuid geteuid fork nice sched_getaffinity killpg getpgid O_NOFOLLOW O_NONBLOCK O_PATH"),
                     (signal, "SIGHUP SIGPROF SIGALRM SIGKILL setitimer"), (socket, "AF_UNIX")):
    for name in gone.split():
        if hasattr(module, name):
            delattr(module, name)
sys.modules["msvcrt"] = types.ModuleType("msvcrt")
sys.platform = "win32"
"""
MACOS = """
for module, gone in ((os, "sched_getaffinity sched_setaffinity O_PATH pidfd_open memfd_create posix_fadvise"),
                     (resource, "prlimit"), (time, "CLOCK_BOOTTIME"), (signal, "pidfd_send_signal sigtimedwait")):
    for name in gone.split():
        if hasattr(module, name):
            delattr(module, name)
sys.platform = "darwin"
"""
"""What these systems lack that Linux has."""

SCRIPT = """
import importlib, os, pkgutil, resource, signal, socket, sys, time, types
import sapo_assets, sapo_backends, sapo_desktop, sapo_swarm
FLOORS = (sapo_assets, sapo_backends, sapo_desktop, sapo_swarm)
names = [f.__name__ for f in FLOORS]
names += [m.name for f in FLOORS for m in pkgutil.walk_packages(f.__path__, f.__name__ + ".")]
names = [n for n in names if not n.endswith("__main__") and ".models." not in n.partition("sapo_assets")[2]]
def every():
    failed = []
    for name in names:
        try:
            importlib.import_module(name)
        except ImportError as error:
            failed.append((name, error.name or "", str(error)))
    return failed
before = {name for name, _, _ in every()}            # an optional engine that is not installed here; libraries are loaded now
for name in [n for n in sys.modules if n.split(".")[0] in {f.__name__ for f in FLOORS}]:
    del sys.modules[name]
for system in SYSTEMS:
    child = os.fork()
    if child == 0:
        exec(system)
        for name, missing, why in every():
            if name not in before:
                print(sys.platform, name, why)
        sys.stdout.flush()
        os._exit(0)
    os.waitpid(child, 0)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="forks")
def test_every_module_is_imported_on_windows_and_macos_which_lack_what_linux_has() -> None:
    script = SCRIPT.replace("SYSTEMS", repr((WINDOWS, MACOS)))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_modules_of_unix_are_named_in_a_few_places_only() -> None:
    named = set()
    for floor in ("app", "swarm", "backends", "assets"):
        for path in (ROOT / floor).rglob("*.py"):
            lines = [line.strip() for line in path.read_text("utf-8").splitlines()]
            if any(line.startswith((f"import {name}", f"from {name} ")) for line in lines for name in UNIX_ONLY):
                named.add(path.relative_to(ROOT).as_posix())
    assert named == set(BEHIND_A_CHECK)
