"""What the kernel denies the scorer worker, tried call by call in a process that denied it to itself."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ESCAPES = """
import ctypes, os, platform, resource, signal, sys, threading
from sapo_swarm.scoring import sandbox
applied, _ = sandbox.apply_kernel_limits()
if sandbox.PHRASES[1] not in applied:
    sys.exit(77)
libc = ctypes.CDLL(None, use_errno=True)
numbers = sandbox._SYSCALLS[platform.machine()][1]
parent = os.getppid()
calls = {name: (parent, parent, 0) for name in numbers}
calls |= {"prlimit64": (parent, 7, 0), "clone": (17, 0, 0), "tkill": (parent, 0), "kill": (parent, 0)}
print(*sorted({"kill", "tkill", "tgkill", "rt_sigqueueinfo", "rt_tgsigqueueinfo", "pidfd_send_signal"} - set(numbers)), end="")
calls |= {f"{name} {number}": (0, number, parent) for name, two in sandbox._COMMANDS.items() for number in two}
numbers |= {name: numbers[name.split()[0]] for name in calls}
calls |= {"fcntl": None, "ioctl": None}  # tried with the arguments that are denied
calls |= {"vfork": None, "fork": None}  # tried as clone, which they are
for name, arguments in calls.items():
    if arguments is not None and libc.syscall(numbers[name], *map(ctypes.c_long, arguments)) != -1:
        print("let pass:", name)
    elif arguments is not None and ctypes.get_errno() not in (1, 38):
        print("not denied by the filter:", name, ctypes.get_errno())
if platform.machine() == "x86_64" and (libc.syscall(0x40000000 | 62, parent, 0) != -1 or ctypes.get_errno() != 1):
    print("let pass: the second table")
signal.pthread_kill(threading.get_ident(), 0)
resource.getrlimit(resource.RLIMIT_NOFILE)
os.set_blocking(0, True)
os.isatty(0)
thread = threading.Thread(target=print, args=("a thread works",))
thread.start()
thread.join()
"""


MARKS = """
import ctypes, os, struct, sys
from sapo_swarm.scoring import sandbox
applied, _ = sandbox.apply_kernel_limits()
if sandbox.PHRASES[1] not in applied:
    sys.exit(77)
libc = ctypes.CDLL(None, use_errno=True)
file, parent = sys.argv[1].encode(), os.getppid()
entries = struct.pack("=I" + "HHI" * 3, 2, 1, 6, 2**32 - 1, 4, 4, 2**32 - 1, 32, 4, 2**32 - 1)  # rw-, r--, r--
value = ctypes.create_string_buffer(entries, len(entries))
acl = (ctypes.c_uint64 * 2)(ctypes.addressof(value), len(entries))
tried = {
    "chmod": libc.chmod(file, 0o777), "fchmodat": libc.fchmodat(-100, file, 0o777, 0), "chown": libc.chown(file, 1, 1),
    "lchown": libc.lchown(file, 1, 1), "utimes": libc.utimes(file, None), "truncate": libc.truncate(file, ctypes.c_long(0)),
    "setxattr": libc.setxattr(file, b"user.a", b"b", ctypes.c_size_t(1), 0), "setpriority": libc.setpriority(0, parent, 19),
    "sched_setaffinity": libc.sched_setaffinity(parent, ctypes.c_size_t(8), ctypes.byref(ctypes.c_ulong(1))),
    "setxattrat": libc.syscall(463, -100, file, 0, b"system.posix_acl_access", ctypes.byref(acl), ctypes.c_size_t(16)),
    "shmget": libc.shmget(0, ctypes.c_size_t(4096), 0o1600), "semget": libc.semget(0, 1, 0o1600),
    "msgget": libc.msgget(0, 0o1600), "inotify_init": libc.inotify_init(), "inotify_init1": libc.inotify_init1(0),
    "fanotify_init": libc.fanotify_init(0x200, 0),
    "sched_setscheduler": libc.sched_setscheduler(parent, 3, ctypes.byref(ctypes.c_int(0))),
}
print(*(name for name, result in tried.items() if result != -1 or ctypes.get_errno() not in (1, 38)))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")
def test_files_keep_their_modes_and_dates_and_other_processes_their_priority(tmp_path: Path) -> None:
    """Landlock denies writing, not chmod: a key that everybody may read needs no reading by the worker. Nor does it deny to watch
    when somebody opens it."""
    file = tmp_path / "node.key"
    file.write_text("secret")
    file.chmod(0o600)
    before = file.stat()
    done = subprocess.run(
        [sys.executable, "-c", MARKS, str(file)], capture_output=True, text=True, timeout=60, check=False
    )
    if done.returncode == 77:
        pytest.skip("this kernel has no seccomp")
    assert (done.stdout.split(), done.stderr) == ([], "")
    after = file.stat()
    assert (after.st_mode, after.st_size, after.st_mtime, after.st_uid) == (
        (before.st_mode, before.st_size, before.st_mtime, before.st_uid)
    )


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")
def test_every_call_on_the_list_is_denied_and_what_the_interpreter_needs_is_not() -> None:
    """Signals go by five calls; with one of them left out, the worker could end the node that it works for."""
    done = subprocess.run([sys.executable, "-c", ESCAPES], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 77:
        pytest.skip("this kernel has no seccomp")
    assert (done.stdout, done.stderr, done.returncode) == ("a thread works\n", "", 0)


PIPE_SIGNAL = """
import ctypes, fcntl, os, sys
from sapo_swarm.scoring import sandbox
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)
if not sandbox._restrict_calls(libc):
    sys.exit(77)
reading, writing = os.pipe()
for command, value in ((8, int(sys.argv[1])), (10, 9), (4, os.O_ASYNC | os.O_NONBLOCK)):
    try:
        fcntl.fcntl(reading, command, value)
    except PermissionError:
        print("denied", command)
os.write(writing, b"x")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's limits are Linux's")
def test_a_pipe_sends_no_signal_to_another_process_though_the_kernel_is_too_old_for_landlocks_scopes() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        attack = [sys.executable, "-c", PIPE_SIGNAL, str(other.pid)]
        done = subprocess.run(attack, capture_output=True, text=True, timeout=60, check=False)
        other.communicate(b"\n", timeout=60)
    if done.returncode == 77:
        pytest.skip("this kernel has no seccomp")
    assert (done.stdout, done.stderr, other.returncode) == ("denied 8\ndenied 10\n", "", 0)
