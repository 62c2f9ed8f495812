"""`tasks new`, `check`, `show`, `delete`, `judge`: custom tasks."""

from __future__ import annotations

import argparse
import asyncio
import shlex
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import msgspec

from sapo_backends.errors import BackendError
from sapo_desktop import settings
from sapo_desktop.errors import UsageError
from sapo_desktop.paths import Home, typed_path
from sapo_desktop.services.bases import card
from sapo_desktop.services.machine import load_request
from sapo_desktop.services.models import control
from sapo_desktop.services.models.shelf.store import taken_model_names, train_on
from sapo_desktop.services.swarms import sharing
from sapo_desktop.services.tasks import expectation, judging, looking, review
from sapo_desktop.services.tasks import store as shipped
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, draft_task, rows_of
from sapo_desktop.services.tasks.store import describe_custom_tasks, keep_shots, require_own, require_unused, store_task
from sapo_desktop.services.tasks.store import remove_task as remove
from sapo_desktop.services.tasks.wizard.interface import TaskMeasurement
from sapo_desktop.streams import confirm_action, json_line, overwrite_line, print_progress
from sapo_swarm.config import RunConfig
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask, read_task
from sapo_swarm.tasks.own.import_rows import RowTable


def list_examples() -> int:
    """List the shipped examples."""
    for name, task in shipped.load_examples().items():
        print(f"{name:<20} {task.spec.description}")
    print("\nTake one: sapo-desktop tasks new NAME")
    return 0


def create_custom_task(args: argparse.Namespace) -> int:
    """Turn a file into a stored task that can be trained on."""
    home = Home.find()
    home.prepare()
    base = args.model or settings.load_settings(home.settings).run.model
    looking.require_base(args.model, home)  # before anything is stored
    table: RowTable | None = None
    unsure: list[str] = []
    if args.target in shipped.example_names() and not Path(args.target).exists():
        task, reason = shipped.load_example(args.target), "as it ships"
    else:
        found = draft_task(_path(args.target), _wishes(args, base))
        task, table, reason = found.task, found.table, found.reason
        guessed = [f"{found.guessed} Choose others with --question and --answer."] if found.guessed else []
        unsure = [*guessed, *found.notes]
    replaced = store_task(task, home, args.replace)
    _say([*looking.describe_task(task, reason), *unsure])
    if replaced is not None:
        print(f"The task of that name that was here is kept in {replaced} until the next one is replaced.")
    _asked(task)
    name = task.spec.name
    if args.allow_code and task.code:
        _allow(name)
    if task.code and not library.is_code_allowed(task.code):
        print(f"\nStored in {home.tasks / name}. It brings Python code, which never runs before you said yes to it:")
        print(f"read {home.tasks / name / task.code_name}, then: sapo-desktop tasks check {name} --allow-code")
        return 0
    asyncio.run(_look(task, table, args, home, keep_better=True))
    tried = f" --model {shlex.quote(args.model)}" if args.model else ""
    print(
        f"\nStored in {home.tasks / name}. Change anything in task.toml, then: sapo-desktop tasks check {name}{tried}"
    )
    print(f"Train on it: {train_on(name, args.model, taken_model_names(home))}")
    return 0


def check_task(args: argparse.Namespace) -> int:
    """Check a stored task, or a task folder anywhere. Exit code 1 if something is wrong with it."""
    home = Home.find()
    if args.allow_code:
        _allow(args.target)
    task = _named(args.target)
    if args.json:
        print(json_line(asyncio.run(_measured(task, args, home))))
        return 0
    _say(looking.describe_task(task, ""))
    _asked(task)
    return 1 if asyncio.run(_look(task, None, args, home)) else 0


def show_task(args: argparse.Namespace) -> int:
    """Describe a task and its shortcuts."""
    task = _named(args.target)
    _say(looking.describe_task(task, ""))
    _asked(task)
    _say(
        ["", looking.compare_judge(task.spec.name)]
        if task.spec.rubric
        else ["", *review.describe_shortcuts(asyncio.run(_shortcuts(task)))]
    )
    return 0


