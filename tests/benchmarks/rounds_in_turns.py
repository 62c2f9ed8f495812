"""Whole rounds of a node in two checkouts, in turns: processor seconds a round, start-up taken off.

    python tests/benchmarks/rounds_in_turns.py ../before . [--turns 3] [--rounds 30] [--model starter-1m]
    python tests/benchmarks/rounds_in_turns.py ../before . --model smollm2 --shape 8x8x96 16x8x96 8x8x256 [--llama-cpp]

Each turn runs `sapo-desktop node` twice in each checkout, for 2 rounds and for --rounds more, one thread, in a home of its own.
Prints the median processor seconds a round of each and the ratio before / after (above 1: the second is faster).

With --shape, QUESTIONS x COMPLETIONS x TOKENS, the engine alone does the rounds: of a model of packaging/real_models.py, or any
other, with an adapter, on chats that share their instruction as a table's rows do. No completion ends early, and every one is
trained on. Seconds of generation and update apart, after a short round that warms up; --llama-cpp adds llama.cpp's generation
with the same adapter on the same file. With TOKENS "words" the completions of the update are words, of four, seven in ten the
same one, as a model's are that has read a table's examples. A line of JSON for each shape.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
START = 2
QUESTION = (
    "Which department should answer this message: sales, delivery, accounts or repairs? Reply with the department only.\n\n"
    "My order {0} has not arrived after {1} days."
)
ENGINE = """
import json, random, sys, time
from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.llamacpp_backend import LlamaCppBackend
from sapo_backends.torch_backend import TorchBackend
model, questions, size, tokens, name, text = sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:]
backend = LlamaCppBackend() if name == "llamacpp" else TorchBackend()
engine = backend.load(LoadRequest(model=model, method="lora", device="cpu", threads=1))
type(engine.tokenizer).eos_ids = property(lambda self: ())  # no completion ends early
chats = [[{"role": "user", "content": text.format(37 * i + 11, i + 3)}] for i in range(questions)]
prompts = [tuple(engine.tokenizer.encode_chat(chat)) for chat in chats]
def round_of(most, seed):
    began, pick = time.process_time(), random.Random(seed)
    as_rollouts = {"for_training": True} if hasattr(Sampling(), "for_training") else {}
    groups = engine.generate(prompts, size, Sampling(max_new_tokens=most, **as_rollouts), seed)
    middle = time.process_time()
    texts = [[completion.tokens for completion in group] for group in groups]
    if tokens == "words":
        words = [tuple(engine.tokenizer.encode_text(word)) for word in ("delivery", "accounts", "sales", "repairs")]
        texts = [pick.choices(words, (7, 1, 1, 1), k=size) for _ in prompts]
    if name != "llamacpp":
        batch = [
            TrainSample(prompt, text, 1.0 if text == group[0] else -1.0)
            for prompt, group in zip(prompts, texts) for text in group
        ]
        engine.update(batch, PolicyUpdate(learning_rate=1e-5), seed)
    return {"generate": middle - began, "update": time.process_time() - middle}
round_of(4, 0)
print(json.dumps(round_of(4 if tokens == "words" else int(tokens), 1)))
"""
"""What a turn of --shape runs in each checkout: only what both have."""
CALM = "[limits]\npause_on_battery = false\nmax_celsius = 0\nmin_free_memory = 0\nmin_free_disk = 0\nnice = 0\n"


def cpu_seconds(tree: Path, model: str, rounds: int) -> float:
    """Of a node that does so many rounds and ends."""
    with tempfile.TemporaryDirectory() as home:
        (Path(home) / "config.toml").write_text(CALM, "utf-8")
        packages = [str(tree.resolve() / name) for name in ("app", "swarm", "backends", "assets")]
        env = dict(os.environ, PYTHONPATH=os.pathsep.join(packages), SAPO_HOME=home, OMP_NUM_THREADS="1")
        flags = ["--silo", "--quiet", "--model", model, "--threads", "1", "--eval-every", "0", "--rounds", str(rounds)]
        flags += ["--trainer", "fake"] if model.startswith("fake") else ["--precision", "float32"]
        command = [sys.executable, "-m", "sapo_desktop", "node", *flags]
        before = os.times()
        subprocess.run(command, env=env, check=True, stdout=subprocess.DEVNULL, stdin=subprocess.DEVNULL)
        after = os.times()
    return after.children_user + after.children_system - before.children_user - before.children_system


def engine_seconds(tree: Path, model: str, shape: str, engine: str) -> dict[str, float]:
    """Processor seconds of a round's generation and update."""
    packages = [str(tree.resolve() / name) for name in ("app", "swarm", "backends", "assets")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(packages), OMP_NUM_THREADS="1")
    command = [sys.executable, "-c", ENGINE, model, *shape.split("x"), engine, QUESTION]
    done = subprocess.run(command, env=env, check=True, stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
    seconds: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return seconds | {"round": seconds["generate"] + seconds["update"]}


def compare_shapes(args: argparse.Namespace) -> None:
    """Prints a line of medians for each shape."""
    sys.path.insert(0, str(ROOT))
    from tests.benchmarks.real_task import model_file

    model = model_file(args.model)
    arms = [("before", args.trees[0], "torch"), ("after", args.trees[1], "torch")]
    arms += [("llama.cpp", args.trees[1], "llamacpp")] * args.llama_cpp
    for shape in args.shape:
        rows: dict[str, list[dict[str, float]]] = {name: [] for name, _, _ in arms}
        for turn in range(args.turns):
            for name, tree, engine in arms if turn % 2 == 0 else arms[::-1]:
                rows[name].append(engine_seconds(tree, model, shape, engine))
                print(f"turn {turn + 1}, {shape}, {name}: {rows[name][-1]}", file=sys.stderr, flush=True)
        medians = {
            name: {part: round(statistics.median(row[part] for row in of), 2) for part in of[0]}
            for name, of in rows.items()
        }
        ratios = {
            part: round(
                statistics.median(a[part] / b[part] for a, b in zip(rows["before"], rows["after"], strict=True)), 2
            )
            for part in medians["after"]
        }
        print(json.dumps({"model": args.model, "shape": shape, "cpu seconds": medians, "before / after": ratios}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs=2, type=Path, metavar="CHECKOUT", help="before, after")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--shape", nargs="+", metavar="QxCxT", help="the engine's rounds of that many questions, …")
    parser.add_argument("--llama-cpp", action="store_true", help="with --shape: its generation too")
    args = parser.parse_args()
    if args.shape:
        compare_shapes(args)
        return
    seconds: list[list[float]] = [[], []]
    for turn in range(args.turns):
        for place, tree in enumerate(args.trees) if turn % 2 == 0 else reversed(list(enumerate(args.trees))):
            start, whole = (cpu_seconds(tree, args.model, n) for n in (START, START + args.rounds))
            seconds[place].append((whole - start) / args.rounds)
            print(f"turn {turn + 1}, {tree}: {seconds[place][-1]:.4f} s a round", file=sys.stderr, flush=True)
    ratios = [before / after for before, after in zip(*seconds, strict=True)]
    result = {
        "model": args.model,
        "cpu seconds a round": [round(statistics.median(s), 4) for s in seconds],
        "ratio before / after": round(statistics.median(ratios), 3),
        "fastest": round(min(seconds[0]) / min(seconds[1]), 3),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
