"""How many groups with a non-zero advantage a node trains on a round, in swarms of different size: predicted, then counted.

    python tests/benchmarks/nodes_and_groups.py [--nodes 1 2 4 8 16] [--seeds 401 402] [--rounds 20] [--jobs 1] [--out FOLDER]

The app's rule where success is rare: 2 local groups and up to 8 external ones, one of a node, each used once; for what the
pool lacks the node asks up to 2 more questions of its own. Nothing is evaluated. The same command goes on where it was.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / floor) for floor in ("app", "backends", "swarm", "assets")]

from sapo_swarm.events import RoundFinished  # noqa: E402
from sapo_swarm.node.journal import read_only  # noqa: E402

LOCAL, EXTERNAL = 2, 8
Q = 0.12
"""Share of groups with a non-zero advantage that the untrained model generates, where it is alone (docs/lab/README.md)."""
EXPERIMENT = """
name = "nodes-{nodes}"
nodes = {nodes}
seeds = {seeds}
final_items = 0
[run]
model = "starter-1m"
threads = 1
precision = "float32"
preset = "paper"
learning_rate = 1e-4
max_new_tokens = 64
local_groups = {local}
external_groups = {external}
external_advantages = "positive"
rounds = {rounds}
eval_every = 0
[conditions]
starved = "ahead"
staleness = 1
pool_rounds = 4
per_source = 1
[[arms]]
name = "app"
"""


def predicted(nodes: int, q: float = Q) -> tuple[float, float]:
    """External groups a node and round, and all with a non-zero advantage that it trains on.

    A node takes what arrives, (N - 1) q G groups a round: one of a source, EXTERNAL at most. G are the local groups that each
    generates and shares: LOCAL, and one more for each external one that is missing, up to LOCAL of those.
    """
    external, arriving = 0.0, (nodes - 1) * q
    for _ in range(1000):
        local = LOCAL + max(0.0, LOCAL - external)
        external += 0.1 * (min(nodes - 1.0, EXTERNAL, arriving * local) - external)
    return external, external + q * local


def counted(folder: Path) -> tuple[float, float, float]:
    """The same two of all journals below, and the share of local groups with a non-zero advantage."""
    rounds = [e for path in folder.rglob("journal.db") for e in read_only(path) if isinstance(e, RoundFinished)]
    settled = [r for r in rounds if r.round > 4]  # the pool is filled by then
    external = sum(r.external_groups for r in settled) / len(settled)
    nonzero = sum(r.nonzero_groups for r in settled)
    local = sum(r.completions for r in settled) / 8
    return external, external + nonzero / len(settled), nonzero / local


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nodes", type=int, nargs="+", default=[1, 2, 4, 8, 16])
    parser.add_argument("--seeds", type=int, nargs="+", default=[401, 402])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(tempfile.gettempdir()) / "nodes-and-groups")
    args = parser.parse_args()
    print("| nodes | external, predicted | counted | non-zero, predicted | counted | share of local groups |")
    print("|---|---|---|---|---|---|")
    for nodes in args.nodes:
        args.out.mkdir(parents=True, exist_ok=True)
        file = args.out / f"nodes-{nodes}.toml"
        settings = {"local": LOCAL, "external": EXTERNAL, "rounds": args.rounds}
        file.write_text(EXPERIMENT.format(nodes=nodes, seeds=args.seeds, **settings))
        command = [sys.executable, "-m", "sapo_lab", "run", str(file), "--jobs", str(args.jobs)]
        subprocess.run([*command, "--out", str(args.out)], check=True, stdout=sys.stderr)
        (j, all_), (found_j, found_all, q) = predicted(nodes), counted(args.out / f"nodes-{nodes}")
        print(f"| {nodes} | {j:.1f} | {found_j:.1f} | {all_:.1f} | {found_all:.1f} | {q:.2f} |", flush=True)


if __name__ == "__main__":
    main()
