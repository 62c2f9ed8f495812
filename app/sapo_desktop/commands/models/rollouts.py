"""`sapo-desktop rollouts [MODEL]`: screen 3 on the command line: a model's groups, filtered, listed or exported."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from sapo_desktop.dashboard.history.groups import REWARDS, GroupFilter, Trained
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.streams import json_line
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.journal import read_only
from sapo_swarm.node.training_count import LINEAGE, TrainingCounts
from sapo_swarm.protocol.safe_text import safe_text

_TRAINED: dict[str, Trained] = {"yes": "trained on", "no": "not trained on", "": ""}


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """See the module's docstring."""
    parser.add_argument("model", nargs="?", default="", help="a model (default: the one used last), or a journal.db")
    parser.add_argument("--task", default="", help="only groups of this task")
    parser.add_argument("--source", choices=["local", "external"], default="", help="generated here, or by others")
    parser.add_argument(
        "--reward", choices=[name for name in REWARDS if name], default="", help="mixed: rewards that are not all equal"
    )
    parser.add_argument("--trained", choices=["yes", "no"], default="", help="whether the model was trained on them")
    parser.add_argument("--first-solved", action="store_true", help="only the first success at each task")
    parser.add_argument("--text", default="", help="words in questions or attempts; the last may be unfinished")
    parser.add_argument("--limit", type=int, default=20, help="how many, the newest first; 0 is all (default: 20)")
    parser.add_argument("--show", type=int, metavar="NUMBER", help="one group in full, with a right answer")
    parser.add_argument("--json", action="store_true", help="the groups as JSON lines")
    parser.add_argument("-o", "--output", type=Path, help="write all that fit as JSON lines to this new file")


def main(args: argparse.Namespace) -> int:
    """See the module's docstring; the exit code. Raises UsageError, AppError, JournalError."""
    from sapo_desktop.dashboard.history import groups
    from sapo_desktop.dashboard.history.groups import JournalGroups
    from sapo_desktop.services.models import recording

    home = Home.find()
    journal = recording.find_recording(home, args.model)[1]
    source, folder = JournalGroups(journal), home.cache / "rollouts"
    counts = TrainingCounts.of(read_only(journal, kinds=LINEAGE)) if journal.exists() else TrainingCounts()
    group_filter = GroupFilter(
        args.task,
        args.source,
        args.reward,
        _TRAINED[args.trained],
        args.first_solved,
        args.text,
    )
    index = groups.build_group_index(source, folder, _told)
    try:
        if args.task and args.task not in index.tasks():
            here = f"There are: {', '.join(index.tasks())}." if index.tasks() else "No groups yet."
            raise UsageError(f"There is no group of the task {args.task!r}. {here}")
        if args.output is not None:
            count = groups.write_groups(index, group_filter, args.output)
            print(f"Wrote {count:,} group{'' if count == 1 else 's'} to {args.output}")
            return 0
        if args.show is not None:
            return _show(source.read([args.show])[0][1] if source.read([args.show]) else None, args.show, counts)
        for number, event in enumerate(index.every(group_filter)):
            if args.limit and number >= args.limit:
                break
            print(json_line(event) if args.json else describe_group(event, counts))
        if not args.json:
            total = index.page(group_filter, 0).total
            print(
                f"{total:,} groups fit. {group_filter.describe()}"
                if total
                else f"No group fits. {group_filter.describe()}"
            )
    finally:
        index.close()
    return 0


def _told(steps: int) -> None:
    if steps % 20 == 0:
        from sapo_desktop.dashboard.history.groups import STEP

        print(f"reading the journal once: {steps * STEP:,} groups", file=sys.stderr)


def describe_group(event: GroupRecorded, counts: TrainingCounts) -> str:
    """One group: its number, round of practice, number of correct attempts, source, task, start of the question."""
    group = event.group
    right = sum(reward >= 1 for reward in group.rewards)
    marks = ["external" if group.external else "local", "trained on" if event.trained else "not trained on"]
    marks += ["first solved"] if event.first_solved else []
    question = safe_text(" ".join(group.question.prompt.split()), 60)
    return (
        f"{event.seq:>8}  round {counts.practice_round(event.round):>6,}  {right} of {len(group.rewards)} right  "
        f"{safe_text(group.question.ref.dataset, 40)}  {', '.join(marks)}  {question}"
    )


def _show(event: GroupRecorded | None, number: int, counts: TrainingCounts) -> int:
    if event is None:
        raise UsageError(f"There is no group {number}. The list says which there are: sapo-desktop rollouts")
    from sapo_desktop.dashboard.look import choose_glyphs
    from sapo_desktop.dashboard.screens.rollouts.detail import group_details
    from sapo_desktop.services.tasks.looking import TruthLookup

    async def asked() -> str:
        truths = TruthLookup()
        try:
            return await truths.of(event.group.question)
        finally:
            await truths.close()

    print(group_details(event, choose_glyphs(), asyncio.run(asked()), counts).plain)
    return 0
