"""A coordinator, two training nodes and a dashboard for hours, with a fault every minute.

    python tests/benchmarks/soak.py [--minutes 120] [--model starter-1m] [--log soak.jsonl]
    python tests/benchmarks/soak.py --report soak.jsonl

In the first twenty minutes processes are killed with -9 in turns and started again; later all live, so that growth can be seen,
and are stopped (SIGSTOP) for a while, alone or all together as in a suspend, paused, and cut off from each other. A paused
node returns what is free, so what it holds at the end of a pause is what it keeps (kind "rest"). A probe shares a group
every 3 s; after each kill of the coordinator what was acknowledged to it in the last 2 minutes is looked for in the store.
Every line of the log is a sample or a fault, so an interrupted soak can be reported too. Memory in MB, slopes in MB an
hour; anonymous: without the pages of files (a machine may drop those of torch's libraries and read them again).
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import signal
import socket
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections import deque
from itertools import cycle
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import aiohttp  # noqa: E402
import psutil  # noqa: E402
from tests.support.node_process import CALM, answers, environment, sapo  # noqa: E402
from tests.support.simulated_nodes import SimNode, open_session  # noqa: E402
from tests.support.soak_report import report  # noqa: E402
from tests.support.swarm_process import journal, rounds  # noqa: E402
from tests.support.terminal import terminal  # noqa: E402

from sapo_swarm.node.control_api import ControlClient  # noqa: E402
from sapo_swarm.protocol.invite import Invite, parse_invite  # noqa: E402
from sapo_swarm.protocol.wire import RoundReply, Upload, decode_message, group_id  # noqa: E402

SAMPLE_S = 5.0
"""Between two samples."""
KILLED_S = 1200.0
"""So long, and for a quarter of a short soak, processes are killed; after that they all live."""


class Soak:
    """The processes, by name, and the log."""

    def __init__(self, folder: Path, model: str, log: Path) -> None:
        self.folder, self.model, self.log = folder, model, log
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.began = time.monotonic()
        self.acknowledged: deque[tuple[float, bytes]] = deque()
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def write(self, kind: str, **facts: Any) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"t": round(time.monotonic() - self.began, 1), "kind": kind, **facts}) + "\n")

    def home(self, name: str) -> Path:
        home = self.folder / name
        if not home.exists():
            home.mkdir()
            (home / "config.toml").write_text(CALM.replace("nice = 0", "nice = 10"), "utf-8")
        return home

    def start(self, name: str, *arguments: str) -> None:
        """`sapo-desktop …` in a home of its own; what it prints is kept."""
        home = self.home(name)
        with (home / "out.txt").open("ab") as out:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "sapo_desktop", *arguments],
                env=environment(home),
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )

    def coordinator(self) -> None:
        flags = f"--port {self.port} --invite-uses 0 --round-every-s 0.5 --groups-per-node 64"
        self.start("host", "coordinator", *flags.split())

    def node(self, name: str, invite: str) -> None:
        flags = ("--trainer", "fake") if self.model.startswith("fake") else ("--threads", "1", "--eval-every", "200")
        self.start(name, "node", "--quiet", "--model", self.model, *flags, "--join", invite)

    async def invite(self) -> Invite:
        """As the coordinator prints it."""
        while True:
            text = (self.folder / "host" / "out.txt").read_text("utf-8", "replace")
            for word in text.replace("'", " ").split():
                if word.startswith("sapo://"):
                    self.line = word
                    return parse_invite(word)
            await asyncio.sleep(0.2)

    async def ready(self) -> None:
        """The coordinator listens again."""
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.close()
                return
            await asyncio.sleep(0.2)

    async def probe(self, invite: Invite) -> None:
        """A member that shares a group every 3 s and remembers what was acknowledged."""
        async with open_session(invite, 1) as session:
            player = SimNode(session, invite, 1, 1)
            await player.join()
            while True:
                path, body, headers = player.prepare()
                # the coordinator is away now and then: that is what the soak is for
                with contextlib.suppress(aiohttp.ClientError, TimeoutError):
                    async with session.put(path, data=body, headers=headers) as response:
                        content = await response.read()
                    if response.status == 200:
                        pairs = list(
                            zip(
                                decode_message(body, Upload).groups,
                                decode_message(content, RoundReply).results,
                                strict=True,
                            )
                        )
                        now = time.monotonic()
                        self.acknowledged.extend((now, group_id(g.body)) for g, result in pairs if result.accepted)
                        refused = sorted({result.reason for _, result in pairs if not result.accepted})
                    else:
                        refused = [f"status {response.status}: {content[:200]!r}"]
                    if refused:
                        self.write("refused", reasons=refused)
                while self.acknowledged and self.acknowledged[0][0] < time.monotonic() - 120:
                    self.acknowledged.popleft()
                await asyncio.sleep(3)

    def stored(self) -> set[bytes]:
        path = self.folder / "host" / "data" / "swarm.sqlite"
        with contextlib.closing(sqlite3.connect(path)) as db:
            return {row[0] for row in db.execute("SELECT id FROM groups")}

    async def sample(self) -> None:
        while True:
            self.measure("sample", *self.processes)
            await asyncio.sleep(SAMPLE_S)

    def measure(self, kind: str, *names: str) -> None:
        """What these processes hold now, as lines of the log."""
        for name in names:
            with contextlib.suppress(psutil.Error):
                found = psutil.Process(self.processes[name].pid)
                if found.status() != psutil.STATUS_ZOMBIE:
                    children = sum(child.memory_info().rss for child in found.children(recursive=True))
                    memory = found.memory_info()
                    anonymous = memory.rss - getattr(memory, "shared", 0)
                    self.write(
                        kind, name=name, pid=found.pid, rss=memory.rss, anonymous=anonymous, children=children,
                        files=found.num_fds(),
                    )  # fmt: skip

    async def kill_coordinator(self) -> None:
        """kill -9, and again after 5 s; nothing acknowledged may be missing."""
        await self.end("host")
        before = {name for _, name in list(self.acknowledged)}
        self.write("check", acknowledged=len(before), lost=len(before - await asyncio.to_thread(self.stored)))
        await asyncio.sleep(5)
        self.coordinator()
        await self.ready()

    async def kill_node(self) -> None:
        """kill -9 of the second node."""
        await self.end("second")
        self.node("second", self.line)

    async def end(self, name: str) -> None:
        self.processes[name].kill()
        await asyncio.to_thread(self.processes[name].wait)

    async def stop(self, *names: str, seconds: float = 20.0) -> None:
        """SIGSTOP for a while; all at once is a suspend."""
        for sign in (signal.SIGSTOP, signal.SIGCONT):
            for name in names:
                self.processes[name].send_signal(sign)  # one that ended is told of, and ends no soak
            if sign is signal.SIGSTOP:
                await asyncio.sleep(seconds)

    async def pause(self) -> None:
        """A person pauses the nodes and goes on."""
        nodes = ("first", "second")
        for verb in ("pause", "resume"):
            for name in nodes:
                done = await asyncio.to_thread(sapo, self.home(name), verb)
                if done.returncode:
                    self.write("trouble", verb=verb, said=(done.stdout + done.stderr)[-300:])
            await asyncio.sleep(10)
            if verb == "pause":
                self.measure("rest", *nodes)

    async def faults(self, minutes: float) -> None:
        killing = cycle((self.kill_coordinator, self.kill_node))
        names = ("host", "first", "second", "dashboard")
        living = cycle(
            (
                lambda: self.stop("host"),
                lambda: self.stop("first"),
                self.pause,
                lambda: self.stop("dashboard"),
                lambda: self.stop("second"),
                lambda: self.stop(*names, seconds=30.0),
            )
        )
        number = 0
        while (at := time.monotonic() - self.began) < 60 * minutes:
            number += 1
            await asyncio.sleep(max(60 * number - at, 0))
            early = at < min(KILLED_S, 15 * minutes)
            fault = next(killing) if early else next(living)
            self.write("fault", number=number, killing=early)
            await fault()
            for name, process in self.processes.items():
                if process.poll() is not None:
                    self.write("trouble", name=name, ended=process.returncode)

    async def run(self, minutes: float) -> None:
        self.coordinator()
        invite = await self.invite()
        await self.ready()
        for name in ("first", "second"):
            self.node(name, self.line)
            async with ControlClient(self.home(name) / "run" / "node.sock") as client:
                await answers(client, self.processes[name])
        async with terminal(self.home("first"), [sys.executable, "-m", "sapo_desktop"]) as screen:
            self.processes["dashboard"] = screen.process
            beside = [asyncio.create_task(self.sample()), asyncio.create_task(self.probe(invite))]
            try:
                await self.faults(minutes)
            finally:
                for task in beside:
                    task.cancel()
                self.write("screen", text=screen.text())
                for name in ("first", "second"):
                    await asyncio.to_thread(sapo, self.home(name), "stop")
        self.processes["host"].terminate()
        for name in ("first", "second"):
            events = journal(self.home(name))
            numbers = [event.round for event in rounds(events)]
            told = sum(event.covers for event in rounds(events))
            disk = sum(path.stat().st_size for path in self.home(name).rglob("*") if path.is_file())
            self.write("node", name=name, rounds=numbers[-1] + 1, told=told, disk=disk)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--log", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--report", type=Path)
    args = parser.parse_args()
    if not args.report:
        args.log.unlink(missing_ok=True)
        with tempfile.TemporaryDirectory() as folder:
            soak = Soak(Path(folder), args.model, args.log)
            try:
                asyncio.run(soak.run(args.minutes))
            finally:
                for process in soak.processes.values():
                    process.kill()
    print(json.dumps(report(args.report or args.log), indent=1))


if __name__ == "__main__":
    main()
