"""`sapo-desktop tasks`: what a model can be trained on."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop.errors import UsageError
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.seeds import held_out
from sapo_swarm.types import Question


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("task", nargs="?", default="", help="show sample questions of this task")
    parser.add_argument("--preset", default="", help="difficulty (default: the task's first)")
    parser.add_argument("--count", type=int, default=2, help="how many samples (default: 2)")


def main(args: argparse.Namespace) -> int:
    if not args.task:
        for name, presets in catalogue.CATALOGUE.items():
            print(f"{name:<28} {', '.join(presets)}")
        return 0
    if not 1 <= args.count <= 100:
        raise UsageError("--count is a number from 1 to 100.")
    preset = args.preset or next(iter(catalogue.CATALOGUE.get(args.task, {"": None})))
    catalogue.settings(args.task, preset)
    return asyncio.run(_show(args.task, preset, args.count))


async def _show(task: str, preset: str, count: int) -> int:
    from sapo_swarm.scoring.scorer import Scorer

    async with Scorer() as scorer:
        for found in await scorer.questions([held_out(task, preset, i) for i in range(count)]):
            text = found.prompt if isinstance(found, Question) else f"(does not regenerate: {found.reason})"
            print(f"--- {found.ref.label}\n{text.strip()}\n")
    return 0
