"""The memory plan beside the measured peak of a round, and its processor seconds, with random weights of real shapes.

    python tests/benchmarks/memory_plan.py --log FILE [--shapes 135M 0.5B] [--tokens 96 1024] [--kinds own fallback]
        [--precisions bfloat16 float32 4bit] [--whole] [--folder PLACE] [--table]

Each row in a fresh process on one thread: load, generation of full length, one update with an adapter; peak is VmHWM. 96
tokens: 2 x 8 completions; 1,024 and 4,096: 1 x 4; --whole: 8 x 8. A JSON line a row goes to FILE as soon as it is measured,
and rows that are there are not measured again, so that the whole can be done in parts. --table: what is in FILE, as
Markdown; beside a row by the fallback how much longer it took than the own decoder's, where both are of one day.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from tests.benchmarks.shapes import FOREIGN, Shape, write_folder, write_foreign_folder

SHAPES = {
    "5M": Shape(1024, 256, 784, 6, 4, 2),
    "135M": Shape(49152, 576, 1536, 30, 9, 3),
    "270M": Shape(262144, 640, 2048, 18, 4, 1),
    "0.5B": Shape(151936, 896, 4864, 24, 14, 2),
    "1.5B": Shape(151936, 1536, 8960, 28, 12, 2),
    "4B": Shape(151936, 2560, 9728, 36, 32, 8),
}
NAMES = [*SHAPES, *FOREIGN]
ROUNDS = {96: (2, 8), 1024: (1, 4), 4096: (1, 4)}
"""New tokens -> groups and completions of each."""
WHOLE = (8, 8)
"""The same of a round as a node makes it."""
PROMPT = 64
ROW_S = 3600
"""Processor seconds of a row: on a busy machine the clock says nothing."""
CHILD = r"""
import json, sys, threading, time
from pathlib import Path
from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.common import hardware, round_memory
from sapo_backends.measure.probe import peak_memory
from sapo_backends.measure.precision import model_size
from sapo_backends.registry import get_backend
folder, groups, group, new, prompt, kind, precision = sys.argv[1], *map(int, sys.argv[2:6]), *sys.argv[6:8]
trains = sys.argv[8] == "train"
def now(kind="VmRSS"):
    return next(int(l.split()[1]) * 1024 for l in open("/proc/self/status") if l.startswith(kind + ":"))
anonymous, done = [0], threading.Event()  # without the pages of the file, which the system drops where it needs room
def watch():
    while not done.wait(0.002):
        anonymous[0] = max(anonymous[0], now("RssAnon"))
watching = threading.Thread(target=watch)
watching.start()
began = time.process_time()
request = LoadRequest(folder, "lora" if trains else "none", precision, "cpu", threads=1)
size, _ = model_size(Path(folder), request)
engine = get_backend("torch")().load(request)
type(engine.tokenizer).eos_ids = property(lambda self: ())  # no answer ends before its full length
done.set()
watching.join()
found = {"loaded": peak_memory(), "stays": now(), "load_s": time.process_time() - began}
found |= {"loaded_anonymous": anonymous[0], "stays_anonymous": now("RssAnon")}
prompts = [[10 + (7 * g + i) % 90 for i in range(prompt)] for g in range(groups)]
began = time.process_time()
rows = engine.generate(prompts, group, Sampling(max_new_tokens=new, temperature=1.0), seed=0)
found |= {"generated": peak_memory(), "generate_s": time.process_time() - began}
made = [(p, c) for p, row in zip(prompts, rows) for c in row]
batch = [TrainSample(tuple(p), tuple(10 + (13 * n + 7 * i) % 90 for i in range(new)), 1.0 if n % 2 else -1.0)
         for n, (p, _) in enumerate(made)]
began = time.process_time()
if trains:
    engine.update(batch, PolicyUpdate(learning_rate=1e-6), seed=0)
found |= {"update_s": time.process_time() - began, "peak": peak_memory()}
shape = round_memory.RoundShape(groups, group, prompt, new)
compute = 4 if precision.endswith("float32") else 2
found["plan"] = round_memory.bytes_of_round(
    size, shape, compute_bytes=compute, fallback=kind == "fallback", four_bit=precision.startswith("4bit"))
