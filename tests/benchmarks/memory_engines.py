"""What the app says that a round needs, beside what it used, on every engine that is here: one JSON line a row.

    python tests/benchmarks/memory_engines.py --log FILE [--models starter 0.5B] [--engines torch mlx llamacpp+torch]
        [--tokens 96 1024] [--folder PLACE] [--table]

The plan is the app's own (`sapo-desktop doctor`, and what a node is refused by) for the same settings: prompts of the
length that it counts with, random weights of the bundled starter's and of Qwen2.5-0.5B's shape, so that completions have
their full length. Each row in a fresh process on one thread: load, generation, one update; peak is VmHWM. 96 tokens: 2
groups of 8; 1,024: 1 group of 4. A row that is in FILE is not measured again.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.memory_plan import SHAPES, made
from tests.benchmarks.shapes import SHAPES as BUNDLED

ROWS = {96: (2, 8), 1024: (1, 4)}
"""New tokens -> groups and completions of each."""
MODELS = {"starter": BUNDLED["S"], "0.5B": SHAPES["0.5B"]}
ENGINES = ("torch", "mlx", "llamacpp+torch", "llamacpp+mlx")
ROW_S = 1800
CHILD = r"""
import json, sys, time
import msgspec
from sapo_backends.base import PolicyUpdate, Sampling, TrainSample
from sapo_backends.measure.probe import peak_memory
from sapo_backends.registry import get_backend
from sapo_desktop.services.machine import load_request, memory_plan
from sapo_swarm.config import RunConfig
folder, engine_name, groups, group, new = *sys.argv[1:3], *map(int, sys.argv[3:6])
config = RunConfig(model=folder, trainer=engine_name, device="cpu", threads=1, local_groups=groups, external_groups=0,
                   group_size=group, max_new_tokens=new)
plan = memory_plan.plan_round_memory(config)
request = load_request.build_load_request(config)
engine = get_backend(engine_name)().load(request)
found = {"precision": engine.info.precision, "method": engine.info.method, "loaded": peak_memory()}
prompts = [[10 + (7 * g + i) % 90 for i in range(memory_plan.PROMPT)] for g in range(groups)]
rows = engine.generate(prompts, group, Sampling(max_new_tokens=new, temperature=1.0), seed=0)
found |= {"generated": peak_memory(), "longest": max(len(c.tokens) for row in rows for c in row)}
batch = [TrainSample(tuple(p), tuple(10 + (13 * n + 7 * i) % 90 for i in range(new)), 1.0 if n % 2 else -1.0)
         for n, p in enumerate(p for p in prompts for _ in range(group))]
engine.update(batch, PolicyUpdate(learning_rate=1e-6), seed=0)
print(json.dumps(found | {"peak": peak_memory(), "plan": plan.needed, "seconds": time.process_time()}))
"""


def measured(folder: Path, engine: str, new: int) -> dict[str, object]:
    """One row; what failed says so."""
    groups, group = ROWS[new]
    child = [sys.executable, "-c", CHILD, str(folder), engine, *map(str, (groups, group, new))]
    try:
        done = subprocess.run(child, capture_output=True, text=True, timeout=ROW_S)
    except subprocess.TimeoutExpired:
        return {"failed": f"longer than {ROW_S} s"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300]}
    found = json.loads(done.stdout.splitlines()[-1])
    sizes = {key: round(found[key] / 2**30, 3) for key in ("loaded", "generated", "peak", "plan")}
    return found | sizes | {"plan/peak": round(found["plan"] / found["peak"], 2), "seconds": round(found["seconds"])}


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = [
        "| model | engine | computes in | tokens | plan GiB | peak GiB | plan/peak |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        what = f"| {row['model']} | {row['engine']} | {row.get('precision', '')} | {row['tokens']:,} |"
        figures = [f"{row[key]:.2f}" for key in ("plan", "peak", "plan/peak")] if "plan" in row else [row["failed"]]
        lines.append(f"{what} {' | '.join(figures)} |")
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sapo-shapes")
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--engines", nargs="+", default=list(ENGINES), choices=list(ENGINES))
    parser.add_argument("--tokens", nargs="+", type=int, default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    rows = [json.loads(line) for line in args.log.read_text("utf-8").splitlines()] if args.log.exists() else []
    if args.table:
        print("\n".join(table(rows)))
        return
    done = {(row["model"], row["engine"], row["tokens"]) for row in rows}
    for model in args.models:
        for engine in args.engines:
            for new in args.tokens:
                if (model, engine, new) in done:
                    continue
                row = {"model": model, "engine": engine, "tokens": new}
                row |= measured(made(args.folder / f"engines-{model}", MODELS[model]), engine, new)
                with args.log.open("a", encoding="utf-8") as log:
                    log.write(json.dumps(row) + "\n")
                print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
