"""`sapo-desktop eval`: two checkpoints on the same held-out questions, with intervals."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import time
from pathlib import Path

import msgspec

from sapo_backends.base import Sampling
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models.checkpoints import Chosen, choose
from sapo_swarm.evaluation import Comparison, Interval, ItemResult, compare, held_out_items, mean_pass_at_k, task_scores


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("--run", default="", metavar="ID", help="which run (default: the latest)")
    parser.add_argument("--before", default="base", help="base, latest or a round number (default: base)")
    parser.add_argument("--after", default="latest", help="latest, base or a round number (default: latest)")
    parser.add_argument("--items", type=int, default=100, help="held-out questions a task (default: 100)")
    parser.add_argument("--temperature", type=float, default=1.0, help="0 is greedy (default: 1)")
    parser.add_argument("--samples", type=int, default=1, help="completions a question, for pass@k (default: 1)")
    parser.add_argument("--preset", default="", help="difficulty (default: the run's)")
    parser.add_argument("--json", action="store_true", help="the result as one JSON object")


def main(args: argparse.Namespace) -> int:
    if not 1 <= args.items <= 10_000 or not 1 <= args.samples <= 64:
        raise UsageError("--items is 1 to 10000 and --samples 1 to 64.")
    if args.temperature == 0 and args.samples > 1:
        raise UsageError("At temperature 0 all samples are equal: leave out --samples.")
    home = Home.find()
    both = [choose(home, args.run, args.before), choose(home, args.run, args.after)]
    began = time.perf_counter()
    before, after = (asyncio.run(_answers(chosen, args)) for chosen in both)
    comparison = compare(before, after)
    if args.json:
        print(json.dumps(_as_json(args, both, before, after, comparison, time.perf_counter() - began)))
    else:
        _print(args, both, before, after, comparison)
    return 0


async def _answers(chosen: Chosen, args: argparse.Namespace) -> list[ItemResult]:
    from sapo_swarm.node.engine_thread import EngineHost
    from sapo_swarm.node.evaluation.evaluate import answer
    from sapo_swarm.scoring.scorer import Scorer

    config, host = chosen.config, EngineHost()
    refs = held_out_items(config.tasks, args.preset or config.preset, args.items)
    sampling = Sampling(args.temperature, 1.0, config.max_new_tokens)

    def show(fraction: float) -> None:
        if sys.stderr.isatty():
            end = "\n" if fraction >= 1 else ""
            print(f"\r{chosen.label}: {100 * fraction:3.0f} %", end=end, file=sys.stderr, flush=True)

    try:
        await host.load(lambda: chosen.load(lambda fraction, phrase: None))
        async with Scorer() as scorer:
            return await answer(host, scorer, refs, sampling, args.samples, show)
    finally:
        await host.close()


def _print(
    args: argparse.Namespace,
    both: list[Chosen],
    before: list[ItemResult],
    after: list[ItemResult],
    comparison: Comparison,
) -> None:
    print(f"Before: {both[0].label}\nAfter:  {both[1].label}")
    print(f"{len(after)} held-out questions, temperature {args.temperature:g}, {args.samples} sample(s) each\n")
    print(f"{'pass@1, %':<26}{'before':>8}{'after':>8}   change (95 % interval)")
    old = {s.task: s for s in task_scores(before)}
    for score in task_scores(after):
        change = _change(comparison.tasks[score.task])
        print(f"{score.task:<26}{100 * old[score.task].pass_at_1:>8.1f}{100 * score.pass_at_1:>8.1f}   {change}")
    first, last = mean_pass_at_k(before, 1), mean_pass_at_k(after, 1)
    print(f"{'all':<26}{100 * first:>8.1f}{100 * last:>8.1f}   {comparison.delta.sentence()}")
    k = 2
    while k <= args.samples:
        print(f"{f'pass@{k}, all':<26}{100 * mean_pass_at_k(before, k):>8.1f}{100 * mean_pass_at_k(after, k):>8.1f}")
        k *= 2
    formed = [sum(sum(i.well_formed) for i in r) / sum(len(i.correct) for i in r) for r in (before, after)]
    print(f"{'well-formed answers':<26}{100 * formed[0]:>8.1f}{100 * formed[1]:>8.1f}")
    print(f"\nItems gained {comparison.gained}, lost {comparison.lost}, McNemar p = {comparison.p_value:.2g}")
    if comparison.accuracy_share is not None:
        print(f"Share of the gain that remains among well-formed answers: {100 * comparison.accuracy_share:.0f} %")
    shortcut = [score for score in task_scores(after) if score.shortcut]
    for score in shortcut:
        print(
            f"By rote: {score.task}, {100 * score.pass_at_1:.1f} % and with the answers to other questions "
            f"{100 * (score.permuted or 0.0):.1f} %: at least half of this score does not come from reading the question."
        )
    if shortcut:
        print("Training with --contrast 2 pays nothing for an answer that is also right on one of two other questions.")


def _change(interval: Interval) -> str:
    mark = "" if interval.excludes_zero else "   no measurable change"
    return f"{100 * interval.value:+6.1f} ({100 * interval.low:+.1f} to {100 * interval.high:+.1f}){mark}"


def _as_json(
    args: argparse.Namespace,
    both: list[Chosen],
    before: list[ItemResult],
    after: list[ItemResult],
    comparison: Comparison,
    seconds: float,
) -> dict[str, object]:
    ks = [k for k in (1, 2, 4, 8, 16, 32, 64) if k <= args.samples]
    return {
        "before": both[0].label,
        "after": both[1].label,
        "folder": str(Path(both[1].checkpoint.parent.parent)) if both[1].checkpoint else "",
        "items": len(after),
        "temperature": args.temperature,
        "samples": args.samples,
        "pass_at_k_before": {k: mean_pass_at_k(before, k) for k in ks},
        "pass_at_k_after": {k: mean_pass_at_k(after, k) for k in ks},
        "tasks_before": msgspec.to_builtins(task_scores(before)),
        "tasks_after": msgspec.to_builtins(task_scores(after)),
        "comparison": msgspec.to_builtins(comparison),
        "seconds": seconds,
    }
