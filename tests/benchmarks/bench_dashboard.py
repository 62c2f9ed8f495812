"""What the dashboard costs: its share of a core at 2 Hz and the time from a key to the paint. Prints one JSON line.

The app runs in a pseudo-terminal of 120x36 over a synthetic stream of 600 rounds, then of live rounds; keys are sent
through the terminal and answered when bytes come back. Run beside a training node to see the busy figures:

    python tests/benchmarks/bench_dashboard.py [--seconds 20] [--burn 2] [--week]

--week: the past is a run of 400,000 rounds over seven days with pauses, as its journal tells it. opened_s is then the time from
the start of the process until the last of those rounds is on the chart, history_s the part of it after the first frame.
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
import tempfile
import termios
import time
from pathlib import Path

import msgspec
import psutil

CHILD = """
import asyncio, time
from sapo_desktop.dashboard.app import SapoDashboard
from sapo_swarm.events import decode_event
import msgspec


class Live:
    controls = False
    started = time.time()

    async def events(self):
        with open({past!r}, "rb") as file:
            for line in file:
                yield decode_event(line)
        pace = 4.0 / 27  # a round of about 27 events takes 4 s
        while True:
            with open({live!r}, "rb") as file:
                for line in file:
                    await asyncio.sleep(pace)
                    yield msgspec.structs.replace(decode_event(line), time=time.time())

    async def command(self, verb, **body):
        pass

    def groups(self):
        return None

    def upto(self):
        return 0

    def describe(self):
        return "a benchmark"

    def now(self):
        return time.time()


SapoDashboard(Live()).run()
"""
WEEK = 400_000
"""Rounds."""
SHORT = 600


def write_events(folder: Path, long: bool) -> tuple[Path, Path]:
    """The past and what comes after it, an event a line: the dashboard's process makes none of it itself."""
    sys.path.insert(0, str(Path(__file__).parents[2]))
    from tests.fixtures.make_recordings import recording
    from tests.support.week_recording import week

    from sapo_swarm.events import encode_event

    stream = list(recording("swarm", 640, 3))
    shift, rounds = time.time() - 1_790_000_000.0 - 2400, WEEK if long else SHORT
    past = (
        week(WEEK)
        if long
        else [msgspec.structs.replace(e, time=e.time + shift) for e in stream if getattr(e, "round", 0) < SHORT]
    )
    live = [
        msgspec.structs.replace(e, round=e.round - SHORT + rounds) for e in stream if getattr(e, "round", 0) >= SHORT
    ]
    files = folder / "past.jsonl", folder / "live.jsonl"
    for path, events in zip(files, (past, live), strict=True):
        path.write_bytes(b"".join(encode_event(event) + b"\n" for event in events))
    return files


def burn() -> None:
    """Keeps a core busy, as a trainer would, at the node's niceness."""
    os.nice(10)
    while True:
        sum(range(100_000))


class Terminal:
    """The dashboard in a pseudo-terminal."""

    def __init__(self, columns: int, rows: int, past: Path, live: Path) -> None:
        self.master, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self.began = time.perf_counter()
        environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
        self.process = subprocess.Popen(
            [sys.executable, "-c", CHILD.format(past=str(past), live=str(live))],
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


def measure(seconds: float, past: Path, live: Path, long: bool) -> dict[str, float]:
    terminal = Terminal(120, 36, past, live)
    try:
        first = terminal.read_until(b"Held-out", 20)
        opened = {}
        if long:
            at = terminal.read_until(str(WEEK).encode(), 30)
            opening = psutil.Process(terminal.process.pid)
            spent = opening.cpu_times()
            opened = {
                "opened_s": round(at, 3),
                "history_s": round(at - first, 3),
                "opened_cpu_s": round(spent.user + spent.system, 2),
                "opened_rss_mb": round(opening.memory_info().rss / 1e6, 1),
            }
        terminal.drain(3)
        watched = psutil.Process(terminal.process.pid)
        before, painted, began = watched.cpu_times(), 0, time.perf_counter()
        painted = terminal.drain(seconds)
        after, wall = watched.cpu_times(), time.perf_counter() - began
        used = (after.user + after.system) - (before.user + before.system)
        latencies = [terminal.key_to_paint(key) for _ in range(25) for key in (b"2", b"1", b"s", b"+")]
        return {
            "first_frame_s": round(first, 3),
            **opened,
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
    parser.add_argument("--week", action="store_true", help="the past is 400,000 rounds over seven days")
    chosen = parser.parse_args()
    burners = [multiprocessing.Process(target=burn, daemon=True) for _ in range(chosen.burn)]
    for burner in burners:
        burner.start()
    try:
        with tempfile.TemporaryDirectory() as folder:
            past, live = write_events(Path(folder), chosen.week)
            print(json.dumps({"burners": chosen.burn, **measure(chosen.seconds, past, live, chosen.week)}))
    finally:
        for burner in burners:
            burner.terminate()


if __name__ == "__main__":
    main()
