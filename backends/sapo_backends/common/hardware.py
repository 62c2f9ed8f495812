"""What this computer offers, found without importing a numerical library: cores, memory, what a precision means on it, and
what
the C library does with freed memory.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

# What this computer offers, found without importing a numerical library.

_CGROUP = Path("/sys/fs/cgroup")
_X86_UNITS = ("amx_bf16", "avx512_bf16", "avx2")


@dataclass(frozen=True, slots=True)
class Hardware:
    """cores: physical ones this process may use. memory, available: bytes. matrix_unit: the best one for bfloat16."""

    cores: int
    memory: int
    available: int
    matrix_unit: str
    system: str

    @property
    def fast_bfloat16(self) -> bool:
        """Whether the processor has an instruction for bfloat16 products."""
        return self.matrix_unit in {"amx_bf16", "avx512_bf16", "apple"}


def physical_cores() -> int:
    """Physical cores, bounded by what the scheduler lets this process use."""
    import psutil  # not at the top: the dashboard takes `trim` from here before its first frame

    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))


def default_threads() -> int:
    """OMP_NUM_THREADS where somebody set it, else the physical cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else physical_cores()


def _cgroup_bytes(name: str) -> int | None:
    try:
        return int((_CGROUP / name).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _cached_bytes() -> int:
    """Pages of files that the container's memory holds and that give way when it is needed."""
    try:
        lines = (_CGROUP / "memory.stat").read_text(encoding="ascii").splitlines()
    except (OSError, ValueError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("inactive_file ")), 0)


def available_memory() -> int:
    """Bytes that can be allocated now, within the container's limit if there is one."""
    import psutil

    free = int(psutil.virtual_memory().available)
    limit, used = _cgroup_bytes("memory.max"), _cgroup_bytes("memory.current")
    return free if limit is None or used is None else max(0, min(free, limit - used + _cached_bytes()))


def matrix_unit() -> str:
    """The best matrix or vector unit: amx_bf16, avx512_bf16, avx2, apple, neon or unknown."""
    if platform.machine().lower() in {"arm64", "aarch64"}:
        return "apple" if platform.system() == "Darwin" else "neon"
    try:
        flags = set(Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split())
    except OSError:
        return "unknown"
    return next((unit for unit in _X86_UNITS if unit in flags), "unknown")


def c_compiler() -> str | None:
    """Where a C compiler is, if there is one. A Mac without its command line tools has a `cc` that offers to install
    them."""
    if platform.system() == "Darwin" and subprocess.run(["xcode-select", "-p"], capture_output=True).returncode:
        return None
    return next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)


def processor_name() -> str:
    """The processor's name as its maker prints it, or what the platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def detect_hardware() -> Hardware:
    """Look once; takes a few milliseconds."""
    limit = _cgroup_bytes("memory.max")
    import psutil

    total = int(psutil.virtual_memory().total)
    return Hardware(
        cores=physical_cores(),
        memory=total if limit is None else min(total, limit),
        available=available_memory(),
        matrix_unit=matrix_unit(),
        system=platform.system(),
    )


# What the name of a precision says.

FOUR_BIT = "4bit"
"""The precision of frozen weights in 4 bits; "4bit-float32" computes in float32, "4bit" in what auto would choose."""


def is_four_bit(precision: str) -> bool:
    """Whether frozen weights are stored in 4 bits."""
    return precision.partition("-")[0] == FOUR_BIT


def computes_in(precision: str) -> str:
    """The type that the torch engine computes in on this processor: float32 or bfloat16."""
    wanted = precision.removeprefix(FOUR_BIT).removeprefix("-") or "auto"
    if wanted != "auto":
        return "bfloat16" if wanted == "bfloat16" else "float32"
    return "bfloat16" if detect_hardware().fast_bfloat16 else "float32"


# What the C library's allocator does with freed memory. On systems other than glibc's all of this does nothing.
#
# By itself glibc keeps blocks up to a size that grows with what was freed, in an arena for every few threads. That suits
# neither kind of process here. An engine frees tensors and asks for as many again: given back, they are paid for again with
# page faults, and what one thread freed serves no other (a node grew by 63 MB, a heap of an arena, now and then). A process
# that only waits and shows, for weeks, is split up by large passing blocks between small lasting ones.

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
LARGEST_THRESHOLD = 32 << 20
"""The most that glibc accepts on 64-bit systems."""
PASSING = 32 << 10
"""Bytes of a block that is likely to be gone soon: a page of history, a frame of the screen."""
ACTIVATIONS = 1 << 20
"""Bytes of what a model's layer keeps of a micro-batch. Of different widths, they leave holes that fit nothing else: kept, they
made an update by transformers need up to twice the memory, and no faster."""
RETURN_EVERY_S = 60.0
"""Between two trims of a process that lives for weeks. Each takes an engine 0.16 s: 0.13 of starter-1m's 0.61 GB go back, and
rounds of 16 x 8 take as long as before. A dashboard 0.03 s: cycles that wait for longer lie between what stays."""


def one_arena() -> bool:
    """For a node, before it has threads: all share the one arena that trim() empties. With some of their own, each grows to
    its 64 MB in hours. True if the allocator took the setting."""
    return _set((M_ARENA_MAX, 1))


def keep_freed() -> bool:
    """For an engine: freed memory stays, and threads that begin later share the arenas that there are. True if the allocator
    took the settings."""
    return _set(
        (M_MMAP_THRESHOLD, LARGEST_THRESHOLD), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 16 << 20), (M_ARENA_MAX, 1)
    )


def return_freed(above: int = PASSING) -> bool:
    """For a process without an engine, and for transformers: blocks from so many bytes on go back to the system at once, and
    threads that begin later share the arenas that there are. True if the allocator took the settings."""
    return _set((M_MMAP_THRESHOLD, above), (M_ARENA_MAX, 1))


def release_free_memory() -> None:
    """Return what is free to the system, and what only cycles of Python's hold: those wait until a quarter as many objects
    are new as there are old ones. For large models, whose packed weights for decoding and whose activations do not fit into
    each other's holes; paying for the pages again takes a hundredth of a round."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def drop_pages(address: int, size: int) -> None:
    """Return the whole pages of a block whose content nobody reads any more, at once: also where free() would keep them, and
    those of a mapped file, which count as this process's memory once they were read."""
    begin, end = -(-address // mmap.PAGESIZE) * mmap.PAGESIZE, (address + size) // mmap.PAGESIZE * mmap.PAGESIZE
    if begin < end and platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), mmap.MADV_DONTNEED)


def _set(*settings: tuple[int, int]) -> bool:
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all([mallopt(name, value) == 1 for name, value in settings])
