"""Several lab runs at the same time, one process each, that end with the process that started them."""

from __future__ import annotations

import _thread
import asyncio
import os
import sys
import threading
import time
from collections.abc import Sequence

from sapo_desktop.errors import AppError

ENDS_WITH_PARENT = "--ends-with-parent"
"""The flag for a process whose standard input closes when its starter has gone, `kill -9` included."""
_GRACE_S = 10.0


async def run_all(commands: Sequence[tuple[str, Sequence[str]]], jobs: int) -> None:
    """Run (name, arguments of `python -m sapo_lab`), `jobs` at a time. Raises AppError when one fails; the others continue."""
    places, began, failed = asyncio.Semaphore(jobs), time.monotonic(), list[str]()
    finished = 0

    async def one(name: str, arguments: Sequence[str]) -> None:
        nonlocal finished
        async with places:
            process = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "sapo_lab", *arguments, ENDS_WITH_PARENT),
                stdin=asyncio.subprocess.PIPE,
                env=dict(os.environ),
            )
            if await process.wait():
                failed.append(name)
        finished += 1
        left = (time.monotonic() - began) / finished * (len(commands) - finished)
        print(f"{finished} of {len(commands)} runs finished, about {left / 60:.0f} min left", flush=True)

    await asyncio.gather(*(one(name, arguments) for name, arguments in commands))
    if failed:
        raise AppError(f"These runs failed (their messages are above): {', '.join(failed)}. Run again to go on.")


def end_with_parent() -> None:
    """From now on this process is interrupted, as by Ctrl-C, when its standard input closes."""

    def watch() -> None:
        while os.read(0, 1):
            pass
        _thread.interrupt_main()
        time.sleep(_GRACE_S)
        os._exit(130)

    threading.Thread(target=watch, name="parent", daemon=True).start()
