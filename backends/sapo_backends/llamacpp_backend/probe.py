"""One decode in a child process before llama.cpp is used in ours: where a kernel crashes, only the child dies.

Known case: quantised weights with repacked buffers on processors with AMX (llama-cpp-python 0.3.36, gcc 12).
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

from sapo_backends.base import BackendUnavailable
from sapo_backends.common import hardware

SECONDS = 120
"""After this the probe counts as hung."""
TOKENS, ROWS = 48, 3


def decode_once(path: str, threads: int) -> None:
    """Compute a prompt and one step of several rows, the shapes that generation uses."""
    from sapo_backends.llamacpp_backend.generation import prefill
    from sapo_backends.llamacpp_backend.native import F16, Context, Model

    model = Model(Path(path))
    context = Context(model, 256, ROWS, 64, threads, F16)
    prefill(context, 0, [i % model.vocabulary for i in range(TOKENS)])
    for row in range(1, ROWS):
        context.share(0, row)
    context.decode([1] * ROWS, [TOKENS] * ROWS, range(ROWS), [True] * ROWS)
    context.close()
    model.close()


def _run(path: Path, threads: int) -> int | None:
    """Exit code of decode_once in a child, None when it hangs."""
    call = f"from {__name__} import decode_once; import sys; decode_once(sys.argv[1], int(sys.argv[2]))"
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", call, str(path), str(threads)],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return None
    return done.returncode


def require_working(path: Path, kind: str, architecture: str, threads: int, cache: Path) -> None:
    """Raise BackendUnavailable unless a decode survives; a success is remembered in `cache` for this machine and processor."""
    state = f"{version('llama-cpp-python')} {kind} {architecture} {hardware.processor()} {platform.node()}"
    marker = cache / f"probed-{hashlib.sha256(state.encode()).hexdigest()[:16]}"
    if marker.is_file() or getattr(sys, "frozen", False):  # a bundle's executable is the app and runs no code of ours
        return
    code = _run(path, threads)
    if code != 0:
        how = "hangs" if code is None else f"crashes (code {code})"
        raise BackendUnavailable(
            f"llama.cpp {how} on this computer with {kind} weights.", "use --precision float16, or --trainer torch"
        )
    cache.mkdir(parents=True, exist_ok=True)
    marker.touch()
