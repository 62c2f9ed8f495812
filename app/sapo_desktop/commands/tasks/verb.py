"""`sapo-desktop tasks`: what a model can be trained on, and custom tasks."""

from __future__ import annotations

import argparse
import asyncio
from typing import get_args

from sapo_desktop.errors import UsageError
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.catalogue import held_out
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.spec import BadTask, Extract
from sapo_swarm.types import Question

USAGE = """\
sapo-desktop tasks                     every task with its presets, your own first
sapo-desktop tasks NAME                sample questions
sapo-desktop tasks new FILE            make a task of your own from a CSV, TSV or JSONL file
sapo-desktop tasks check NAME|FOLDER   look a task over: rows, shortcuts, what your model does with it
sapo-desktop tasks show NAME           what a task of your own is, with five rows
sapo-desktop tasks delete NAME         remove a task of your own from this machine
sapo-desktop tasks examples            tasks of your own to start from; tasks new EXAMPLE takes one
sapo-desktop tasks judge NAME          compare the judge of a judged task with your own ratings
sapo-desktop tasks share NAME          let the members of the swarm that you host train on a task of yours
sapo-desktop tasks unshare NAME        take it out of the swarm again
sapo-desktop tasks offered [NAME]      what a swarm offers (--join INVITE, or yours): look before you accept
sapo-desktop tasks accept NAME         accept a task of the swarm, as it is now"""
OWN = ("new", "check", "show", "delete", "judge", "examples")
SHARED = ("share", "unshare", "offered", "accept")


