"""From the command to text that a person can read: seconds and processor seconds of `sapo-desktop`, and where they go.

    python tests/benchmarks/first_text.py [--runs 5] [--no-tmux]

The app starts in a pseudo-terminal of 120x36 and of 80x24 whose answers to Textual's questions come as a real one's do, and in
tmux, where its command is typed into a shell: with a fresh home, and with one that has a model. "text" is the first screen with
LETTERS letters on it, "questions" the first one that asks something (a fresh home only). On a busy machine the processor seconds
and the minimum tell more than the median; the load is printed beside them. Prints a line of JSON for each, then the shares.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import pty
import re
import select
import shlex
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

import psutil
import pyte

SIZES = ((120, 36), (80, 24))
LETTERS = 20
LIMIT_S = 60.0
APP = (sys.executable, "-m", "sapo_desktop")
IMPORTED = re.compile(rb"import time:\s+(\d+) \|\s+\d+ \|\s+([\w.]+)")
STAGES = """
import sys, time
marks = [("interpreter", time.process_time())]
def mark(name): marks.append((name, time.process_time()))
import sapo_desktop.cli, sapo_desktop.commands.nodes.dashboard
mark("imports of the command line")
from textual.app import App
mark("imports of Textual")
from sapo_desktop.dashboard.app import SapoDashboard
import sapo_desktop.dashboard.screens.dashboard, sapo_desktop.services.nodes.supervisor
mark("imports of the dashboard")
run, out = SapoDashboard.run, sys.argv[1]
def running(app):
    mark("arguments, home and settings")
    return run(app)
def first(app):
    mark("styles, layout and the first frame")
    before = 0.0
    with open(out, "w") as file:
        for name, at in marks:
            print(name, round(at - before, 4), sep="\\t", file=file)
            before = at
    app.exit(None)
SapoDashboard.run, SapoDashboard._first_frame_is_out = running, first
sapo_desktop.cli.run_command_line([])
"""
"""The app, whose first frame writes what each stage before it took of the processor."""


def environment(home: Path) -> dict[str, str]:
    """As a person's shell has it: bytecode is kept, and the terminal has colours."""
    kept = {name: value for name, value in os.environ.items() if name not in ("PYTHONDONTWRITEBYTECODE", "NO_COLOR")}
    return {**kept, "SAPO_HOME": str(home), "TERM": "xterm-256color", "COLORTERM": "truecolor", "LANG": "C.UTF-8"}


def answers(asked: bytes) -> bytes:
    """What a terminal answers: its attributes, that it knows no such mode, where its cursor is."""
    modes = b"".join(b"\x1b[?" + mode + b";0$y" for mode in re.findall(rb"\x1b\[\?(\d+)\$p", asked))
    return modes + (b"\x1b[?62;22c" if b"\x1b[c" in asked else b"") + (b"\x1b[1;1R" if b"\x1b[6n" in asked else b"")


def readable(text: str) -> bool:
    return sum(character.isalpha() for character in text) >= LETTERS


