"""What the scorer worker denies itself: memory, time, files and system calls, as far as the platform can. Defence in depth."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence
from pathlib import Path

from sapo_backends.errors import size_text

# What the Linux kernel denies the scorer worker, whoever runs it: no_new_privs, Landlock for files, seccomp for the
# rest.
#
# All by system calls through ctypes, because three of them need no package. If the kernel lacks one of them, the others
# hold, and `doctor` says which. See landlock(7), seccomp(2).

_NO_NEW_PRIVS, _SECCOMP, _FILTER = 38, 22, 2
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_READ = (1 << 2) | (1 << 3)
"""LANDLOCK_ACCESS_FS_READ_FILE, _READ_DIR."""
_FILES_BY_ABI = {1: 13, 2: 14, 3: 15, 4: 15, 5: 16}
"""Kinds of file access that each version of Landlock knows."""
_BIND_CONNECT = 0b11
_SCOPES = 0b11

_SYSCALLS = {
    "x86_64": (
        0xC000003E,
        {
            "clone": 56, "fork": 57, "vfork": 58, "execve": 59, "kill": 62, "ptrace": 101, "mount": 165, "socket": 41,
            "connect": 42, "bind": 49, "listen": 50, "keyctl": 250, "add_key": 248, "request_key": 249, "unshare": 272,
            "process_vm_readv": 310, "process_vm_writev": 311, "bpf": 321, "execveat": 322, "io_uring_setup": 425,
            "pidfd_open": 434, "clone3": 435, "socketpair": 53, "tkill": 200, "tgkill": 234, "rt_sigqueueinfo": 129,
            "rt_tgsigqueueinfo": 297, "pidfd_send_signal": 424, "pidfd_getfd": 438, "prlimit64": 302, "setns": 308,
            "perf_event_open": 298, "userfaultfd": 323, "chmod": 90, "fchmod": 91, "fchmodat": 268, "fchmodat2": 452,
            "chown": 92, "fchown": 93, "lchown": 94, "fchownat": 260, "setxattr": 188, "lsetxattr": 189, "fsetxattr": 190,
            "removexattr": 197, "lremovexattr": 198, "fremovexattr": 199, "utime": 132, "utimes": 235, "utimensat": 280,
            "futimesat": 261, "truncate": 76, "ftruncate": 77, "setpriority": 141, "sched_setparam": 142,
            "sched_setscheduler": 144, "sched_setaffinity": 203, "sched_setattr": 314, "ioprio_set": 251,
            "migrate_pages": 256, "move_pages": 279, "setxattrat": 463, "removexattrat": 466, "file_setattr": 469,
            "shmget": 29, "shmat": 30, "shmctl": 31, "shmdt": 67, "semget": 64, "semop": 65, "semctl": 66, "semtimedop": 220,
            "msgget": 68, "msgsnd": 69, "msgrcv": 70, "msgctl": 71, "mq_open": 240, "mq_unlink": 241, "fcntl": 72,
            "ioctl": 16, "inotify_init": 253, "inotify_init1": 294, "fanotify_init": 300,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "clone": 220, "execve": 221, "kill": 129, "ptrace": 117, "mount": 40, "socket": 198, "connect": 203,
            "bind": 200, "listen": 201, "keyctl": 219, "add_key": 217, "request_key": 218, "unshare": 97,
            "process_vm_readv": 270, "process_vm_writev": 271, "bpf": 280, "execveat": 281, "io_uring_setup": 425,
            "pidfd_open": 434, "clone3": 435, "socketpair": 199, "tkill": 130, "tgkill": 131, "rt_sigqueueinfo": 138,
            "rt_tgsigqueueinfo": 240, "pidfd_send_signal": 424, "pidfd_getfd": 438, "prlimit64": 261, "setns": 268,
            "perf_event_open": 241, "userfaultfd": 282, "fchmod": 52, "fchmodat": 53, "fchmodat2": 452, "fchownat": 54,
            "fchown": 55, "setxattr": 5, "lsetxattr": 6, "fsetxattr": 7, "removexattr": 14, "lremovexattr": 15,
            "fremovexattr": 16, "utimensat": 88, "truncate": 45, "ftruncate": 46, "setpriority": 140,
            "sched_setparam": 118, "sched_setscheduler": 119, "sched_setaffinity": 122, "sched_setattr": 274,
            "ioprio_set": 30, "migrate_pages": 238, "move_pages": 239, "setxattrat": 463, "removexattrat": 466,
            "file_setattr": 469, "shmget": 194, "shmat": 196, "shmctl": 195, "shmdt": 197, "semget": 190, "semop": 193,
            "semctl": 191, "semtimedop": 192, "msgget": 186, "msgsnd": 189, "msgrcv": 188, "msgctl": 187, "mq_open": 180,
            "mq_unlink": 181, "fcntl": 25, "ioctl": 29,
            "inotify_init1": 26, "fanotify_init": 262,
        },
    ),
}  # fmt: skip
"""Audit architecture, and the numbers of the denied system calls: including those that change a file's owner or a process's
priority or watch who uses which file, which Landlock does not cover, and those of named IPC."""
_COMMANDS = {"fcntl": (8, 10, 15, 1024), "ioctl": (0x40086602, 0x401C5820)}
"""The second arguments for which two calls are denied: F_SETOWN, F_SETSIG and F_SETOWN_EX, which let a pipe send any signal
to another process, F_SETLEASE; FS_IOC_SETFLAGS and FS_IOC_FSSETXATTR, a file's attributes."""
_CLONE_THREAD = 0x10000
_X32 = 0x40000000
"""Numbers from here on belong to a second table of the same calls (x86_64)."""
_LOAD, _EQUAL, _AT_LEAST, _SET, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _ERROR = 0x7FFF0000, 0x00050000

