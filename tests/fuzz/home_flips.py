"""One bit flipped in each kind of file that the app keeps, then the verbs that read it: python tests/fuzz/home_flips.py

A home with a trained model, a task of one's own, a hosted swarm and a node that has exchanged in it is made once and copied for
each flip ([--flips 30] a kind, [--only KIND], [--seed N]). A verb must go on, or end with the app's own exit code and one
sentence; no other file of a person's may be lost or changed. damage.py asks the readers alone, at more places. The exit code is 1
where something else happened. Linux and macOS.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.verb_server import VerbServer

CODES = (0, 1, 2, 3, 4)
SECONDS = 90.0
SETTINGS = "[limits]\npause_on_battery = false\nmin_free_disk = 0\n"
TRAIN = ("--rounds", "1", "--local-groups", "2", "--eval-every", "0")
SHORT_LIVED = ("run", "cache", "logs")
KEEPS = re.compile(r"(config\.toml|model\.json|task\.toml|train\.jsonl|heldout\.jsonl|node\.key|.*invite.*)$")
"""Files that no verb below has a reason to change; all others only have to be there."""


@dataclass(frozen=True)
class Kind:
    """files: a pattern of paths below the home. verbs: by turns; "HOST": the coordinator is started, asked and stopped."""

    name: str
    files: str
    verbs: tuple[tuple[str, ...], ...]


NODE = ("node", "member", "--silo", *TRAIN)
MEMBER = ("node", "member", *TRAIN)
KINDS = (
    Kind("journal", r"models/first/journal\.db", (("models", "show", "first"), ("rollouts", "first"), ("runs", "first"))),
    Kind("settings", r"config\.toml", (("config", "get", "run.model"), ("models",), NODE)),
    Kind("records", r"models/first/(model|engine)\.json|evaluations/", (("models", "show", "first"), ("models",))),
    Kind("weights", r"first/checkpoints/round-0+2/.*safetensors", (("export", "first", "--format", "hf", "--to", "OUT"),)),
    Kind("checkpoints", r"first/checkpoints/", (("node", "first", "--silo", *TRAIN), ("rollback", "first"))),
    Kind("task folder", r"tasks/sums/", (("tasks", "show", "sums"), ("tasks",), ("tasks", "check", "sums"))),
    Kind("key", r"node\.key|.*\.key$|keys?/", (MEMBER, ("invite",), ("directory",))),
    Kind("invite", r"invite|membership|swarm\.json", (MEMBER, ("status",), ("leave",))),
    Kind("trust", r"member/.*(phrases|swarm|trust|memory)", (MEMBER,)),
    Kind("swarm database", r"swarm\.sqlite|swarm\.admin|coordinator", (("HOST",), ("swarm", "export", "OUT"))),
    Kind("cache", r"cache/.*json", (("models", "show", "first"), NODE)),
)  # fmt: skip


class Verbs:
    """The command line, with a home of its own for each call."""

    def __init__(self) -> None:
        self._server = VerbServer(self._environment(Path("/")))

    @staticmethod
    def _environment(home: Path) -> dict[str, str]:
        return {
            **os.environ,
            "SAPO_HOME": str(home),
            "NO_COLOR": "1",
            "PYTHON_KEYRING_BACKEND": "keyring.backends.fail.Keyring",
        }

    def run(self, home: Path, *words: str) -> subprocess.CompletedProcess[str]:
        """Raises subprocess.TimeoutExpired."""
        return self._server.run(words, self._environment(home), "", SECONDS)

    def host(self, home: Path) -> subprocess.Popen[str]:
        """A coordinator on a free port."""
        command = [sys.executable, "-P", "-m", "sapo_desktop", "coordinator", "--port", "0"]
        pipe = subprocess.PIPE
        return subprocess.Popen(command, env=self._environment(home), stdout=pipe, stderr=pipe, text=True)


def make_home(verbs: Verbs, home: Path) -> None:
    """Raises subprocess.CalledProcessError."""
    home.mkdir()
    (home / "config.toml").write_text(SETTINGS, "utf-8")
    table = home.parent / "sums.csv"
    table.write_text("question,answer\n" + "".join(f"What is {n} + {n % 7}?,{n + n % 7}\n" for n in range(60)), "utf-8")
    verbs.run(home, "tasks", "new", str(table), "--name", "sums", "--yes").check_returncode()
    verbs.run(home, "new", "first", "--base", "starter-1m").check_returncode()
    verbs.run(home, "new", "member", "--base", "fake:0.002", "--trainer", "fake").check_returncode()
    train = ("--rounds", "2", "--local-groups", "2", "--eval-every", "0")
    verbs.run(home, "node", "first", "--silo", *train).check_returncode()
    host = verbs.host(home)
    try:
        assert host.stdout is not None
        invite = next(found[0] for line in host.stdout if (found := re.search(r"sapo://[^'\s]+", line)))
        verbs.run(home, "node", "member", "--join", invite, *train).check_returncode()
    finally:
        end(host)


def end(host: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    """As ctrl+c does."""
    host.send_signal(2)
    try:
        out, err = host.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        host.kill()
        out, err = host.communicate()
        err += "\nTraceback: it had to be killed"
    return subprocess.CompletedProcess(host.args, host.returncode, out, err)


def ask_host(verbs: Verbs, home: Path) -> subprocess.CompletedProcess[str]:
    """Start it, let it come up or give up, and end it."""
    host = verbs.host(home)
    until = time.monotonic() + 20
    while host.poll() is None and time.monotonic() < until:
        if (home / "run" / "coordinator.json").exists():
            time.sleep(0.5)
            break
        time.sleep(0.1)
    return end(host) if host.poll() is None else subprocess.CompletedProcess([], host.returncode, *host.communicate())


def belongings(home: Path, but: Path) -> dict[str, bytes]:
    """A person's files: the content of those that nothing may change."""
    files = [path for path in home.rglob("*") if path.is_file() and path != but]
    names = {path: path.relative_to(home).as_posix() for path in files}
    return {
        name: path.read_bytes() if KEEPS.search(name) else b""
        for path, name in names.items()
        if not name.startswith(SHORT_LIVED) and not name.endswith(("-wal", "-shm", ".log", ".lock"))
        and "/checkpoints/" not in name and ".part" not in name
    }  # fmt: skip


