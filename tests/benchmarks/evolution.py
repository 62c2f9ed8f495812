"""Can a node that only generates learn by evolution strategies? Held-out pass@1 against GRPO's, for the same generated tokens.

    python tests/benchmarks/evolution.py --method es|grpo [--seed 1] [--completions 40960] [--log FILE]
        [--sigma 0.02] [--rate 0.02] [--pairs 32] [--width 16] [--items 60] [--first-item 400000]

A node whose engine cannot back-propagate (llama.cpp) can still swap an adapter: each member of a population answers the same
questions with the adapter's B matrices moved by sigma times noise that a seed gives back (and by its mirror image, arXiv
1703.03864), and what two nodes would exchange is a seed and a mean reward. B moves by --rate along the estimated gradient,
normalised to a root mean square of 1. A is random and stays, as in LoRA-FA. Weights and adapter are all that is in memory, as in
inference. GRPO: the app's rounds on the same adapter, both matrices. Every quarter of the completions a line goes to the log:
held-out pass@1 on the same questions with the same random numbers, the difference to the untrained model, and its 95 % interval
over questions.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / floor) for floor in ("app", "backends", "swarm", "assets")]

import numpy as np  # noqa: E402

from sapo_backends.base import Sampling, TrainSample  # noqa: E402
from sapo_backends.registry import get_backend  # noqa: E402
from sapo_desktop.services.machine import load_request  # noqa: E402
from sapo_swarm.algorithms import learning_rate, load_algorithm  # noqa: E402
from sapo_swarm.config import RunConfig  # noqa: E402
from sapo_swarm.evaluation import held_out_items  # noqa: E402
from sapo_swarm.node.rollouts import prompt_ids  # noqa: E402
from sapo_swarm.node.setup import complete_config  # noqa: E402
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer  # noqa: E402
from sapo_swarm.tasks.catalogue import preset_of, train_seed  # noqa: E402
from sapo_swarm.types import Question, TaskRef  # noqa: E402

ALPHA = 2.0
"""Of the adapter, a rank."""


class Bench:
    """A model with an adapter, its questions and its rewards. tokens: generated for training so far."""

    def __init__(self, config: RunConfig, scorer: Scorer) -> None:
        self.engine = get_backend("torch")().load(load_request.build_load_request(config))
        self.config = complete_config(config, self.engine.info.parameters, False, {})
        self.scorer, self.tokens = scorer, 0

    async def asked(self, step: int, count: int) -> list[Question]:
        """Fresh training questions, the tasks in turn."""
        tasks, seed = self.config.tasks, self.config.seed
        names = [tasks[(step * count + slot) % len(tasks)] for slot in range(count)]
        refs = [
            TaskRef(n, preset_of(n, self.config.preset), train_seed("es", "", step, i, seed))
            for i, n in enumerate(names)
        ]
        found = await self.scorer.questions(refs)
        return [q for q in found if isinstance(q, Question)]

    async def answered(self, questions: Sequence[Question], width: int, seed: int) -> tuple[list[Any], np.ndarray]:
        """Completions of each question, and their rewards (questions, width)."""
        prompts = [prompt_ids(self.engine.tokenizer, self.scorer, q) for q in questions]
        sampling = Sampling(max_new_tokens=self.config.max_new_tokens)
        groups = await asyncio.to_thread(self.engine.generate, prompts, width, sampling, seed)
        jobs = [
            (q.ref, [self.engine.tokenizer.decode(c.tokens) for c in group])
            for q, group in zip(questions, groups, strict=True)
        ]
        scored = await self.scorer.score_many(jobs)
        rewards = [s.rewards if isinstance(s, ScoredTexts) else (0.0,) * width for s in scored]
        self.tokens += sum(len(c.tokens) for group in groups for c in group)
        return groups, np.array(rewards)

    async def held_out(self, items: int, first: int) -> np.ndarray:
        """Success on each held-out question, two answers each."""
        refs = held_out_items(self.config.tasks, self.config.preset, items, first)
        found = [q for q in await self.scorer.questions(refs) if isinstance(q, Question)]
        before, rates = self.tokens, []
        for start in range(0, len(found), 90):
            rates.append((await self.answered(found[start : start + 90], 2, 10**6 + start))[1].mean(1))
        self.tokens = before
        return np.concatenate(rates)


def noise(shapes: dict[str, tuple[int, ...]], seed: int) -> dict[str, np.ndarray]:
    """A member's direction, from its seed alone."""
    rng = np.random.default_rng(seed)
    return {name: rng.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()}


