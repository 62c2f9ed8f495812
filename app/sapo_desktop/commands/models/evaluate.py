"""`sapo-desktop eval` and `compare`: two sets of weights on the same held-out questions, with intervals."""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence

from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.models import comparing
from sapo_desktop.services.models.checkpoints import SelectedWeights, select_weights, weights_of_model
from sapo_desktop.services.models.shelf import changes, history, store
from sapo_desktop.services.tasks import judging
from sapo_desktop.streams import json_line, print_progress
from sapo_swarm.scoring.rubric import JudgeAway

LEFT_OUT = "400 of a task, 4,000 over all tasks, half of a task with few questions"
"""The size of the held-out set that training never uses (held_out_exclusion)."""
JSON_KEYS = (
    "base and trained (for two models first and second) and difference, each with t1 (sampled) and t0 (greedy); of the first "
    "of these temperatures also tasks_before and tasks_after, one entry a task: pass_at_1 with low and high (95 %%), "
    "well_formed (share of the answers that hold an answer), truncated (share cut at the token limit) and swapped (pass@1 of "
    "the answer-permutation check: what remains if each question gets another one's answer). accuracy_share in comparison: "
    "part of the change that comes from better answers, not from better form. maybe_trained_on: questions that training may "
    "have used"
)
"""What the object holds, for --help."""


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    if verb == "compare":
        parser.add_argument("first", metavar="A", help="a model")
        parser.add_argument("second", metavar="B", nargs="?", default="base", help="another (default: the base of A)")
    else:
        parser.add_argument("name", nargs="?", default="", help="the model (default: the one trained last)")
        parser.add_argument("--before", default="base", help="base, latest or a checkpoint's number (default: base)")
        parser.add_argument("--after", default="latest", help="latest, base or a checkpoint's number (default: latest)")
    items = f"held-out questions a task (default: 100); training leaves out the first {LEFT_OUT}"
    parser.add_argument("--items", type=int, default=100, help=items)
    parser.add_argument(
        "--temperature",
        type=float,
        default=None,
        metavar="T",
        help="only at this one; 0 is greedy (default: both 1, as in training, and 0, as a chat answers)",
    )
    parser.add_argument(
        "--samples", type=int, default=1, help="completions a question, for pass@k; at 0 always one (default: 1)"
    )
    parser.add_argument("--preset", default="", help="difficulty (default: the model's)")
    parser.add_argument("--json", action="store_true", help=f"the result as one JSON object: {JSON_KEYS}")
    parser.add_argument(
        "--table", action="store_true", help="the table, and the result as one JSON object in the last line"
    )


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code."""
    if not 1 <= args.items <= 10_000 or not 1 <= args.samples <= 64:
        raise UsageError("--items is 1 to 10000 and --samples 1 to 64.")
    if args.temperature is not None and not 0 <= args.temperature <= 4:
        raise UsageError("--temperature is a number from 0 to 4.")
    if args.temperature == 0 and args.samples > 1:
        raise UsageError("At temperature 0 all samples are equal: leave out --samples.")
    home = Home.find()
    home.prepare()
    both = _both(home, args)
    for sentence in _stale(home, both):
        print(f"Careful: {sentence}", file=sys.stderr)
    refs = comparing.comparison_items(both, args.items, args.preset)
    if beyond := comparing.maybe_trained_on(both, refs):
        print(
            f"Careful: {beyond:,} of the {len(refs):,} questions may have been trained on: training leaves out the first "
            f"{LEFT_OUT}, in the model's difficulty.",
            file=sys.stderr,
        )
    temperatures = comparing.BOTH if args.temperature is None else (args.temperature,)
    began = time.perf_counter()
    judge = judging.judge_of(home, [chosen.config for chosen in both])
    try:
        results = asyncio.run(comparing.compare_weights(both, refs, temperatures, args.samples, print_progress, judge))
    except JudgeAway as error:
        raise AppError(str(error)) from error
    if not args.json:
        _print_tables(args, both, results, len(refs))
    if args.json or args.table:
        folder = str(both[1].checkpoint.parent.parent) if both[1].checkpoint else ""
        more = {"maybe_trained_on": beyond, "folder": folder, "seconds": time.perf_counter() - began}
        print(json_line({**comparing.as_json(results, _names(both)), **more}))
    return 0


def _print_tables(
    args: argparse.Namespace,
    both: tuple[SelectedWeights, SelectedWeights],
    results: Sequence[comparing.WeightsComparison],
    questions: int,
) -> None:
    """Print one table per temperature."""
    print(f"Before: {both[0].label}\nAfter:  {both[1].label}\n{questions} held-out questions")
    for result in results:
        samples = f", {result.samples} samples of each" if result.samples > 1 else ""
        print(f"\n{comparing.temperature_heading(result.temperature)}{samples}")
        print("\n".join(comparing.comparison_table(result, _heads(args, both))))


def _both(home: Home, args: argparse.Namespace) -> tuple[SelectedWeights, SelectedWeights]:
    """The two sides of the comparison; a base or an older checkpoint comes first. Raises UsageError."""
    if args.verb == "eval":
        return select_weights(home, args.name, args.before), select_weights(home, args.name, args.after)
    first = store.find_model(home, args.first)
    if args.second == "base":
        return weights_of_model(first, "base"), weights_of_model(first)
    return weights_of_model(first), weights_of_model(store.find_model(home, args.second))


def _stale(home: Home, both: tuple[SelectedWeights, SelectedWeights]) -> dict[str, None]:
    """Reasons why a figure is not truly held out, without duplicates."""
    models = [store.find_model(home, name) for name in dict.fromkeys(chosen.model for chosen in both) if name]
    return {
        text: None
        for model in models
        for text in changes.stale_tasks(model.record, history.load_history(model.folder).sessions)
    }


def _names(both: tuple[SelectedWeights, SelectedWeights]) -> tuple[str, str]:
    """The names of the two sides in the JSON object."""
    return ("base", "trained") if both[0].checkpoint is None else ("first", "second")


def _heads(args: argparse.Namespace, both: tuple[SelectedWeights, SelectedWeights]) -> tuple[str, str]:
    """The headings of the two columns of figures."""
    if args.verb == "eval":
        return "before", "after"
    return "base" if both[0].checkpoint is None else both[0].model, both[1].model
