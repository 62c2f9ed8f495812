"""What the C library's allocator does with freed memory. On systems other than glibc's all of this does nothing.

By itself glibc keeps blocks up to a size that grows with what was freed, in an arena for every few threads. That suits
neither kind of process here. An engine frees tensors and asks for as many again: given back, they are paid for again with
page faults, and what one thread freed serves no other (a node grew by 63 MB, a heap of an arena, now and then). A process
that only waits and shows, for weeks, is split up by large passing blocks between small lasting ones.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import mmap
import platform

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


def trim() -> None:
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