PHRASES = (
    "reads nothing but the program's own files and your tasks",
    "no programs, processes or sockets from anywhere",
)
"""Phrases for Landlock and for seccomp."""


def apply_kernel_limits(also: Sequence[Path] = ()) -> tuple[list[str], list[str]]:
    """Apply what this kernel has: (in force, missing), as phrases for `doctor`. Irreversible, for this thread and what it
    starts. On other systems than Linux everything is missing. also: folders that may be read besides the program's own: the
    person's tasks."""
    files, calls = PHRASES
    if sys.platform != "linux":
        return [], [files, calls]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        return [], [files, calls]
    applied: list[str] = []
    missing: list[str] = []
    for phrase, works in ((files, _restrict_files(libc, also)), (calls, _restrict_calls(libc))):
        (applied if works else missing).append(phrase)
    return applied, missing


def interpreter_folders() -> list[str]:
    """The folders of the interpreter and its packages. From sys.path only those that hold nothing but packages: it may name
    the current folder, or one that holds the person's own files."""
    roots = {sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix}
    places = {str(Path(root, name)) for root in roots for name in ("lib", sys.platlibdir)}
    places |= {place for place in sys.path if Path(place).name in ("site-packages", "dist-packages")}
    loaded = [module for name, module in sys.modules.items() if "." not in name]
    places |= {place for package in loaded for place in getattr(package, "__path__", ())}
    places.add(str(getattr(sys, "_MEIPASS", "")))
    return sorted(place for place in places if place and Path(place).exists())


def _restrict_files(libc: ctypes.CDLL, also: Sequence[Path]) -> bool:
    """Landlock: reading only beneath interpreter_folders() and `also`; no TCP and no signals to others if the kernel supports
    that."""
    abi = int(libc.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1))
    if abi < 1:
        return False
    rules = [(1 << _FILES_BY_ABI.get(abi, 16)) - 1]
    rules += [_BIND_CONNECT] if abi >= 4 else []
    rules += [_SCOPES] if abi >= 6 else []
    packed = struct.pack(f"={len(rules)}Q", *rules)
    ruleset = int(libc.syscall(_LANDLOCK_CREATE, packed, ctypes.c_size_t(len(packed)), 0))
    if ruleset < 0:
        return False
    try:
        for place in (*interpreter_folders(), *(str(folder) for folder in also if folder.exists())):
            _allow_reading(libc, ruleset, place)
        return int(libc.syscall(_LANDLOCK_RESTRICT, ruleset, 0)) == 0
    finally:
        os.close(ruleset)


def _allow_reading(libc: ctypes.CDLL, ruleset: int, place: str) -> None:
    handle = os.open(place, os.O_PATH | os.O_CLOEXEC)
    try:
        allowed = _READ if Path(place).is_dir() else 1 << 2
        libc.syscall(_LANDLOCK_ADD, ruleset, 1, struct.pack("=Qi", allowed, handle), 0)
    finally:
        os.close(handle)


