"""A node's rounds, in which no two micro-batches have the same lengths: processor seconds and memory.

    python tests/benchmarks/bench_lengths.py [--model starter] [--rounds 12] [--precision auto]

Each round generates 8 completions of 32 real questions, then trains on 8 texts of 5 to 96 tokens for each question, of
which about half have no advantage. Prints one line of JSON a model: medians over the rounds in processor seconds of
this process (other programs do not change them), milliseconds a trained token, and resident memory in MiB that came
on top of the loaded model's, at the end and at most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sapo_assets import NAMES, model_path
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.torch_backend import TorchBackend
from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.scoring.prompts import build_messages
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.questions import generate_entry

GROUPS, GROUP_SIZE, SHORTEST, LONGEST = 32, 8, 5, 96
POLICY = PolicyUpdate(learning_rate=1e-5)
Result = TypeVar("Result")


def resident(field: str) -> float:
    """MiB of VmRSS (now) or VmHWM (at most so far)."""
    lines = Path("/proc/self/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) / 1024


def questions(number: int) -> list[list[dict[str, str]]]:
    """The chats of one round, a mixture of tasks."""
    refs = [
        held_out(PAPER_TASKS[i % len(PAPER_TASKS)], "starter", (number * GROUPS + i) // len(PAPER_TASKS))
        for i in range(GROUPS)
    ]
    return [build_messages(generate_entry(ref)[1]["question"]) for ref in refs]


def texts(prompts: list[tuple[int, ...]], number: int) -> list[TrainSample]:
    """Completions cut from the round's questions: the same whatever the engine computes."""
    rng = random.Random(number)
    source = [token for prompt in prompts for token in prompt]
    batch = []
    for prompt in prompts:
        trained = rng.random() < 0.5
        for i in range(GROUP_SIZE):
            length, start = rng.randint(SHORTEST, LONGEST), rng.randrange(len(source) - LONGEST)
            batch.append(TrainSample(prompt, tuple(source[start : start + length]), (-1.0) ** i if trained else 0.0))
    return batch


def timed(work: Callable[[], Result]) -> tuple[float, Result]:
    """Processor seconds of all threads, and the result."""
    began = time.process_time()
    result = work()
    return time.process_time() - began, result


def measure(engine: Engine, rounds: int) -> dict[str, Any]:
    """Medians and memory over the rounds; see the module."""
    asked = [[tuple(engine.tokenizer.encode_chat(chat)) for chat in questions(number)] for number in range(rounds)]
    before, generated, updated, rates, lengths = resident("VmRSS"), [], [], [], []
    for number, prompts in enumerate(asked):
        batch = texts(prompts, number)
        seconds, groups = timed(lambda: engine.generate(prompts, GROUP_SIZE, Sampling(max_new_tokens=LONGEST), number))  # noqa: B023
        generated.append(seconds)
        seconds, _ = timed(lambda: engine.update(batch, POLICY, number))  # noqa: B023
        updated.append(seconds)
        rates.append(1000 * seconds / sum(len(s.completion) for s in batch if s.advantage))
        lengths.append(sum(len(c.tokens) for group in groups for c in group))
    return {
        "update_s": round(statistics.median(updated), 3),
        "first_update_s": round(updated[0], 3),
        "ms_per_token": round(statistics.median(rates), 4),
        "generate_s": round(statistics.median(generated), 3),
        "tokens_generated": statistics.median(lengths),
        "loaded_mib": round(before),
        "growth_mib": round(resident("VmRSS") - before),
        "peak_growth_mib": round(resident("VmHWM") - before),
        "precision": engine.info.precision,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", choices=NAMES, help="without it each model in a process of its own")
    parser.add_argument("--precision", default="auto")
    parser.add_argument("--rounds", type=int, default=12)
    options = parser.parse_args()
    if options.model is None:
        for name in NAMES:
            subprocess.run([sys.executable, *sys.argv, "--model", name], check=True)
        return
    request = LoadRequest(model=str(model_path(options.model)), precision=options.precision, device="cpu", threads=1)
    print(json.dumps({"model": options.model, **measure(TorchBackend().load(request), options.rounds)}))


if __name__ == "__main__":
    main()
