"""kill -9 of a real node at random moments, many times, then a comparison with an undisturbed run. Prints one JSON line.

    python tests/benchmarks/kill_node.py [--times 50] [--model starter-1m] [--minutes 2]

Half of the kills come in a phase, in turn, the others after a random time. Passes when every start had all finished rounds but
at most the one in flight, the journal was whole after each kill and told no round twice, every link of the hash chain was
there, and the final weights equal those of a run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.support.model_folder import chain, on_disk, weights
from tests.support.node_process import node, reaches, sapo

from sapo_swarm.events import Phase
from sapo_swarm.node.control.api import NodeNotRunning

PHASES = ("generate", "score", "update", "checkpoint")


def run_folder(home: Path) -> Path:
    (folder,) = (home / "data" / "models").iterdir()
    return folder


async def kill_once(home: Path, flags: list[str], phase: str, wanted: int, wait_s: float) -> tuple[int, int, float]:
    """Start or resume, kill in the phase, or so long after the start (wait_s > 0); gives the rounds that the next start has,
    the rounds that the log had to give back, and the seconds until the node answered."""
    began = time.perf_counter()
    async with node(home, *flags) as (client, process):
        answered = time.perf_counter() - began
        if wait_s:
            await asyncio.sleep(wait_s)
        else:
            try:
                await reaches(client, (), lambda e: isinstance(e, Phase) and e.phase == phase and e.round >= wanted)
            except NodeNotRunning as error:
                assert process.stderr is not None
                raise AssertionError(f"The node ended: {process.stderr.read().decode()}") from error
        process.send_signal(signal.SIGKILL)
        await asyncio.to_thread(process.wait)
    found = on_disk(run_folder(home))
    assert len(set(found.told)) == len(found.told), f"rounds are told twice: {found.told}"
    assert found.told == list(range(len(found.told))), f"the journal has gaps: {found.told}"
    assert len(found.told) <= found.done, "the journal tells of rounds that are lost"
    return found.done, found.logged, answered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--threads", default="1")
    parser.add_argument("--minutes", default="2", help="between checkpoints; 0 = after every round")
    args = parser.parse_args()
    base = ["--silo", "--model", args.model, "--threads", args.threads, "--eval-every", "0"]
    if args.model.startswith("fake"):
        base += ["--trainer", "fake"]
    draw, phases = random.Random(1), PHASES if args.minutes == "0" else PHASES[:3]
    with tempfile.TemporaryDirectory() as folder:
        home, calm = Path(folder) / "killed", Path(folder) / "calm"
        counts = dict.fromkeys([*phases, "any moment"], 0)
        done, redone, starts, lost = 0, [], [], 0
        for number in range(args.times):
            phase, wait_s = phases[number % len(phases)], draw.uniform(0.1, 4.0) if number % 2 else 0.0
            flags = [*base, "--rounds", "10000", "--checkpoint-minutes", args.minutes]
            before = done
            done, logged, answered = asyncio.run(kill_once(home, flags, phase, done + draw.randint(0, 2), wait_s))
            lost += done < before
            counts["any moment" if wait_s else phase] += 1
            redone.append(logged)
            starts.append(answered)
            print(f"kill {number + 1}: {done} rounds, {logged} of them in the log", file=sys.stderr, flush=True)
        done += 1  # a model that has all its rounds is not opened
        settle = sapo(home, "node", *base, "--rounds", str(done), timeout=3600)
        assert settle.returncode == 0, settle.stderr
        links = len(chain(run_folder(home)))
        undisturbed = sapo(calm, "node", *base, "--rounds", str(done), timeout=3600)
        assert undisturbed.returncode == 0, undisturbed.stderr
        equal = weights(run_folder(home), done) == weights(run_folder(calm), done)
    result = {
        "kills": counts,
        "rounds": done,
        "finished rounds lost": lost,
        "most rounds redone": max(redone),
        "links of the hash chain": links,
        "journal_whole": True,
        "weights_equal_undisturbed_run": equal,
        "slowest_restart_s": round(max(starts), 2),
    }
    print(json.dumps(result))
    sys.exit(0 if equal and not lost else 1)


if __name__ == "__main__":
    main()