def _restrict_calls(libc: ctypes.CDLL) -> bool:
    """seccomp: the calls of _SYSCALLS fail with EPERM. Allowed are a clone that makes a thread (clone3 sends callers to
    clone), a signal to this process itself, its own limits, and everything but _COMMANDS."""
    known = _SYSCALLS.get(platform.machine())
    if known is None:
        return False
    architecture, numbers = known
    program = [
        _line(_LOAD, 4),
        _line(_EQUAL, architecture, 1, 0),
        _line(_RETURN, _ERROR | errno.EPERM),
        _line(_LOAD, 0),
        _line(_AT_LEAST, _X32, 0, 1),
        _line(_RETURN, _ERROR | errno.EPERM),
    ]
    harmless = {"clone": (_SET, _CLONE_THREAD), "tgkill": (_EQUAL, os.getpid()), "prlimit64": (_EQUAL, 0)}
    for name, number in numbers.items():
        if name in harmless:  # decided by its first argument
            how, value = harmless[name]
            program += [_line(_EQUAL, number, 0, 4), _line(_LOAD, 16), _line(how, value, 1, 0)]
            program += [_line(_RETURN, _ERROR | errno.EPERM), _line(_RETURN, _ALLOW)]
            continue
        if commands := _COMMANDS.get(name):
            program += [_line(_EQUAL, number, 0, 2 * len(commands) + 2), _line(_LOAD, 24)]
            for command in commands:
                program += [_line(_EQUAL, command, 0, 1), _line(_RETURN, _ERROR | errno.EPERM)]
            program.append(_line(_RETURN, _ALLOW))
            continue
        code = errno.ENOSYS if name == "clone3" else errno.EPERM
        program += [_line(_EQUAL, number, 0, 1), _line(_RETURN, _ERROR | code)]
    program.append(_line(_RETURN, _ALLOW))
    code_bytes = ctypes.create_string_buffer(b"".join(program), 8 * len(program))
    header = struct.pack("=H6xQ", len(program), ctypes.addressof(code_bytes))
    return int(libc.prctl(_SECCOMP, _FILTER, header, 0, 0)) == 0


def _line(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    """One instruction of a classic BPF program (struct sock_filter)."""
    return struct.pack("=HBBI", code, if_true, if_false, value)


# What the scorer worker denies itself, as far as the platform can. Defence in depth, not a sandbox.

MEMORY_BYTES = 1536 * 2**20
OPEN_FILES = 64
_FORBIDDEN = frozenset(
    {
        "os.system", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.startfile", "os.kill",
        "os.remove", "os.rename", "os.rmdir", "os.mkdir", "os.link", "os.symlink", "os.chmod", "os.chown",
        "os.truncate", "os.putenv", "subprocess.Popen", "pty.spawn", "shutil.rmtree", "socket.__new__",
        "socket.connect", "socket.bind", "ctypes.dlopen", "webbrowser.open",
    }
)  # fmt: skip
_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND


def _deny(event: str, arguments: tuple[object, ...]) -> None:
    if event == "open":
        mode, flags = arguments[1], arguments[2]
        writes = isinstance(flags, int) and flags & _WRITING
        if writes or (isinstance(mode, str) and set(mode) & set("wax+")):
            raise PermissionError("The scorer worker writes no files.")
    elif event in _FORBIDDEN:
        raise PermissionError(f"The scorer worker does not call {event}.")


def apply_limits(memory_bytes: int = MEMORY_BYTES, readable: Sequence[Path] = ()) -> tuple[list[str], list[str]]:
    """Apply every limit that this platform has: (in force, missing), as phrases for `doctor`. Irreversible.

    readable: folders besides the program's own files.
    """
    applied: list[str] = []
    missing: list[str] = []
    for phrase, name, value in (
        (f"memory {size_text(memory_bytes)}", "RLIMIT_AS", memory_bytes),
        ("no file contents written", "RLIMIT_FSIZE", 0),
        (f"{OPEN_FILES} open files", "RLIMIT_NOFILE", OPEN_FILES),
        ("no core dumps", "RLIMIT_CORE", 0),
    ):
        (applied if _limit(name, value) else missing).append(phrase)
    kernel, absent = apply_kernel_limits(readable)
    applied, missing = applied + kernel, missing + absent
    sys.addaudithook(_deny)
    applied.append("no writing, processes or sockets from Python")
    return applied, missing


def _limit(name: str, value: int) -> bool:
    try:
        import resource
    except ImportError:  # Windows
        return False
    try:
        resource_id = getattr(resource, name)
        hard = resource.getrlimit(resource_id)[1]
        ceiling = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(resource_id, (ceiling, ceiling))
    except (AttributeError, OSError, ValueError):  # macOS has no working RLIMIT_AS
        return False
    return True
