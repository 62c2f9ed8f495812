"""`tasks new`, `tasks check`, `tasks show`: tasks of the person's own, in plain words."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from pathlib import Path

import msgspec

from sapo_backends.base import BackendError
from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.tasks import examples as shipped
from sapo_desktop.services.tasks import expectation, proposal, review, shortcuts
from sapo_desktop.services.tasks.store import installed, keep
from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task
from sapo_swarm.tasks.own.rows import Table

SHOWN = 5
CELL = 200
PROBLEMS = 20


def examples() -> int:
    """List what ships."""
    for name, task in shipped.every().items():
        print(f"{name:<20} {task.spec.description}")
    print("\nTake one: sapo-desktop tasks new NAME")
    return 0


def new(args: argparse.Namespace) -> int:
    """From a file to a stored task that can be trained on."""
    home = Home.find()
    home.prepare()
    table: Table | None = None
    if args.target in shipped.names() and not Path(args.target).exists():
        task, reason = shipped.one(args.target), "as it ships"
    else:
        found = proposal.draft(_path(args.target), _wishes(args))
        task, table, reason = found.task, found.table, found.reason
    keep(task, home, args.replace)
    _describe(task, reason)
    _rows(task)
    asyncio.run(_look(task, table, args, home))
    name = task.spec.name
    print(f"\nStored in {home.tasks / name}. Change anything in task.toml, then: sapo-desktop tasks check {name}")
    print(f"Train on it: sapo-desktop node --silo --tasks {name}")
    return 0


def check(args: argparse.Namespace) -> int:
    """Look a stored task, or a folder anywhere, over. Exit code 1 where something is wrong with it."""
    home = Home.find()
    if args.allow_code:
        _allow(args.target)
    task = _named(args.target)
    _describe(task, "")
    return 1 if asyncio.run(_look(task, None, args, home)) else 0


def show(args: argparse.Namespace) -> int:
    """What a task is, and the shortcuts that it leaves."""
    task = _named(args.target)
    _describe(task, "")
    _rows(task)
    _say(["", *shortcuts.sentences(asyncio.run(_shortcuts(task)))])
    return 0


async def _shortcuts(task: OwnTask) -> shortcuts.Shortcuts:
    async with Scorer() as scorer:
        return await shortcuts.measure(task, scorer, review.train_places(task))


def _path(text: str) -> Path:
    path = Path(text).expanduser()
    if not path.exists():
        raise UsageError(f"There is no file {text!r}, nor an example of that name (sapo-desktop tasks examples).")
    return path


def _allow(target: str) -> None:
    """The person's yes to the code of a stored task. Raises UsageError, BadTask."""
    folder = library.folder()
    if folder is None or not library.has(target):
        raise UsageError(f"--allow-code is for a task of yours that is stored. {installed()}")
    task = read_task(folder / target)
    if not task.code:
        raise UsageError(f"Task {target!r} holds no code.")
    library.allow(task.code)
    print(
        f"From now on {folder / target / 'reward.py'} is run as it is now, in the scorer worker. A change needs a new yes."
    )


def _named(target: str) -> OwnTask:
    """An own task by its name or folder; the library is where it lies. Raises UsageError, BadTask."""
    if library.has(target):
        return library.find(target)
    if (Path(target) / "task.toml").exists():
        folder = Path(target).resolve()
        task = read_task(folder)
        if task.code:  # a yes that lies beside a folder from elsewhere is not the person's
            raise UsageError(
                f"Task {folder.name!r} brings Python code. Copy it into {library.folder()}, then read and allow it there."
            )
        library.use(folder.parent)
        return task
    raise UsageError(f"There is no task of your own named {target!r}. {installed()}")


def _wishes(args: argparse.Namespace) -> proposal.Wishes:
    if len(args.answer) > 1:
        raise UsageError("With new, --answer names one column.")
    return proposal.Wishes(
        name=args.name,
        question=args.question,
        answer=args.answer[0] if args.answer else "",
        prompt=args.prompt,
        extract=args.extract,
        heldout=_path(args.heldout) if args.heldout else None,
    )


