"""kill -9 of a real node in every phase, many times, then a comparison with an undisturbed run. Prints one JSON line.

    python tests/benchmarks/kill_node.py [--times 20] [--model starter-1m]

Passes when every resume lost at most the round in flight, the journal was whole after each kill, and the final weights
equal those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import hashlib
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.node_process import node, reaches, sapo

from sapo_swarm.events import Phase, RoundFinished
from sapo_swarm.node.storage.checkpoints import Checkpoints
from sapo_swarm.node.storage.journal import read_only

PHASES = ("generate", "score", "update", "checkpoint")


def weights(run: Path, rounds: int) -> str:
    files = sorted((run / "checkpoints" / f"round-{rounds:06d}" / "engine").iterdir())
    return hashlib.sha256(b"".join(p.read_bytes() for p in files if p.is_file())).hexdigest()


def run_folder(home: Path) -> Path:
    (folder,) = (home / "data" / "models").iterdir()
    return folder


async def kill_once(home: Path, flags: list[str], phase: str, wanted: int) -> tuple[int, int, float]:
    """Start or resume, kill in the phase; returns rounds in checkpoint, rounds in journal, seconds until it answered."""
    began = time.perf_counter()
    async with node(home, *flags) as (client, process):
        answered = time.perf_counter() - began
        await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == phase and e.round >= wanted)
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    run = run_folder(home)
    found, warnings = Checkpoints(run / "checkpoints", 10**6).newest_intact()
    assert found is not None, "no intact checkpoint"
    assert not warnings, warnings
    rounds = [e.round for e in read_only(run / "journal.db", ("round",)) if isinstance(e, RoundFinished)]
    assert rounds == list(range(len(rounds))), f"the journal has gaps or repetitions: {rounds}"
    assert len(rounds) in {found[1].rounds_done, found[1].rounds_done - 1}, "more than the round in flight was lost"
    return found[1].rounds_done, len(rounds), answered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--threads", default="1")
    args = parser.parse_args()
    base = [
        "--silo",
        "--model",
        args.model,
        "--threads",
        args.threads,
        "--eval-every",
        "0",
        "--keep-checkpoints",
        "9999",
    ]
    if args.model.startswith("fake"):
        base += ["--trainer", "fake"]
    draw = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        home, calm = Path(folder) / "killed", Path(folder) / "calm"
        counts = dict.fromkeys(PHASES, 0)
        done, starts = 0, []
        for number in range(args.times):
            phase = PHASES[number % len(PHASES)]
            done, _, answered = asyncio.run(
                kill_once(home, [*base, "--rounds", "10000"], phase, done + draw.randint(0, 2))
            )
            counts[phase] += 1
            starts.append(answered)
        undisturbed = sapo(calm, "node", *base, "--rounds", str(done), timeout=3600)
        assert undisturbed.returncode == 0, undisturbed.stderr
        equal = weights(run_folder(home), done) == weights(run_folder(calm), done)
    result = {
        "kills": counts,
        "rounds": done,
        "journal_whole": True,
        "weights_equal_undisturbed_run": equal,
        "slowest_restart_s": round(max(starts), 2),
    }
    print(json.dumps(result))
    sys.exit(0 if equal else 1)


if __name__ == "__main__":
    main()
