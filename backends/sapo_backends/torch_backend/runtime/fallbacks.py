"""Fast paths that may be missing: left out on purpose, or fallen back from, which is logged and never silent.

SAPO_WITHOUT, a comma-separated list of names of `PATHS`, leaves some out: for bug reports, and for
tests/benchmarks/paths.py, which measures what each is worth. Read once, when this module is imported.
"""

from __future__ import annotations

import logging
import os

LOG = logging.getLogger(__name__)
PATHS = {
    "own": "this package's own decoder",
    "native": "the compiled C kernels",
    "onednn": "oneDNN's packed bfloat16 weights",
    "torchscript": "TorchScript",
    "cuda-graph": "CUDA graphs",
}
"""Name -> what it is."""
LEFT_OUT = frozenset(filter(None, os.environ.get("SAPO_WITHOUT", "").split(",")))
_FOUND: dict[str, str] = {}


def is_left_out(name: str) -> bool:
    """Whether SAPO_WITHOUT lists that path."""
    return name in LEFT_OUT


def fall_back(name: str, reason: str) -> None:
    """Note, and log once a process, that a path which should run here does not."""
    if name not in _FOUND:
        _FOUND[name] = reason
        LOG.warning("Slower than it could be: %s cannot be used here (%s).", PATHS[name], reason)


def fallbacks() -> dict[str, str]:
    """Name -> reason of what fell back in this process so far."""
    return dict(_FOUND)
