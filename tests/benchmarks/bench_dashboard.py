"""What the dashboard costs: its share of a core at 2 Hz and the time from a key to the paint. Prints one JSON line.

The app runs in a pseudo-terminal of 120x36 over a synthetic stream of 600 rounds, then of live rounds; keys are sent
through the terminal and answered when bytes come back. Run beside a training node to see the busy figures:

    python tests/benchmarks/bench_dashboard.py [--seconds 20] [--burn 2]
"""

from __future__ import annotations

import argparse
import fcntl
import json
import multiprocessing
import os
import pty
import select
import struct
import subprocess
import sys
import termios
import time
from pathlib import Path

import psutil

CHILD = """
import asyncio, sys, time
sys.path.insert(0, {root!r})
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_swarm.events import Evaluated, GroupRecorded, Phase, Vitals
import msgspec


class Live:
    controls = False
    started = time.time()

    async def events(self):
        from tests.fixtures.make_recordings import recording
        shift = time.time() - 1_790_000_000.0
        stream = list(recording("swarm", 640, 3))
        past = [e for e in stream if getattr(e, "round", 0) < 600]
        for event in past:
            yield msgspec.structs.replace(event, time=event.time + shift - 2400)
        live = [e for e in stream if getattr(e, "round", 0) >= 600]
        pace = 4.0 / 27  # a round of about 27 events takes 4 s
        while True:
            for event in live:
                await asyncio.sleep(pace)
                yield msgspec.structs.replace(event, time=time.time())

    async def command(self, verb, **body):
        pass

    def describe(self):
        return "a benchmark"

    def now(self):
        return time.time()


SapoDashboard(Live()).run()
"""


def burn() -> None:
    """Keeps a core busy, as a trainer would, at the node's niceness."""
    os.nice(10)
    while True:
        sum(range(100_000))


class Terminal:
    """The dashboard in a pseudo-terminal."""

    def __init__(self, columns: int, rows: int) -> None:
        root = Path(__file__).parents[2]
        self.master, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.began = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(root=str(root))],
            stdin=follower,
            stdout=follower,
            stderr=follower,  # Textual paints through stderr
            env=environment,
            start_new_session=True,
        )
        os.close(follower)

    def read(self, timeout: float) -> bytes:
        """What was painted, b"" when nothing was within the timeout."""
        ready, _, _ = select.select([self.master], [], [], timeout)
        return os.read(self.master, 1 << 20) if ready else b""

    def read_until(self, wanted: bytes, timeout: float) -> float:
        """Seconds since the start of the process until the bytes were painted."""
        seen = b""
        deadline = time.perf_counter() + timeout
        while time.perf_counter() < deadline:
            seen = seen[-1000:] + self.read(0.05)
            if wanted in seen:
                return time.perf_counter() - self.began
        raise TimeoutError(f"{wanted!r} was not painted within {timeout} s")

    def drain(self, seconds: float) -> int:
        """Read for so long; the number of bytes painted."""
        total, deadline = 0, time.perf_counter() + seconds
        while (left := deadline - time.perf_counter()) > 0:
            total += len(self.read(min(left, 0.05)))
        return total

    def key_to_paint(self, key: bytes) -> float:
        """Seconds from the key to the first bytes painted after it, in a quiet moment between two ticks."""
        while self.read(0.03):
            pass
        began = time.perf_counter()
        os.write(self.master, key)
        self.read(2.0)
        return time.perf_counter() - began


def percentile(values: list[float], share: float) -> float:
    return sorted(values)[min(int(share * len(values)), len(values) - 1)]


def measure(seconds: float) -> dict[str, float]:
    terminal = Terminal(120, 36)
    try:
        first = terminal.read_until(b"Held-out", 20)
        terminal.drain(3)
        watched = psutil.Process(terminal.process.pid)
        before, painted, began = watched.cpu_times(), 0, time.perf_counter()
        painted = terminal.drain(seconds)
        after, wall = watched.cpu_times(), time.perf_counter() - began
        used = (after.user + after.system) - (before.user + before.system)
        latencies = [terminal.key_to_paint(key) for _ in range(25) for key in (b"2", b"1", b"s", b"+")]
        return {
            "first_frame_s": round(first, 3),
            "cpu_percent": round(100 * used / wall, 2),
            "bytes_per_s": round(painted / wall),
            "key_to_paint_p50_ms": round(1000 * percentile(latencies, 0.5), 1),
            "key_to_paint_p95_ms": round(1000 * percentile(latencies, 0.95), 1),
            "rss_mb": round(watched.memory_info().rss / 1e6, 1),
        }
    finally:
        terminal.process.terminate()
        terminal.process.wait()
        os.close(terminal.master)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--burn", type=int, default=0, help="processes that keep a core busy meanwhile")
    chosen = parser.parse_args()
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(chosen.burn)]
    for burner in burners:
        burner.start()
    try:
        print(json.dumps({"burners": chosen.burn, **measure(chosen.seconds)}))
    finally:
        for burner in burners:
            burner.terminate()


if __name__ == "__main__":
    main()