def delete_task(args: argparse.Namespace) -> int:
    """Delete a custom task from this machine, after a yes."""
    home, name = Home.find(), args.target
    home.prepare()
    require_own(name)
    if not args.even_in_use:
        require_unused(home, name)
    sharing.require_unshared(home, name)
    training = asyncio.run(control.in_training(home))
    if training is not None and name in training.config.tasks:
        raise UsageError(f"{training.name} is being trained on {name}. Stop it first: sapo-desktop stop")
    if not confirm_action(
        args.yes, f"Delete the task {name} with its rows, its settings and the copy of an earlier one?"
    ):
        return 1
    remove(home, name)
    print(
        f"Deleted the task {name}. The file that it was made from stays where it is, and so does what models learned."
    )
    return 0


def check_judge(args: argparse.Namespace) -> int:
    """Compare a judge with the person's ratings. Exit code 1 if they agree too little to train on."""
    home = Home.find()
    home.prepare()
    config = settings.load_settings(home.settings).run
    typed = {name: getattr(args, name) for name in ("judge_url", "judge_model") if getattr(args, name)}
    config = msgspec.structs.replace(config, **typed)
    file = _path(args.ratings) if args.ratings else None
    calibration = asyncio.run(
        judging.calibrate_judge(home, config, args.target, file, args.encoding, lambda text: _say([text]))
    )
    _say(judging.describe_calibration(args.target, calibration, config))
    return 1 if judging.judge_refusal(args.target, calibration.found, calibration.endpoint, config.judge_kappa) else 0


async def _shortcuts(task: OwnTask) -> review.ShortcutScores:
    answer_format = settings.load_settings(Home.find().settings).run.answer_format
    async with Scorer(answer_format=answer_format) as scorer:
        return await review.measure_shortcuts(task, scorer, review.train_places(task))


def _path(text: str) -> Path:
    path = typed_path(text)
    if not path.exists():
        raise UsageError(f"There is no file {text!r}, nor an example of that name (sapo-desktop tasks examples).")
    return path


def _allow(target: str) -> None:
    """Record the person's consent to the code of a stored task. Raises UsageError, BadTask."""
    folder = library.task_folder()
    if folder is None or not library.has_task(target):
        raise UsageError(f"--allow-code is for a task of yours that is stored. {describe_custom_tasks()}")
    task = read_task(folder / target)
    if not library.runs_code(task):
        raise UsageError(f"Task {target!r} holds no code.")
    library.allow_task_code(library.consent_bytes(task))
    if not task.code:
        print(
            f"From now on the Python that a model writes for {target}, as the task is now, is run in a process that can"
        )
        print("only calculate. A change needs a new yes.")
        return
    file = folder / target / task.code_name
    print(f"From now on {file} is run as it is now, in the scorer worker. A change needs a new yes.")


def _named(target: str) -> OwnTask:
    """A custom task by name or folder; a folder's parent becomes the library. Raises UsageError, BadTask."""
    if library.has_task(target):
        return library.load_task(target)
    if (Path(target) / "task.toml").exists():
        folder = Path(target).resolve()
        task = read_task(folder)
        if library.runs_code(task):  # consent stored beside a folder from elsewhere is not this person's
            raise UsageError(
                f"Task {folder.name!r} {'brings' if task.code else 'runs'} Python code. "
                f"Copy it into {library.task_folder()}, then read and allow it there."
            )
        library.set_task_folder(folder.parent)
        return task
    raise UsageError(f"There is no task of your own named {target!r}. {describe_custom_tasks()}")


def _wishes(args: argparse.Namespace, base: str) -> ImportOptions:
    if sum(map(bool, (args.environment, args.reward, args.rubric, args.rules, args.verifier))) > 1:
        raise UsageError(
            "Say one of --verifier, --rules, --reward, --environment and --rubric: a task is judged in one way."
        )
    return ImportOptions(
        name=args.name,
        question=args.question,
        answer=args.answer,
        prompt=args.prompt,
        extract=args.extract,
        heldout=_path(args.heldout) if args.heldout else None,
        environment=_path(args.environment) if args.environment else None,
        reward=_path(args.reward) if args.reward else None,
        verifier=args.verifier,
        rubric=args.rubric,
        rules=args.rules,
        encoding=args.encoding,
        base=base,
        reasons=looking.is_reasoning_model(base),
    )


