"""What each path of the torch engine is worth: the same work with and without it, in turns, in one run.

    python tests/benchmarks/paths.py [--turns 5] [--only starter-1m] [--threads 1]

Each row compares a path with the next simpler one (docs/engines.md): how many times as long the work takes without it,
the median over the turns. Seconds of the processor with one thread, so that other programs matter little; with more,
where threads wait for one another, seconds of the clock. A path that is worth less than 1.15 on every model is not
worth its lines.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

KINDS = ("generate", "update")
ROOT = Path(__file__).resolve().parents[2]
FLOAT32, BFLOAT16 = "float32", "bfloat16"
LADDERS: list[tuple[str, str, list[str]]] = [
    ("starter-1m", FLOAT32, ["", "native", "native,torchscript"]),
    ("starter-1m", BFLOAT16, ["", "onednn", "onednn,torchscript", "own"]),
    ("starter", FLOAT32, ["", "native", "native,torchscript"]),
    ("starter", BFLOAT16, ["", "onednn", "onednn,torchscript", "own"]),
    ("0.5B", BFLOAT16, ["", "onednn", "onednn,torchscript", "own"]),
]
"""Model, precision, and what SAPO_WITHOUT leaves out, step by step."""


def work(model: str, precision: str, threads: int) -> dict[str, Callable[[], object]]:
    """The two kinds of work: 8 x 8 completions, or 4 x 4 of a large model, and an update on two groups of them."""
    from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TrainSample
    from sapo_backends.torch_backend import TorchBackend

    large = model not in ("starter", "starter-1m")
    engine = TorchBackend().load(LoadRequest(model, precision=precision, device="cpu", threads=threads))
    groups, size, tokens = (4, 4, 24) if large else (8, 8, 64)
    texts = [f"Start with {i}. Add {3 * i + 1}, take away {2 * i}, times {i + 2}. What is it?" for i in range(groups)]
    prompts = [engine.tokenizer.encode_chat([{"role": "user", "content": text}]) for text in texts]
    sampled = engine.generate(prompts, size, Sampling(max_new_tokens=tokens), 0)
    batch = [
        TrainSample(tuple(prompt), completion.tokens, 1.0 if i % 2 else -1.0)
        for prompt, group in list(zip(prompts, sampled, strict=True))[: 2 if large else 4]
        for i, completion in enumerate(group)
    ]
    return {
        "generate": lambda: engine.generate(prompts, size, Sampling(max_new_tokens=tokens), 0),
        "update": lambda: engine.update(batch, PolicyUpdate(learning_rate=0.0), 0),
    }


def child(model: str, precision: str, threads: int) -> None:
    """A line of seconds for every line that comes in: of the processor, or of the clock where threads wait for one another."""
    clock = time.process_time if threads == 1 else time.perf_counter
    found = work(model, precision, threads)
    for kind in KINDS:
        found[kind]()  # compiles and fills caches
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds = []
        for kind in KINDS:
            began = clock()
            found[kind]()
            seconds.append(clock() - began)
        print(*seconds, flush=True)


def start(model: str, precision: str, without: str, threads: int) -> subprocess.Popen[str]:
    packages = [str(ROOT / name) for name in ("app", "swarm", "backends", "assets")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(packages), OMP_NUM_THREADS=str(threads), SAPO_WITHOUT=without)
    arguments = ["--child", model, precision, "--threads", str(threads)]
    command = [sys.executable, __file__, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise SystemExit("A variant failed; its message is above.")
    return text


def turns(model: str, precision: str, ladder: list[str], count: int, threads: int) -> list[list[list[float]]]:
    """[variant][turn][kind] processor seconds."""
    processes = [start(model, precision, without, threads) for without in ladder]
    found: list[list[list[float]]] = [[] for _ in ladder]
    try:
        for process in processes:
            line(process)
        for _ in range(count):
            for process, times in zip(processes, found, strict=True):
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
                times.append([float(seconds) for seconds in line(process).split()])
    finally:
        for process in processes:
            process.kill()
            process.wait()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--only", help="one of the models")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(*args.child, args.threads)
    with tempfile.TemporaryDirectory() as folder:
        for model, precision, ladder in LADDERS:
            if args.only in (None, model):
                report(model, precision, ladder, Path(folder), args)


def report(model: str, precision: str, ladder: list[str], scratch: Path, args: argparse.Namespace) -> None:
    name = model
    if model == "0.5B":
        from shapes import SHAPES, write_model

        name = str(scratch / model)
        if not Path(name).exists():
            Path(name).mkdir()
            write_model(Path(name), SHAPES["L"])
    found = turns(name, precision, ladder, args.turns, args.threads)
    for i, without in enumerate(ladder):
        medians = [statistics.median(times[k] for times in found[i]) for k in range(len(KINDS))]
        steps = [
            statistics.median(a[k] / b[k] for a, b in zip(found[i], found[i - 1], strict=True)) if i else 1.0
            for k in range(len(KINDS))
        ]
        if args.json:
            print(
                json.dumps({"model": model, "precision": precision, "without": without, "s": medians, "ratio": steps})
            )
            continue
        cells = "  ".join(f"{kind} {s:7.3f} s x{r:.2f}" for kind, s, r in zip(KINDS, medians, steps, strict=True))
        print(f"{model:<11}{precision:<9} without {without or '-':<32} {cells}", flush=True)


if __name__ == "__main__":
    main()
