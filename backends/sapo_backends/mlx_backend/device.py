"""Everything that differs between Metal and the CPU device."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import mlx.core as mx

from sapo_backends.base import BackendUnavailable, OutOfMemory
from sapo_backends.common.hardware import available_memory

CACHE_SHARE = 0.1
"""Share of Metal's working set that freed buffers may keep occupied."""


def has_metal() -> bool:
    """Whether this machine has a GPU that MLX can use."""
    return bool(mx.metal.is_available())


def pick_device(name: str) -> Any:
    """The mlx device for a LoadRequest's device; Metal is called mps there. Raises BackendUnavailable."""
    if name == "auto":
        name = "mps" if has_metal() else "cpu"
    if name not in ("cpu", "mps"):
        raise BackendUnavailable(f"MLX has no device {name!r} here.", "use --device auto, cpu or mps")
    if name == "mps" and not has_metal():
        raise BackendUnavailable("This computer has no Metal device.", "sapo-desktop node NAME --device auto")
    return mx.gpu if name == "mps" else mx.cpu


def limit_memory(device: Any) -> None:
    """On Metal: keep weights wired and bound what freed buffers hold, which otherwise grows with every new shape."""
    if device != mx.cpu:
        working_set = int(mx.device_info(device).get("max_recommended_working_set_size", 0))
        if working_set:
            mx.set_wired_limit(working_set)
            mx.set_cache_limit(int(CACHE_SHARE * working_set))


@contextlib.contextmanager
def computing(device: Any, suggestion: str) -> Iterator[None]:
    """Compute on the device; free its cached buffers afterwards and turn a failed allocation into OutOfMemory."""
    try:
        with mx.stream(device):
            yield
    except RuntimeError as error:
        text = str(error).lower()
        if "alloc" not in text and "memory" not in text:
            raise
        raise OutOfMemory(0, available_memory(), suggestion) from error
    finally:
        if device != mx.cpu:
            mx.clear_cache()
