"""Two checkouts of this project in turns on one machine, for whose speed varies from minute to minute: what the lab and a bundled
model spend their time on, in processor seconds of one thread.

    git worktree add ../before HEAD~1
    python tests/benchmarks/before_after.py ../before . [--turns 7] [--model starter-1m]

Prints, for each kind of work, the median of the ratios after / before, and the ratio of the fastest turns.
"""

from __future__ import annotations

import argparse
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

KINDS = ("prefill", "questions", "groups", "updates")
TASKS, PROMPTS, GROUP, NEW_TOKENS = 9, 32, 8, 64


def works(model: str) -> dict[str, Callable[[], object]]:
    """The kinds of work, with the packages of whichever checkout is first on the path."""
    from sapo_backends.base import PolicyUpdate, Sampling, TrainSample
    from sapo_desktop.services.machine.engines import builder
    from sapo_swarm.config import PAPER_TASKS, RunConfig
    from sapo_swarm.tasks.prompts import messages
    from sapo_swarm.tasks.questions import generate_entry, question_of
    from sapo_swarm.tasks.seeds import held_out

    config = RunConfig(model=model, trainer="torch", precision="float32", threads=1, device="cpu")
    engine = builder(config)(lambda fraction, phrase: None)
    refs = [held_out(task, "paper", index) for task in PAPER_TASKS for index in range(PROMPTS)]
    asked = [question_of(ref, generate_entry(ref)[1]) for ref in refs]
    prompts = [engine.tokenizer.encode_chat(messages(question.prompt)) for question in asked]
    batches = [prompts[i : i + PROMPTS] for i in range(0, len(prompts), PROMPTS)]
    rng = random.Random(0)
    drawn = [rng.sample(prompts, GROUP) for _ in range(TASKS)]
    sampling = Sampling(max_new_tokens=NEW_TOKENS)
    groups = [engine.generate(chosen, GROUP, sampling, seed) for seed, chosen in enumerate(drawn)]
    updates = [
        [
            TrainSample(tuple(prompt), completion.tokens, 1.0 if i % 2 else -1.0)
            for prompt, group in list(zip(chosen, found, strict=True))[:2]
            for i, completion in enumerate(group)
        ]
        for chosen, found in zip(drawn, groups, strict=True)
    ]
    return {
        "prefill": lambda: [engine.generate(batch, 1, Sampling(max_new_tokens=1), 0) for batch in batches],
        "questions": lambda: [engine.generate(batch, 1, sampling, 0) for batch in batches],
        "groups": lambda: [engine.generate(chosen, GROUP, sampling, 0) for chosen in drawn],
        "updates": lambda: [engine.update(batch, PolicyUpdate("grpo", learning_rate=0.0), 0) for batch in updates],
    }


def child(model: str) -> None:
    """A line of seconds for every line that comes in."""
    found = works(model)
    for kind in KINDS:
        found[kind]()  # compiles and fills caches
    print("ready", flush=True)
    for _ in sys.stdin:
        seconds = []
        for kind in KINDS:
            began = time.process_time()
            found[kind]()
            seconds.append(time.process_time() - began)
        print(*seconds, flush=True)


def start(tree: Path, model: str) -> subprocess.Popen[str]:
    packages = [str(tree.resolve() / name) for name in ("app", "swarm", "backends", "assets")]
    env = dict(os.environ, PYTHONPATH=os.pathsep.join(packages), OMP_NUM_THREADS="1")
    command = [sys.executable, __file__, "--child", "--model", model]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    text = process.stdout.readline()
    if not text:
        raise SystemExit("A checkout failed; its message is above.")
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trees", nargs="*", type=Path, metavar="TREE", help="before, after")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.model)
    if len(args.trees) != 2:
        parser.error("two checkouts: before and after")
    processes = [start(tree, args.model) for tree in args.trees]
    for process in processes:
        line(process)
    turns: list[list[list[float]]] = []
    for _ in range(args.turns):
        turn = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("\n")
            process.stdin.flush()
            turn.append([float(seconds) for seconds in line(process).split()])
        turns.append(turn)
    for process in processes:
        process.communicate()
    for i, kind in enumerate(KINDS):
        median = statistics.median(after[i] / before[i] for before, after in turns)
        fastest = min(after[i] for _, after in turns) / min(before[i] for before, _ in turns)
        print(f"{kind:<10} {median:.3f} of the time in the median turn, {fastest:.3f} in the fastest")


if __name__ == "__main__":
    main()