found |= {"longest": max(len(c.tokens) for _, c in made), "computed_by": engine.info.extra.get("computed_by", "")}
print(json.dumps(found))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--log", type=Path, required=True)
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()) / "sapo-shapes")
    parser.add_argument("--shapes", nargs="+", default=["135M", "270M", "0.5B", "1.5B"], choices=NAMES)
    parser.add_argument("--tokens", nargs="+", type=int, default=[96, 1024], choices=list(ROUNDS))
    parser.add_argument("--kinds", nargs="+", default=["own", "fallback"], choices=["own", "fallback"])
    parser.add_argument("--precisions", nargs="+", default=["bfloat16", "float32", "4bit"])
    parser.add_argument("--generate-only", action="store_true")
    parser.add_argument("--whole", action="store_true")
    parser.add_argument("--table", action="store_true")
    args = parser.parse_args()
    if args.table:
        rows = [json.loads(line) for line in args.log.read_text("utf-8").splitlines()]
        with tempfile.TemporaryDirectory() as empty:
            print("\n".join(table([row if "failed" in row else replanned(row, Path(empty)) for row in rows])))
        return
    from sapo_backends.common.hardware import FOUR_BIT, computes_in

    slow = {FOUR_BIT: f"{FOUR_BIT}-float32"} if computes_in(FOUR_BIT) == "float32" else {}  # named as it is computed
    done = {_key(json.loads(line)) for line in args.log.read_text("utf-8").splitlines()} if args.log.exists() else set()
    for name in args.shapes:
        for kind in args.kinds:
            for precision in (slow.get(precision, precision) for precision in args.precisions):
                for new in args.tokens:
                    row = {"shape": name, "kind": kind, "precision": precision, "tokens": new}
                    row |= {"trains": not args.generate_only, "groups": WHOLE if args.whole else ROUNDS[new]}
                    cannot = precision.startswith("4bit") if kind == "fallback" else name in FOREIGN
                    if _key(row) in done or cannot:
                        continue
                    row |= measured(made(args.folder / name, name), row) | {"day": date.today().isoformat()}
                    with args.log.open("a", encoding="utf-8") as log:
                        log.write(json.dumps(row) + "\n")
                    print(json.dumps(row), flush=True)