class Terminal:
    """A program in a pseudo-terminal. read() gives what came within 50 ms and answers what was asked."""

    def __init__(self, command: tuple[str, ...], home: Path, columns: int, rows: int, replies: bool = True) -> None:
        self._master, follower = pty.openpty()
        fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
        self._screen = pyte.Screen(columns, rows)
        self._stream, self._replies = pyte.ByteStream(self._screen), replies
        self._began = time.perf_counter()
        self.process = psutil.Popen(
            command, env=environment(home), stdin=follower, stdout=follower, stderr=follower, start_new_session=True
        )
        os.close(follower)

    @property
    def text(self) -> str:
        return "\n".join(self._screen.display)

    def read(self) -> bytes:
        if not select.select([self._master], [], [], 0.05)[0]:
            return b""
        try:
            data = os.read(self._master, 1 << 16)
        except OSError:  # the program has ended
            return b""
        if self._replies and (said := answers(data)):
            os.write(self._master, said)
        self._stream.feed(data)
        return data

    def until(self, wanted: str) -> tuple[float, float]:
        """(seconds, processor seconds) since the start until text can be read, or the wanted words stand there."""
        while time.perf_counter() - self._began < LIMIT_S and self.process.poll() is None:
            self.read()
            if wanted in self.text and readable(self.text):
                spent = self.process.cpu_times()
                return time.perf_counter() - self._began, spent.user + spent.system
        raise TimeoutError(f"No {wanted or 'text'!r}, but:\n{self.text}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self._master)


@contextmanager
def fresh_home(model: bool) -> Iterator[Path]:
    """A home where nothing was done yet, or one with a model. The node that the dashboard starts there is stopped."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        if model:
            subprocess.run([*APP, "new", "my-model", "--base", "starter"], env=environment(home), check=True, stdout=-3)
            subprocess.run([*APP, "config", "set", "ui.glyphs", "auto"], env=environment(home), check=True, stdout=-3)
        try:
            yield home
        finally:
            if model:
                subprocess.run([*APP, "stop"], env=environment(home), check=False, stdout=-3, stderr=-3)


def in_pty(size: tuple[int, int], model: bool, replies: bool = True) -> dict[str, float]:
    with fresh_home(model) as home:
        terminal = Terminal(APP, home, *size, replies)
        try:
            text_s, text_cpu_s = terminal.until("")
            if model:
                return {"text_s": text_s, "text_cpu_s": text_cpu_s}
            questions_s, questions_cpu_s = terminal.until("Welcome")
            return {
                **{"text_s": text_s, "text_cpu_s": text_cpu_s},
                **{"questions_s": questions_s, "questions_cpu_s": questions_cpu_s},
            }
        finally:
            terminal.close()


def in_tmux(size: tuple[int, int], model: bool) -> dict[str, float]:
    """The command typed into a shell of tmux; the screen is looked at again and again."""
    with fresh_home(model) as home, tempfile.TemporaryDirectory() as folder:

        def tmux(*arguments: str) -> str:
            command = ["tmux", "-f", os.devnull, "-S", f"{folder}/tmux", *arguments]
            return subprocess.run(command, env=environment(home), check=True, capture_output=True, text=True).stdout

        tmux("new-session", "-d", "-x", str(size[0]), "-y", str(size[1]), "env PS1=ready: sh")
        try:
            while "ready:" not in tmux("capture-pane", "-p"):
                time.sleep(0.01)
            line = f"clear; {shlex.join(APP)}"
            tmux("send-keys", "-l", line)
            began = time.perf_counter()
            tmux("send-keys", "Enter")
            while time.perf_counter() - began < LIMIT_S:
                shown = tmux("capture-pane", "-p")
                if readable(shown) and "sapo_desktop" not in shown:
                    return {"text_s": time.perf_counter() - began}
                time.sleep(0.02)  # each look starts a process, which takes from what is measured
            raise TimeoutError(shown)
        finally:
            tmux("kill-server")


def shares() -> dict[str, dict[str, float]]:
    """Processor seconds of each stage (the least of three), milliseconds of import of each package, and whether the first frame
    waits for what the terminal answers."""
    stages: dict[str, float] = {}
    for _ in range(3):
        with fresh_home(False) as home:
            out = home / "stages.txt"
            terminal = Terminal((sys.executable, "-c", STAGES, str(out)), home, *SIZES[0])
            while terminal.process.poll() is None:
                terminal.read()
            terminal.close()
            for line in out.read_text().splitlines():
                name, _, seconds = line.partition("\t")
                stages[name] = min(float(seconds), stages.get(name, LIMIT_S))
    packages: Counter[str] = Counter()
    with fresh_home(False) as home:
        terminal = Terminal((sys.executable, "-X", "importtime", *APP[1:]), home, *SIZES[0])
        seen = b""
        while b"Held-out" not in seen and terminal.process.poll() is None:
            seen += terminal.read()
        terminal.close()
    for spent, module in IMPORTED.findall(seen):
        packages[module.partition(b".")[0].decode()] += int(spent)
    answered = min(in_pty(SIZES[0], False)["text_s"] for _ in range(3))
    silent = min(in_pty(SIZES[0], False, replies=False)["text_s"] for _ in range(3))
    return {
        "stages_cpu_s": stages,
        "imports_ms": {name: round(spent / 1000, 1) for name, spent in packages.most_common(12)},
        "terminal_s": {"answers": round(answered, 3), "is silent": round(silent, 3)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--no-tmux", action="store_true")
    chosen = parser.parse_args()
    in_pty(SIZES[0], False)  # compiles what was not compiled yet, and brings the files into memory
    for size in SIZES:
        for model in (False, True):
            for name, measure in (("pty", in_pty), *(() if chosen.no_tmux else (("tmux", in_tmux),))):
                runs = [measure(size, model) for _ in range(chosen.runs)]
                figures = {
                    key: {
                        "median": round(median(run[key] for run in runs), 3),
                        "min": round(min(run[key] for run in runs), 3),
                    }
                    for key in runs[0]
                }
                where = {"terminal": name, "size": f"{size[0]}x{size[1]}", "home": "a model" if model else "fresh"}
                print(json.dumps({**where, **figures, "load": round(os.getloadavg()[0], 1)}), flush=True)
    print(json.dumps(shares(), indent=1))


if __name__ == "__main__":
    main()
