"""How long a bundled model takes from nothing to its first token, on one CPU thread.

    python tests/benchmarks/bench_load.py [--model starter] [--times 5]

Each time in a fresh process; medians in seconds. imports: torch and the engine's modules. load: reading the model until the
engine is ready. first_token: one prompt's first token after that. process: all of it, with the interpreter's own start.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time

CHILD = """
import json, sys, time
began = time.perf_counter()
from sapo_backends.base import LoadRequest, Sampling
from sapo_backends.registry import get_backend
found = get_backend("torch")()
import sapo_backends.torch_backend.loading
imported = time.perf_counter()
engine = found.load(LoadRequest(model=sys.argv[1], threads=1, device="cpu"))
loaded = time.perf_counter()
prompt = engine.tokenizer.encode_chat([{"role": "user", "content": "Calculate 12 + 7 - 5."}])
engine.generate([prompt], 1, Sampling(max_new_tokens=1), seed=0)
print(json.dumps([imported - began, loaded - imported, time.perf_counter() - loaded]))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="starter")
    parser.add_argument("--times", type=int, default=5)
    args = parser.parse_args()
    rows: list[list[float]] = []
    for _ in range(args.times):
        began = time.perf_counter()
        done = subprocess.run([sys.executable, "-c", CHILD, args.model], stdout=subprocess.PIPE, text=True, check=True)
        rows.append([*json.loads(done.stdout), time.perf_counter() - began])
    names = ("imports", "load", "first_token", "process")
    medians = {
        name: round(statistics.median(column), 3) for name, column in zip(names, zip(*rows, strict=True), strict=True)
    }
    print(json.dumps({"model": args.model, "times": args.times, **medians}))


if __name__ == "__main__":
    main()
