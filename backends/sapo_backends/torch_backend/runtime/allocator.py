"""Settings of the C allocator that keep large tensors' memory in the process between micro-batches.

glibc gives blocks above a threshold back to the system at once, and every next tensor of that size is paid for again
with page faults. On other systems this does nothing.
"""

from __future__ import annotations

import contextlib
import ctypes
import platform

M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD = -1, -2, -3
LARGEST_THRESHOLD = 32 << 20
"""The most that glibc accepts on 64-bit systems."""


def keep_memory() -> bool:
    """True if the allocator took the settings."""
    if platform.libc_ver()[0] != "glibc":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    settings = ((M_MMAP_THRESHOLD, LARGEST_THRESHOLD), (M_TRIM_THRESHOLD, 1 << 30), (M_TOP_PAD, 16 << 20))
    return all([mallopt(name, value) == 1 for name, value in settings])


def release_free_memory() -> None:
    """Return what is free to the system. For large models, whose packed weights for decoding and whose activations do
    not fit into each other's holes; paying for the pages again takes a hundredth of a round."""
    if platform.libc_ver()[0] == "glibc":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