def what_is_wrong(done: subprocess.CompletedProcess[str]) -> str:
    """ "" for nothing."""
    errors = [line for line in done.stderr.splitlines() if line.strip()]
    if done.returncode not in CODES:
        return f"exit code {done.returncode}: {errors[-3:]}"
    if "Traceback" in done.stderr + done.stdout or "panicked" in done.stderr:
        return f"a traceback: {done.stderr[-1500:]}"
    if done.returncode and not errors:
        return "an exit code without a sentence"
    if done.returncode and len(errors) > 4:
        return f"{len(errors)} lines of errors: {errors}"
    if any(not letter.isprintable() and letter not in "\n\t" for letter in done.stdout + done.stderr):
        return "what a terminal obeys"
    return ""


def flip(path: Path, rng: random.Random) -> str:
    """One bit; where it was."""
    data = bytearray(path.read_bytes())
    place = rng.randrange(min(len(data), 4096) if rng.random() < 0.5 else len(data))
    data[place] ^= 1 << rng.randrange(8)
    path.write_bytes(data)
    return f"byte {place}"


def main() -> int:
    """1 where a flip ended in another way than it should."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--flips", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="")
    args = parser.parse_args()
    verbs, broke = Verbs(), 0
    with tempfile.TemporaryDirectory() as scratch:
        whole, home, out = (Path(scratch) / name for name in ("whole", "home", "out"))
        make_home(verbs, whole)
        for kind in (kind for kind in KINDS if args.only in kind.name):
            rng, ended = random.Random(f"{args.seed}/{kind.name}"), Counter[str]()
            names = [path.relative_to(whole) for path in sorted(whole.rglob("*")) if path.is_file()]
            names = [name for name in names if re.search(kind.files, name.as_posix()) and (whole / name).stat().st_size]
            if not names:
                print(f"{kind.name}: no file matches {kind.files}", flush=True)
                broke += 1
                continue
            for number in range(args.flips):
                shutil.rmtree(home, ignore_errors=True)
                shutil.rmtree(out, ignore_errors=True)
                shutil.copytree(whole, home)
                name, verb = rng.choice(names), kind.verbs[number % len(kind.verbs)]
                place = flip(home / name, rng)
                before = belongings(home, home / name)
                words = [str(out) if word == "OUT" else word for word in verb]
                try:
                    done = ask_host(verbs, home) if verb == ("HOST",) else verbs.run(home, *words)
                    wrong = what_is_wrong(done)
                    after = belongings(home, home / name)
                    lost = (
                        [other for other, data in before.items() if after.get(other) != data]
                        if verb != ("leave",)
                        else []
                    )
                    wrong = wrong or (f"changed or lost: {lost}" if lost else "")
                    ended["went on" if done.returncode == 0 else "one sentence"] += not wrong
                except subprocess.TimeoutExpired:
                    wrong = f"no end in {SECONDS:.0f} s"
                if wrong:
                    ended["wrong"] += 1
                    broke += 1
                    print(f"{kind.name}, {name}, {place}, {' '.join(verb)}: {wrong}", flush=True)
            print(f"{kind.name}: {args.flips} flips of {len(names)} files, {dict(ended)}", flush=True)
    return 1 if broke else 0


if __name__ == "__main__":
    sys.exit(main())
