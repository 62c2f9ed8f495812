"""What this computer offers, found without importing a numerical library."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import psutil

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


def cores() -> int:
    """Physical cores, bounded by what the scheduler lets this process use."""
    physical = psutil.cpu_count(logical=False) or os.cpu_count() or 1
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else physical
    return max(1, min(physical, allowed))


def default_threads() -> int:
    """OMP_NUM_THREADS where somebody set it, else the physical cores."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    return int(wanted) if wanted.isdecimal() and int(wanted) > 0 else cores()


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


def processor() -> str:
    """The processor's name as its maker prints it, or what the platform says."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    return named or platform.processor() or platform.machine()


def detect() -> Hardware:
    """Look once; takes a few milliseconds."""
    limit = _cgroup_bytes("memory.max")
    total = int(psutil.virtual_memory().total)
    return Hardware(
        cores=cores(),
        memory=total if limit is None else min(total, limit),
        available=available_memory(),
        matrix_unit=matrix_unit(),
        system=platform.system(),
    )