async def _look(
    task: OwnTask, table: RowTable | None, args: argparse.Namespace, home: Home, keep_better: bool = False
) -> bool:
    """Report everything known before training; True if there were warnings. keep_better: store in the task
    the number of worked examples that the trial finds best."""
    config = looking.config_for(task, args.model, home)
    notes = looking.told_by_rows(task, table, config)
    if task.spec.rubric:
        _say(["", *(f"- {line}" for line in notes), looking.compare_judge(task.spec.name)])
        return bool(notes)
    async with Scorer(answer_format=config.answer_format) as scorer:
        shortcuts = await review.measure_shortcuts(task, scorer, review.train_places(task, table))
        notes += review.shortcut_warnings(shortcuts)
        _say(["", *review.describe_shortcuts(shortcuts)[:2]])
        if notes:
            _say(
                [
                    "",
                    f"{len(notes)} thing{'s' if len(notes) > 1 else ''} to look at:",
                    *(f"- {line}" for line in notes),
                ]
            )
        else:
            print("\nNothing to warn of.")
        if not args.no_model:
            shown = expectation.shown_model(config.model)
            print(f"\nTrying {shown} on training questions …", flush=True)
            _say(await _try(task, config, scorer, partial(_show_trial, shown), home if keep_better else None))
    return bool(notes)


def _show_trial(shown: str, fraction: float) -> None:
    print_progress(fraction, f"trying {shown}")


async def _try(
    task: OwnTask, config: RunConfig, scorer: Scorer, show: expectation.Show, keep_in: Home | None = None
) -> list[str]:
    """How the model does on the task, in sentences. keep_in: the home in which the better number of worked examples is stored."""
    try:
        measured = await expectation.measure_expectation(task, config, scorer, show)
    except BackendError as error:
        return [f"It could not be tried: {error}"]
    finally:
        overwrite_line("")  # it need not have come to 100 %
    if measured is None:
        return ["None of the questions fits into the model's context."]
    shots_changed = keep_in is not None and measured.shots != task.spec.shots
    if keep_in is not None and shots_changed:
        keep_shots(task, measured.shots, keep_in)
    home = Home.find()
    if measured.counts is not None and library.load_task(task.spec.name).spec.shots == measured.shots:
        trials = load_request.stored_trials(home, config)
        await asyncio.to_thread(trials.store, config, "", measured.counts, time.time())
    forecast = await asyncio.to_thread(card.expected_training_time, home, config, measure=True)
    return expectation.describe_expectation(measured, shots_changed, forecast)


async def _measured(task: OwnTask, args: argparse.Namespace, home: Home) -> TaskMeasurement:
    """The slow part of a check, with its progress on stderr."""
    config = looking.config_for(task, args.model, home)

    def show(label: str, fraction: float) -> None:
        print_progress(fraction, label)

    table = rows_of(task, _path(args.source), args.encoding) if args.source else None
    if task.spec.rubric:
        return TaskMeasurement((), (), (looking.compare_judge(task.spec.name),))
    show("looking for shortcuts", 0.0)
    async with Scorer(answer_format=config.answer_format) as scorer:
        shortcuts = await review.measure_shortcuts(task, scorer, review.train_places(task, table))
        trying = partial(show, f"trying {expectation.shown_model(config.model)}")
        sentences = () if args.no_model else await _try(task, config, scorer, trying, home if args.keep_shots else None)
    return TaskMeasurement(
        tuple(review.describe_shortcuts(shortcuts)[:2]), tuple(review.shortcut_warnings(shortcuts)), tuple(sentences)
    )


def _asked(task: OwnTask) -> None:
    """Print the first question as a model reads it, then the first rows."""
    _say(["", "Asked:", *(f"  | {line}" for line in looking.preview_question(task)), ""])
    for number, (question, answer) in enumerate(looking.preview_rows(task), 1):
        _say([f"{number}. {question}", *([f"   answer: {answer}"] if answer else [])])


def _say(lines: Sequence[str]) -> None:
    for line in lines:
        print(safe_text(line, 2000, lines=False))
