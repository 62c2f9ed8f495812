"""`sapo-desktop tasks`: what a model can be trained on."""

from __future__ import annotations

import argparse
import asyncio

from sapo_desktop.errors import UsageError
from sapo_swarm.evaluation import items, wilson
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.seeds import held_out
from sapo_swarm.types import Question


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    parser.add_argument("task", nargs="?", default="", help="show sample questions of this task")
    parser.add_argument("--preset", default="", help="difficulty (default: the task's first)")
    parser.add_argument("--count", type=int, default=2, help="how many samples (default: 2)")
    parser.add_argument(
        "--answer",
        action="append",
        default=[],
        metavar="TEXT",
        help="what this answer would score if it were given to every question, unread (may be repeated)",
    )
    parser.add_argument("--items", type=int, default=400, help="held-out questions for --answer (default: 400)")


def main(args: argparse.Namespace) -> int:
    if not args.task:
        if args.answer:
            raise UsageError("--answer needs a task: sapo-desktop tasks propositional_logic --answer '(P ∨ Q)'.")
        for name, presets in catalogue.CATALOGUE.items():
            print(f"{name:<28} {', '.join(presets)}")
        return 0
    if not 1 <= args.count <= 100:
        raise UsageError("--count is a number from 1 to 100.")
    preset = args.preset or next(iter(catalogue.CATALOGUE.get(args.task, {"": None})))
    catalogue.settings(args.task, preset)
    if args.answer:
        if not 1 <= args.items <= 10_000:
            raise UsageError("--items is a number from 1 to 10000.")
        return asyncio.run(_unread(args.task, preset, args.answer, args.items))
    return asyncio.run(_show(args.task, preset, args.count))


async def _show(task: str, preset: str, count: int) -> int:
    from sapo_swarm.scoring.scorer import Scorer

    async with Scorer() as scorer:
        for found in await scorer.questions([held_out(task, preset, i) for i in range(count)]):
            text = found.prompt if isinstance(found, Question) else f"(does not regenerate: {found.reason})"
            print(f"--- {found.ref.label}\n{text.strip()}\n")
    return 0


async def _unread(task: str, preset: str, answers: list[str], count: int) -> int:
    """What each answer alone would score: a task where that is much can be passed without being solved."""
    from sapo_swarm.node.evaluation.evaluate import give_to_all
    from sapo_swarm.scoring.scorer import Scorer

    refs = items([task], preset, count)
    async with Scorer() as scorer:
        for text in answers:
            verdicts = await give_to_all(scorer, refs, text)
            if not verdicts:
                raise UsageError(f"None of the held-out questions of {task} ({preset}) regenerates here.")
            right = sum(verdicts)
            low, high = wilson(right, len(verdicts))
            shown = safe_text(text, lines=False)
            print(
                f"{shown}: right on {right} of {len(verdicts)} held-out questions of {task} ({preset}), "
                f"{100 * right / len(verdicts):.1f} % (95 %: {100 * low:.1f} to {100 * high:.1f})",
                flush=True,
            )
    return 0