def replanned(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A measured row with what is planned today, by files without weights in that folder."""
    from sapo_backends.base import LoadRequest
    from sapo_backends.common import hardware, round_memory
    from sapo_backends.measure.precision import model_size

    request = LoadRequest(method="lora" if row["trains"] else "none", precision=row["precision"])
    size, _ = model_size(made(folder / row["shape"], row["shape"], weights=False), request)
    plan = round_memory.bytes_of_round(
        size,
        round_memory.RoundShape(*_groups(row), PROMPT, row["tokens"]),
        compute_bytes=4 if row["precision"].endswith("float32") else 2,
        fallback=row["kind"] == "fallback",
        four_bit=hardware.is_four_bit(row["precision"]),
    )
    gib = plan / 2**30
    return {**row, "plan": round(gib, 2), "plan/peak": round(gib / row["peak"], 2)}


def _key(row: dict[str, Any]) -> tuple[object, ...]:
    return row["shape"], row["kind"], row["precision"], row["tokens"], row["trains"], _groups(row)


def _groups(row: dict[str, Any]) -> tuple[int, int]:
    """Groups and completions of each; of rows that do not say: as ROUNDS does."""
    groups, group = row.get("groups", ROUNDS[row["tokens"]])
    return groups, group


def made(folder: Path, name: str, *, weights: bool = True) -> Path:
    """The folder with bfloat16 weights, a megabyte of random numbers over and over; nothing is held in memory. Without
    weights the file is as long and takes no room."""
    if (folder / "model.safetensors").exists():
        return folder
    folder.mkdir(parents=True, exist_ok=True)
    foreign = FOREIGN.get(name)
    tensors = write_foreign_folder(folder, *foreign) if foreign else write_folder(folder, SHAPES[name], "llama")
    header, at = {}, 0
    for name, size in tensors.items():
        end = at + 2 * int(np.prod(size))
        header[name], at = {"dtype": "BF16", "shape": list(size), "data_offsets": [at, end]}, end
    numbers = np.random.default_rng(0).standard_normal(1 << 19, dtype=np.float32) * np.float32(0.02)
    block = (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()
    one = (np.ones(1 << 19, np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
    text = json.dumps(header).encode()
    partial = folder / "partial"
    with partial.open("wb") as stream:
        stream.write(len(text).to_bytes(8, "little") + text)
        if not weights:
            stream.truncate(8 + len(text) + at)
        for size in tensors.values() if weights else ():
            left = 2 * int(np.prod(size))
            while left:
                left -= stream.write((one if len(size) == 1 else block)[: min(left, len(block))])
    partial.rename(folder / "model.safetensors")
    return folder


def measured(folder: Path, row: dict[str, Any]) -> dict[str, object]:
    """What is found for a row; what failed says so."""
    arguments = [
        str(folder),
        *map(str, (*_groups(row), row["tokens"], PROMPT)),
        row["kind"],
        row["precision"],
        "train" if row["trains"] else "generate",
    ]
    environment = os.environ | ({"SAPO_WITHOUT": "own"} if row["kind"] == "fallback" else {})
    child = [sys.executable, "-c", CHILD, *arguments]
    done = subprocess.run(child, capture_output=True, text=True, env=environment, preexec_fn=_limited)
    if done.returncode == -signal.SIGXCPU:
        return {"failed": f"longer than {ROW_S} processor seconds"}
    if done.returncode:
        return {"failed": done.stderr.strip().splitlines()[-1][:300]}
    found = json.loads(done.stdout.splitlines()[-1])
    sizes = {key: round(found[key] / 2**30, 2) for key in ("loaded", "stays", "generated", "peak", "plan")}
    anonymous = found["loaded_anonymous"] / found["stays_anonymous"]
    seconds = {key: round(found[key], 1) for key in ("load_s", "generate_s", "update_s")}
    ratios = {"plan/peak": found["plan"] / found["peak"], "loaded/stays": found["loaded"] / found["stays"]}
    ratios |= {"loaded/stays, anonymous": anonymous}
    rounded = {key: round(value, 2) for key, value in ratios.items()}
    return {**sizes, **rounded, **seconds, "longest": found["longest"], "computed_by": found["computed_by"]}


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (ROW_S, ROW_S + 10))


def _place(row: dict[str, Any]) -> tuple[Any, ...]:
    return NAMES.index(row["shape"]), row["tokens"], _groups(row), row["kind"] != "own"


def table(rows: list[dict[str, Any]]) -> list[str]:
    """Markdown."""
    lines = [
        "| shape | groups x size x tokens | by | stored as | plan GiB | peak GiB | plan/peak | load s | generate s | update s "
        "| time, own = 1 |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    own = {_key(row): row for row in rows if row["kind"] == "own" and "failed" not in row}
    for row in sorted(rows, key=_place):
        groups, group = _groups(row)
        what = f"| {row['shape']} | {groups} x {group} x {row['tokens']:,} | {row['kind']} | {row['precision']} |"
        if "failed" in row:
            lines.append(f"{what} {row['failed']} | | | | | | |")
            continue
        other = own.get(_key({**row, "kind": "own"}))
        same_day = other is not None and row is not other and "day" in row and other.get("day") == row["day"]
        ratio = f"{_seconds(row) / _seconds(other):.2f}" if same_day else ""
        update = f"{row['update_s']:.1f}" if row["trains"] else "-"
        lines.append(
            f"{what} {row['plan']:.2f} | {row['peak']:.2f} | {row['plan/peak']:.2f} | {row['load_s']:.0f} "
            f"| {row['generate_s']:.1f} | {update} | {ratio} |"
        )
    return lines


def _seconds(row: dict[str, Any]) -> float:
    return float(row["generate_s"] + row["update_s"])


if __name__ == "__main__":
    main()