def add_arguments(parser: argparse.ArgumentParser, verb: str) -> None:
    """The verb's own arguments."""
    parser.usage = USAGE
    parser.add_argument(
        "task",
        nargs="?",
        default="",
        help=f"a task, or: {', '.join((*OWN, *SHARED))}",
    )
    parser.add_argument("target", nargs="?", default="", help="of these: a file, a task or a folder")
    parser.add_argument("version", nargs="?", default="", help="with accept --yes: the version that offered printed")
    parser.add_argument("--preset", default="", help="difficulty (default: the task's first)")
    parser.add_argument("--count", type=int, default=2, help="how many samples (default: 2)")
    parser.add_argument(
        "--answer",
        default="",
        metavar="COLUMN",
        help="with new: the column with the right answers",
    )
    new = parser.add_argument_group("a task of your own (new, check)")
    new.add_argument("--name", default="", help="its name (default: the file's)")
    new.add_argument(
        "--question", default="", metavar="COLUMN", help="the column that is asked (default: found by its name)"
    )
    new.add_argument("--prompt", default="", metavar="TEXT", help="the question, with {column} where a cell goes")
    new.add_argument(
        "--extract",
        default="",
        choices=get_args(Extract),
        help="where a completion's answer stands (default: proposed with the verifier; tags for a bundled starter)",
    )
    new.add_argument(
        "--verifier", default="", metavar="KIND", help="how it is judged, such as exact or number (default: proposed)"
    )
    new.add_argument(
        "--heldout", default="", metavar="FILE", help="held-out rows (default: a fifth of the rows, by content)"
    )
    new.add_argument(
        "--encoding",
        default="",
        metavar="NAME",
        help="of the file (of --ratings, too), such as cp1252 or mac_roman (default: found out, and said)",
    )
    new.add_argument(
        "--replace", action="store_true", help="take the place of a task of that name, which is kept aside"
    )
    new.add_argument(
        "--environment",
        default="",
        metavar="FILE",
        help="a Python file with a class of tools (reset, typed methods, get_reward): the task is played in turns",
    )
    new.add_argument(
        "--reward",
        default="",
        metavar="FILE",
        help="a Python file with a function of completions and columns that gives the rewards, as TRL's trainers take it",
    )
    new.add_argument(
        "--allow-code",
        action="store_true",
        help="with check, new: yes, run this task's code (reward.py or environment.py) from now on",
    )
    new.add_argument("--model", default="", help="which base to try on it (default: run.model of the settings)")
    new.add_argument(
        "--json",
        action="store_true",
        help="with check: what measuring told as one JSON object; its progress on the error stream",
    )
    new.add_argument(
        "--source",
        default="",
        metavar="FILE",
        help="with check --json: tell the row numbers of the file it was made from",
    )
    new.add_argument(
        "--rules",
        default="",
        metavar="TEXT",
        help="with new, for rows without answers: rules that an answer keeps, such as: 3 to 8 words; contains {column}; "
        "ends with !",
    )
    new.add_argument(
        "--rubric",
        default="",
        metavar="TEXT",
        help="with new: a model judges the answers by this text (see tasks judge)",
    )
    judge = parser.add_argument_group("a judged task (judge)")
    judge.add_argument(
        "--ratings",
        default="",
        metavar="FILE",
        help="a table of your ratings: columns question, answer, rating (good, bad); default: those of the chat",
    )
    judge.add_argument("--judge-url", default="", metavar="URL", help="the judge (default: run.judge_url)")
    judge.add_argument("--judge-model", default="", metavar="NAME", help="its name there (default: run.judge_model)")
    new.add_argument(
        "--keep-shots",
        action="store_true",
        help="with check --json: give the stored task as many worked examples as the trial finds best (new always does)",
    )
    new.add_argument("--no-model", action="store_true", help="do not try a model on it")
    swarm = parser.add_argument_group("a task in a swarm (share, offered, accept)")
    swarm.add_argument(
        "--join",
        default="",
        metavar="INVITE",
        help="with offered, accept: the swarm of this invite, which is not kept; -: typed or piped in (default: the saved one)",
    )
    swarm.add_argument(
        "--share-heldout",
        action="store_true",
        help="with share: members get the held-out rows too and measure on the same ones (default: they stay here)",
    )
    parser.add_argument(
        "--yes",
        action="store_true",
        help="with delete: without asking; with accept: yes to the VERSION that follows, without a question",
    )
    new.add_argument(
        "--even-in-use", action="store_true", help="with delete: although settings of models name the task"
    )


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code."""
    if args.version and not (args.task == "accept" and args.yes):
        raise UsageError(f"{args.version!r} is one word too many. Usage:\n{USAGE}")
    if args.task in OWN:
        return _own(args)
    if args.task in SHARED:
        return _shared(args)
    if args.target:
        raise UsageError(f"There is no `tasks {args.task}`. Usage:\n{USAGE}")
    return _catalogue(args)


def _own(args: argparse.Namespace) -> int:
    from sapo_desktop.commands.tasks import own

    if args.task == "examples":
        return own.list_examples()
    if not args.target:
        raise UsageError(f"tasks {args.task} needs a {'file' if args.task == 'new' else 'task'}. Usage:\n{USAGE}")
    verbs = {
        "new": own.create_custom_task,
        "check": own.check_task,
        "show": own.show_task,
        "delete": own.delete_task,
        "judge": own.check_judge,
    }
    return verbs[args.task](args)


def _shared(args: argparse.Namespace) -> int:
    from sapo_desktop.commands.tasks import shared

    if args.yes and not args.version:
        raise UsageError(
            "Write: sapo-desktop tasks accept NAME --yes VERSION. The version is what tasks offered NAME prints."
        )
    if not args.target and args.task != "offered":
        raise UsageError(f"tasks {args.task} needs a task. Usage:\n{USAGE}")
    return shared.main(args)


def _catalogue(args: argparse.Namespace) -> int:
    if not args.task:
        return list_tasks()
    if not 1 <= args.count <= 100:
        raise UsageError("--count is a number from 1 to 100.")
    preset = args.preset or next(iter(catalogue.CATALOGUE.get(args.task, {library.PRESET: None})))
    if not catalogue.is_own(args.task):
        catalogue.preset_settings(args.task, preset)
    return asyncio.run(print_samples(args.task, preset, args.count))


# The list of tasks, and sample questions with accepted answers.


def list_tasks() -> int:
    """Print all tasks, custom ones first; a broken one with its fault."""
    for name in library.task_names():
        try:
            task = library.load_task(name)
            description = f"own: {len(task.train):,} rows, {len(task.held_out):,} held out. {task.spec.description}"
        except BadTask as error:
            description = str(error)
        print(f"{name:<28} {safe_text(description, 200, lines=False)}")
    for name, presets in catalogue.CATALOGUE.items():
        print(f"{name:<28} {', '.join(presets)}")
    return 0


async def print_samples(task: str, preset: str, count: int) -> int:
    """Print held-out questions, and for a built-in task what its verifier accepts besides the true answer."""
    from sapo_desktop.services.tasks import looking
    from sapo_swarm.scoring.scorer import Scorer

    async with Scorer() as scorer:
        for question in await scorer.questions([held_out(task, preset, i) for i in range(count)]):
            text = question.prompt if isinstance(question, Question) else f"(does not regenerate: {question.reason})"
            print(f"--- {question.ref.label}\n{safe_text(text).strip()}\n")
    if not catalogue.is_own(task):
        print("\n".join(looking.describe_acceptance(task, preset)))
    return 0