async def evolve(bench: Bench, args: argparse.Namespace) -> AsyncIterator[int]:
    """One generation of the population each time. Yields completions that it took."""
    rank = bench.config.lora_rank
    start = {name: np.asarray(value) for name, value in bench.engine.adapter().items()}
    moved = {name: value.copy() for name, value in start.items() if "lora_B" in name}
    shapes = {name: value.shape for name, value in moved.items()}
    step = 0
    while True:
        questions = await bench.asked(step, args.width)
        differences = []
        for member in range(args.pairs):
            direction = noise(shapes, seed=10**6 * args.seed + 1000 * step + member)
            fitness = []
            for sign in (1.0, -1.0):
                tried = {name: moved[name] + sign * args.sigma * direction[name] for name in moved}
                bench.engine.set_adapter(start | tried, ALPHA * rank)
                fitness.append((await bench.answered(questions, 1, step))[1].mean())
            differences.append(float(fitness[0] - fitness[1]))
        gradient = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        for member, difference in enumerate(differences):
            if difference:
                for name, part in noise(shapes, seed=10**6 * args.seed + 1000 * step + member).items():
                    gradient[name] += difference * part
        size = float(np.sqrt(np.mean(np.concatenate([g.ravel() for g in gradient.values()]) ** 2)))
        if size > 0:
            for name in moved:
                moved[name] += args.rate * gradient[name] / size
        bench.engine.set_adapter(start | moved, ALPHA * rank)
        step += 1
        yield 2 * args.pairs * len(questions)


async def grpo(bench: Bench, args: argparse.Namespace) -> AsyncIterator[int]:
    """One of the app's rounds alone each time. Yields completions that it took."""
    config, info, rule = bench.config, bench.engine.info, load_algorithm(bench.config.algorithm)
    policy, step = rule.policy(config, learning_rate(config, info.method, info.parameters)), 0
    while True:
        questions = await bench.asked(step, config.local_groups + config.external_groups)
        groups, rewards = await bench.answered(questions, config.group_size, step)
        batch = [
            TrainSample(tuple(prompt_ids(bench.engine.tokenizer, bench.scorer, q)), tuple(c.tokens), float(a))
            for q, group, row in zip(questions, groups, rewards, strict=True)
            for c, a in zip(group, rule.advantages(row), strict=True)
            if a
        ]
        if batch:
            await asyncio.to_thread(bench.engine.update, batch, policy, step)
        step += 1
        yield rewards.size


async def main(args: argparse.Namespace) -> None:
    settings = {"trainer": "torch", "method": "lora", "precision": "float32", "preset": "starter"}
    config = RunConfig(model=args.model, threads=1, seed=args.seed, **settings)
    async with Scorer() as scorer:
        bench = Bench(config, scorer)
        base = await bench.held_out(args.items, args.first_item)
        done, quarter, began = 0, 1, time.process_time()
        spent = 0.0
        async for took in (evolve if args.method == "es" else grpo)(bench, args):
            done += took
            if done < quarter * args.completions / 4:
                continue
            spent += time.process_time() - began
            change = (await bench.held_out(args.items, args.first_item)) - base
            half = 1.96 * float(change.std(ddof=1)) / len(change) ** 0.5
            line = {key: vars(args)[key] for key in ("method", "seed", "sigma", "rate", "pairs", "width")} | {
                "completions": done,
                "tokens": bench.tokens,
                "seconds": round(spent, 1),
                "before": round(100 * float(base.mean()), 2),
                "points": round(100 * float(change.mean()), 2),
                "low": round(100 * (float(change.mean()) - half), 2),
                "high": round(100 * (float(change.mean()) + half), 2),
            }
            print(json.dumps(line), flush=True)
            if args.log:
                with args.log.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
            if quarter == 4:
                return
            quarter, began = quarter + 1, time.process_time()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method", choices=["es", "grpo"], required=True)
    parser.add_argument("--model", default="starter-1m")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--completions", type=int, default=40_960)
    parser.add_argument("--sigma", type=float, default=0.02)
    parser.add_argument("--rate", type=float, default=0.02)
    parser.add_argument("--pairs", type=int, default=32)
    parser.add_argument("--width", type=int, default=16, help="questions that each member answers, once each")
    parser.add_argument("--items", type=int, default=60)
    parser.add_argument("--first-item", type=int, default=400_000)
    parser.add_argument("--log", type=Path)
    asyncio.run(main(parser.parse_args()))
