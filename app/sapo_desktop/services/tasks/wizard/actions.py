"""The wizard on this home. Files are read in threads; what loads a model runs in a separate process."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from pathlib import Path
from typing import Literal, ParamSpec, TypeVar, get_args

import msgspec

from sapo_desktop.errors import AppError
from sapo_desktop.paths import Home, typed_path
from sapo_desktop.services.models.screen.actions import HomeModels, node_held
from sapo_desktop.services.models.screen.interface import NewModel
from sapo_desktop.services.models.shelf import store
from sapo_desktop.services.nodes import children
from sapo_desktop.services.tasks import looking, ratings
from sapo_desktop.services.tasks import store as examples
from sapo_desktop.services.tasks.proposal.columns import VerifierProposal
from sapo_desktop.services.tasks.proposal.draft import ImportOptions, TaskDraft, draft_task, free_name, name_from_file
from sapo_desktop.services.tasks.store import store_task
from sapo_desktop.services.tasks.wizard.interface import (
    FileChoice,
    MeasurementStep,
    TaskMeasurement,
    TaskPreview,
    WizardAnswers,
)
from sapo_desktop.services.tasks.wizard.places import suggest_files
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.import_rows import RowTable, read_table
from sapo_swarm.tasks.own.spec import Extract

NAMED = 200
"""Left-out rows that are listed: a screen can be scrolled."""
FIRST_RULES = "at most 20 words"
"""Proposed where a file holds questions and nothing else."""
Stamp = tuple[str, int, int]
"""A file as it was read: its path, modification time, size."""
P = ParamSpec("P")
T = TypeVar("T")


class HomeTasks:
    """Every method raises USER_ERRORS."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._models = HomeModels(home)
        self._read: tuple[Stamp, RowTable] | None = None
        self._looking: asyncio.Task[TaskPreview] | None = None
        self._last: tuple[Stamp, WizardAnswers, TaskDraft, TaskPreview] | None = None

    async def places(self, typed: str) -> tuple[FileChoice, ...]:
        """Tables and folders at the typed path, the newest tables first."""
        return await _thread(self._places, typed)

    def _places(self, typed: str) -> tuple[FileChoice, ...]:
        rated = () if typed else ratings.rated_files(self._home)
        mine = tuple(FileChoice(path.name, str(path), "answers that you rated in the chat") for path in rated)
        choices = suggest_files(typed, time.time())
        return (*choices, *mine)

    async def look(self, answers: WizardAnswers) -> TaskPreview:
        """Read the file (once) and propose the rest. One at a time: the thread of an abandoned call goes on."""
        while self._looking is not None and not self._looking.done():
            await asyncio.wait([self._looking])
        self._looking = asyncio.create_task(_thread(self._look, answers))
        return await asyncio.shield(self._looking)

    def _look(self, answers: WizardAnswers) -> TaskPreview:
        path = typed_path(answers.path)
        if self._last is not None and path.exists():
            stamp, last_answers, draft_of, preview = self._last
            completed = replace(preview.answers, name="")
            same = (last_answers, completed, replace(completed, extract="" if preview.extract else completed.extract))
            if stamp == _stamp(path) and replace(answers, name="") in same:
                return _renamed(
                    preview, draft_of, free_name(answers.name) if answers.name else name_from_file(path.stem)
                )
        draft = self._draft(answers)
        preview = self._seen(answers, draft)
        if self._read is not None and draft.table.rows:
            self._last = self._read[0], replace(answers, name=""), draft, preview
        return preview

    def _seen(self, answers: WizardAnswers, found: TaskDraft) -> TaskPreview:
        spec = found.task.spec
        table = found.table if found.table.rows else None
        config = looking.config_for(found.task, answers.base, self._home) if answers.base else None
        warnings = looking.told_by_rows(found.task, table, config, NAMED)
        return TaskPreview(
            columns=found.columns,
            answers=WizardAnswers(
                path=answers.path,
                name=spec.name,
                question=found.question,
                answer=spec.answer,
                prompt=answers.prompt,
                extract=spec.extract,
                verifier=answers.verifier or found.proposals[0].kind,
                rules=found.rules,
                base=answers.base,
            ),
            rows=tuple(looking.preview_rows(found.task)),
            verifiers=tuple((proposal.kind, proposal.reason) for proposal in found.proposals),
            summary=tuple(looking.describe_task(found.task, found.reason)),
            said=(*filter(None, [found.guessed]), *found.notes, *warnings),
            asked=tuple(looking.preview_question(found.task)),
            extract=spec.extract if not answers.extract else "",
        )

    def _draft(self, answers: WizardAnswers) -> TaskDraft:
        """The task that the file would become. Raises BadTask, UsageError, OSError."""
        path = typed_path(answers.path)
        if answers.path in examples.example_names() and not path.exists():
            task = examples.load_example(answers.path)
            offer = tuple(VerifierProposal(part, "as it ships") for part in task.spec.verifier[:1])
            return TaskDraft(task, RowTable(), "as it ships", offer)
        extract: Extract | Literal[""] = answers.extract if answers.extract in get_args(Extract) else ""  # type: ignore[assignment]
        wishes = ImportOptions(
            answers.name,
            answers.question,
            answers.answer,
            answers.prompt,
            extract,
            verifier=answers.verifier,
            rules=answers.rules,
            base=answers.base,
            reasons=bool(answers.base) and looking.is_reasoning_model(answers.base),
        )
        table = self._table(path)
        if not answers.rules and len(table.columns) == 1:
            wishes = replace(wishes, rules=FIRST_RULES)
        return draft_task(path, wishes, table)

    def _table(self, path: Path) -> RowTable:
        """The file's rows; read again only where it was written since."""
        stamp = _stamp(path)
        if self._read is None or self._read[0] != stamp:
            self._read = stamp, read_table(path)
        return self._read[1]

    async def keep(self, answers: WizardAnswers, replace: bool) -> str:
        """Store the task; returns its name."""
        return await _thread(self._keep, answers, replace)

    def _keep(self, answers: WizardAnswers, replace: bool) -> str:
        task = self._draft(answers).task
        library.set_task_folder(self._home.tasks)
        store_task(task, self._home, replace)
        return task.spec.name

    async def taken(self, name: str) -> bool:
        """Whether a task of that name is stored already."""
        library.set_task_folder(self._home.tasks)
        return await _thread(library.has_task, name)

    async def models(self) -> tuple[tuple[str, str], ...]:
        """(base, explanation) of the models to try and to train, the default first."""
        return (await self._models.offer()).bases

    async def measure(self, name: str, base: str, source: str) -> AsyncGenerator[MeasurementStep, None]:
        """Shortcuts in a stored task, and how an untrained base does on it. Closing the generator stops the work. source: the
        file whose row numbers are shown. A working node waits meanwhile: it would slow down every figure."""
        arguments = ["tasks", "check", name, "--json", "--keep-shots", "--model", base]
        arguments += ["--source", source] if source not in examples.example_names() else []
        async with node_held(self._home), contextlib.aclosing(children.stream_verb(arguments)) as steps:
            async for step in steps:
                if isinstance(step, str):
                    yield MeasurementStep(progress=step)
                else:
                    yield MeasurementStep(measured=msgspec.convert(json.loads(step), TaskMeasurement))

    async def train(self, name: str, base: str) -> str:
        """A new model that starts from the base, on this task alone; the node trains it now. Returns a sentence."""
        library.set_task_folder(self._home.tasks)
        taken = await asyncio.to_thread(store.taken_model_names, self._home)
        called = store.unused_name(store.suggest_model_name(name), taken)
        return await self._models.new(NewModel(called, base, tasks=(name,)))

    async def rate(self, model: str, question: str, text: str, good: bool) -> str:
        """Store a thumb up or down on an answer of that model as a row; returns a sentence."""
        up, down = await _thread(self._rate, model, question, text, good)
        return f"Rated {'good' if good else 'bad'}: {up} good and {down} bad answers of {model}. m makes a task of them"

    def _rate(self, model: str, question: str, text: str, good: bool) -> tuple[int, int]:
        answer_format = store.find_model(self._home, model).config.answer_format
        return ratings.save_rating(self._home, model, question, text, good, answer_format)


def _stamp(path: Path) -> Stamp:
    status = path.stat()
    return str(path), status.st_mtime_ns, status.st_size


def _renamed(seen: TaskPreview, found: TaskDraft, name: str) -> TaskPreview:
    """The same file as a task of that name."""
    task = replace(found.task, spec=msgspec.structs.replace(found.task.spec, name=name))
    summary = tuple(looking.describe_task(task, found.reason))
    return replace(seen, answers=replace(seen.answers, name=name), summary=summary)


async def _thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run in a worker thread; a file that cannot be read becomes an AppError with a sentence."""
    try:
        return await asyncio.to_thread(function, *args, **kwargs)
    except OSError as error:
        raise AppError(f"{error.filename} cannot be read ({error.strerror}).") from error