async def _look(task: OwnTask, table: Table | None, args: argparse.Namespace, home: Home) -> bool:
    """Everything that can be told before training; True where there was something to warn of."""
    config = _config(task, args, home)
    rows = review.numbered(task, table)
    said = [*_problems(task, table), *review.review(task, rows), *review.room(task, rows, config)]
    async with Scorer() as scorer:
        found = await shortcuts.measure(task, scorer, review.train_places(task, table))
        said += shortcuts.warnings(found)
        _say(["", *shortcuts.sentences(found)[:2]])
        if said:
            _say(["", f"{len(said)} thing{'s' if len(said) > 1 else ''} to look at:", *(f"- {line}" for line in said)])
        else:
            print("\nNothing to warn of.")
        if not args.no_model:
            await _try(task, config, scorer)
    return bool(said)


async def _try(task: OwnTask, config: RunConfig, scorer: Scorer) -> None:
    print(f"\nTrying {config.model} on {min(expectation.PROMPTS, len(task.train))} questions …", flush=True)
    try:
        found = await expectation.measure(task, config, scorer)
    except BackendError as error:
        print(f"It could not be tried: {error}")
        return
    if found is None:
        print("None of the questions fits into the model's context.")
    else:
        _say(expectation.sentences(found))


def _config(task: OwnTask, args: argparse.Namespace, home: Home) -> RunConfig:
    """The settings that a run on this task alone would have."""
    config = settings.load(home.settings).run
    changes = {"tasks": (task.spec.name,), "external_groups": 0} | ({"model": args.model} if args.model else {})
    return flags.with_room(msgspec.structs.replace(config, **changes))


def _problems(task: OwnTask, table: Table | None) -> list[str]:
    """Rows that were left out; of a file that was just read they are numbered as there."""
    bad = list(task.problems)
    if table is not None:
        bad = [*table.problems, *(line for line in task.problems if line.partition(": ")[2] not in set(table.problems))]
        bad = [line.removeprefix("train.jsonl: ").removeprefix("heldout.jsonl: ") for line in bad]
    bad.sort(key=_row_number)
    if len(bad) <= PROBLEMS:
        return [f"Left out. {line}" for line in bad]
    return [f"Left out. {line}" for line in bad[:PROBLEMS]] + [f"{len(bad) - PROBLEMS} more rows were left out."]


def _row_number(sentence: str) -> tuple[str, int]:
    """What problems are sorted by: the file where one is named, then the row."""
    side, _, rest = sentence.rpartition("Row ")
    digits = rest.partition(":")[0]
    return side, int(digits) if digits.isdigit() else 0


def _describe(task: OwnTask, reason: str) -> None:
    spec = task.spec
    kinds = " + ".join(msgspec.to_builtins(part)["kind"] for part in spec.verifier)
    _say(
        [
            f"Task {spec.name}: {len(task.train):,} rows to train on, {len(task.held_out):,} held out. "
            f"Version {task.digest[:12]}.",
            *([spec.description] if spec.description else []),
            f"Asked: {spec.prompt}",
            f"Judged by: {kinds}{f' ({reason})' if reason else ''}; the answer is taken from: {spec.extract}.",
        ]
    )


def _rows(task: OwnTask) -> None:
    for number, row in enumerate(task.train[:SHOWN], 1):
        asked, answer = task.spec.fill(row), row.get(task.spec.answer, "")
        _say([f"{number}. {_cut(asked)}", f"   answer: {_cut(answer)}"])


def _cut(text: str) -> str:
    plain = " ".join(text.split())
    return plain if len(plain) <= CELL else f"{plain[:CELL]}… ({len(text):,} characters)"


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(safe_text(line, 2000, lines=False))
