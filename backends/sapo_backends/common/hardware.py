"""What this computer offers, found without importing a numerical library: cores, memory, what each precision means on
it, and what the C library does with freed memory."""

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
    import psutil  # not at the top: the dashboard takes `release_free_memory` from here before its first frame

    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))


def default_threads() -> int:
    """OMP_NUM_THREADS if it is set, else the number of physical cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else physical_cores()


def _cgroup_bytes(name: str) -> int | None:
    try:
        return int((_CGROUP / name).read_text(encoding="ascii"))
    except (OSError, ValueError):  # no such file, or "max"
        return None


def _cached_bytes() -> int:
    """Bytes of page cache in the container's memory that the kernel can reclaim when memory is needed."""
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
    """Path of a C compiler, None if there is none. A Mac without command line tools has a `cc` that only offers to
    install them, so it counts as none."""
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
    """Detect the hardware; takes a few milliseconds."""
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


# Names of precisions and what they mean.

FOUR_BIT = "4bit"
"""The precision name for frozen 4-bit weights; "4bit-float32" computes in float32, "4bit" in the type that auto would
choose."""


def is_four_bit(precision: str) -> bool:
    """Whether frozen weights are stored in 4 bits."""
    return precision.partition("-")[0] == FOUR_BIT


def computes_in(precision: str) -> str:
    """The type that the torch engine computes in on this processor: float32 or bfloat16."""
    wanted = precision.removeprefix(FOUR_BIT).removeprefix("-") or "auto"
    if wanted != "auto":
        return "bfloat16" if wanted == "bfloat16" else "float32"
    return "bfloat16" if detect_hardware().fast_bfloat16 else "float32"


# What the C library's allocator does with freed memory. Without glibc all of this does nothing.
#
# By default glibc keeps freed blocks up to a size that grows with the blocks freed, in one arena for every few threads.
# That suits neither kind of process here. An engine frees tensors and soon allocates as much again: memory returned to
# the system costs page faults, and memory freed in one thread's arena is no use to another (a node now and then grew
# by 63 MB, one arena's heap). In a process that mostly waits and displays for weeks, large short-lived blocks between
# small long-lived ones fragment the heap.

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -2, -3, -8
LARGEST_THRESHOLD = 32 << 20
"""The maximum that glibc accepts on 64-bit systems."""
PASSING = 32 << 10
"""Bytes from which a block is probably short-lived: a page of history, a frame of the screen."""
ACTIVATIONS = 1 << 20
"""Bytes from which a block is probably one layer's activations of a micro-batch. These differ in width and leave holes
that fit nothing else: keeping them made updates by transformers need up to twice the memory, and no faster."""
RETURN_EVERY_S = 60.0
"""Seconds between two trims of a process that runs for weeks. A trim takes an engine 0.16 s: it returns 0.13 of
starter-1m's 0.61 GB, and rounds of 16 x 8 take as long as before. It takes a dashboard 0.03 s: garbage cycles left for
longer end up between objects that stay."""


def one_arena() -> bool:
    """For a node, before it starts threads: all threads share the one arena that release_free_memory() empties.
    Separate arenas would each grow to 64 MB within hours. True if the allocator accepted the setting."""
    return _set((M_ARENA_MAX, 1))


def keep_freed() -> bool:
    """For an engine: keep freed memory, and let threads that start later share the existing arenas. True if the
    allocator accepted the settings."""
    return _set(
        (M_MMAP_THRESHOLD, LARGEST_THRESHOLD), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 16 << 20), (M_ARENA_MAX, 1)
    )


def return_freed(above: int = PASSING) -> bool:
    """For a process without an engine, and for transformers: blocks of at least `above` bytes go back to the system as
    soon as they are freed, and threads that start later share the existing arenas. True if the allocator accepted the
    settings.
    """
    return _set((M_MMAP_THRESHOLD, above), (M_ARENA_MAX, 1))


def release_free_memory() -> None:
    """Return free memory to the system, after collecting garbage cycles: Python would leave those until new objects
    number a quarter of the old ones. For large models, whose packed decode weights and activations do not fit into
    each other's holes; the page faults afterwards cost a hundredth of a round."""
    gc.collect()
    if platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)


def drop_pages(address: int, size: int) -> None:
    """Immediately return the whole pages of a block that will not be read again: also where free() would keep them, and
    pages of a mapped file, which count as this process's memory once read."""
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
