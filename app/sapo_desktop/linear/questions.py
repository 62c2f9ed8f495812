"""Questions in lines, with numbered answers, one typed line at a time: the first questions, and those about a table."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from sapo_desktop.dashboard.look import base_name, plain_text
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.first_questions import LIST, OTHER, OWN, FirstRunAnswers, FirstRunInfo, is_checked
from sapo_desktop.services.tasks.wizard.interface import TaskPreview, WizardAnswers, WizardResult

if TYPE_CHECKING:
    from sapo_desktop.services.tasks.wizard.actions import HomeTasks

# Typed lines, read one at a time and only on demand, so that a verb that is running has the keyboard.

_CHUNK = 65_536
_LONGEST = 4096
"""Characters of a line that are read."""


class TypedLines:
    """Reads a file descriptor in a daemon thread, so that leaving does not hang on a read."""

    def __init__(self, descriptor: int = 0) -> None:
        self._descriptor = descriptor
        self._bytes = b""
        self._ended = False
        self._reading: asyncio.Future[bytes] | None = None

    async def line(self) -> str | None:
        """The next line without its line ending; None at the end of the input."""
        while b"\n" not in self._bytes and not self._ended:
            if self._reading is None:
                self._reading = asyncio.get_running_loop().create_future()
                threading.Thread(target=self._read, args=(self._reading,), daemon=True).start()
            chunk = await asyncio.shield(self._reading)
            self._reading = None
            self._bytes, self._ended = self._bytes + chunk, not chunk
        first, _, self._bytes = self._bytes.partition(b"\n")
        if self._ended and not first:
            return None
        return first.decode("utf-8", "replace").rstrip("\r")[:_LONGEST]

    def _read(self, reading: asyncio.Future[bytes]) -> None:
        try:
            chunk = os.read(self._descriptor, _CHUNK)
        except OSError:  # the terminal is gone
            chunk = b""
        try:
            reading.get_loop().call_soon_threadsafe(_tell, reading, chunk)
        except RuntimeError:  # the event loop has closed
            return


def _tell(reading: asyncio.Future[bytes], found: bytes) -> None:
    if not reading.done():
        reading.set_result(found)


# Questions one after another: answers are numbered, Enter takes the first, q leaves.


class Left(Exception):
    """The person chose to start nothing."""


class NumberedQuestions:
    """Asks each question until the answer is valid; says why an answer is not."""

    def __init__(self, typed: TypedLines, say: Callable[[str], None]) -> None:
        self._typed, self._say = typed, say

    async def line(self, question: str) -> str:
        """What is typed after this question. Raises Left."""
        self._say(question)
        line = await self._typed.line()
        if line is None or line.strip() == "q":
            raise Left
        return line.strip()

    async def pick(self, name: str, answers: Sequence[tuple[str, str]]) -> str:
        """One of these (value, meaning). Raises Left."""
        self._say(f"{name}, {len(answers)} answers:")
        for place, (value, what) in enumerate(answers, 1):
            self._say(f"{place}, {plain_text(value, 80)}: {plain_text(what, 200)}")
        values = [value for value, _ in answers]
        while True:
            line = await self.line(f"{name}: a number, or Enter for {values[0]}")
            if not line or line in values:
                return line or values[0]
            if line.isascii() and line.isdigit() and 1 <= int(line[:4]) <= len(values):
                return values[int(line[:4]) - 1]
            self._say(f"{plain_text(line, 40)} is none of the {len(values)} answers")


# The person's own table: from its file to a task that the model was tried on.

OWN_TABLE = "a table of yours (CSV, JSONL): its file is asked for at the end"
CHANGES = (
    "Enter stores this and tries the model on it. To change something first, type one of these words: question, answer, judged, "
    "name, prompt, file"
)


class TableQuestions(NumberedQuestions):
    """Leads from a file to a stored task, as the wizard on the drawn screens does."""

    def __init__(self, tasks: HomeTasks, typed: TypedLines, say: Callable[[str], None]) -> None:
        super().__init__(typed, say)
        self._tasks = tasks

    async def ask(self, base: str = "") -> WizardResult:
        """The stored task, and the base to train on it. base: chosen already; "" asks for it. Raises Left."""
        base = base or await self._base()
        while True:
            path = await self.line("The file of the table: CSV, TSV, JSONL or Parquet, a row for each question")
            if not path:
                self._say("Type its path, or q to leave")
                continue
            from sapo_desktop.services.tasks.wizard.places import dropped_file

            if (stored := await self._stored(WizardAnswers(dropped_file(path) or path, base=base))) is None:
                continue
            name, source = stored
            await self._measure(name, base, source)
            await self.line(f"Enter trains {base_name(base)} on {name}; q leaves, the task stays")
            return WizardResult(name, base)

    async def _base(self) -> str:
        try:
            return await self.pick("Model", await self._tasks.models())
        except USER_ERRORS as error:
            self._say(plain_text(str(error), 600))
            raise Left from error

    async def _stored(self, answers: WizardAnswers) -> tuple[str, str] | None:
        """The name of the task that was made, and its file; None for another file."""
        preview: TaskPreview | None = None
        while True:
            try:
                preview = await self._tasks.look(answers)
            except USER_ERRORS as error:
                self._say(plain_text(str(error), 600))
                if preview is None:
                    return None
                answers = preview.answers  # as it was before the last change
                continue
            self._describe(preview)
            word = await self.line(CHANGES)
            if word == "file":
                return None
            if word:
                answers = await self._changed(preview, word)
                continue
            try:
                name = preview.answers.name
                if await self._tasks.taken(name) and not await self._may_replace(name):
                    answers = replace(preview.answers, name=await self.line("Another name for the task"))
                    continue
                return await self._tasks.keep(preview.answers, True), preview.answers.path
            except USER_ERRORS as error:
                self._say(plain_text(str(error), 600))
                answers = preview.answers

    def _describe(self, preview: TaskPreview) -> None:
        """What was read from the file, and how it will be asked and judged."""
        answers, verifiers = preview.answers, dict(preview.verifiers)
        for text in (*preview.summary, *preview.said):
            self._say(plain_text(text, 600))
        if answers.question:
            self._say(
                f"Question: column {plain_text(answers.question, 80)}. Answer: column {plain_text(answers.answer, 80)}."
            )
        self._say(f"Judged by {answers.verifier}: {plain_text(verifiers.get(answers.verifier, ''), 200)}")
        if preview.asked:
            self._say(f"The model reads, for example: {plain_text(' '.join(' '.join(preview.asked).split()), 1200)}")
        for which, (_, right) in zip(("this", "the next row"), preview.rows, strict=False):
            self._say(f"The right answer to {which}: {plain_text(right, 200)}")

    async def _changed(self, preview: TaskPreview, word: str) -> WizardAnswers:
        """The answers with one of them changed by the person."""
        answers, columns = preview.answers, [(name, "a column of the file") for name in preview.columns]
        match word:
            case "question" if columns:
                return replace(answers, question=await self.pick("Question", columns), prompt="")
            case "answer" if columns:  # a different answer column needs a different verifier
                return replace(answers, answer=await self.pick("Answer", columns), verifier="", extract="")
            case "judged":
                return replace(answers, verifier=await self.pick("Judged by", preview.verifiers), extract="")
            case "name":
                return replace(answers, name=await self.line("Name of the task") or answers.name)
            case "prompt" if columns:
                holes = ", ".join(f"{{{name}}}" for name in preview.columns)
                typed = await self.line(
                    f"The question as the model shall read it, with a column in it: {holes}. Enter: as proposed"
                )
                return replace(answers, prompt=typed)
        self._say(f"{plain_text(word, 40)} cannot be changed here")
        return answers

    async def _may_replace(self, name: str) -> bool:
        line = await self.line(
            f"There is a task {name} already. yes replaces it (it is kept in replaced/tasks of the data folder); Enter: another "
            "name"
        )
        return line.lower() in ("y", "yes")

    async def _measure(self, name: str, base: str, source: str) -> None:
        """Try the base on the stored task, and say what to expect."""
        self._say(f"Task {name} is stored. Trying {base_name(base)} on it, a few minutes for a large model")
        doing = ""
        try:
            async with aclosing(self._tasks.measure(name, base, source)) as steps:
                async for step in steps:
                    if step.measured is not None:
                        measured = step.measured
                        for text in (*measured.expectation, *measured.shortcuts, *measured.warnings):
                            self._say(plain_text(text, 600))
                    elif (now := step.progress.partition("% ")[2]) != doing:
                        doing = now
                        self._say(plain_text(doing, 200))
        except USER_ERRORS as error:
            self._say(plain_text(str(error), 600))


# The first questions.

MODES = (
    ("silo", "train alone, nothing leaves this machine"),
    ("swarm", "share the text of attempts, learn from other nodes'; needs an invite"),
)


class FirstRunQuestions(NumberedQuestions):
    """The first questions."""

    def __init__(self, typed: TypedLines, say: Callable[[str], None], tasks: HomeTasks | None = None) -> None:
        """tasks: makes a task of a table; None where no table can be trained on."""
        super().__init__(typed, say)
        self._tasks = tasks

    async def ask(self, info: FirstRunInfo) -> FirstRunAnswers | None:
        """The answers; None if the person left."""
        self._say(
            "Welcome to sapo-desktop. It trains a language model here, on this machine: on a table of yours, or on "
            "reasoning tasks by reinforcement learning. Enter takes answer 1 of every question, q leaves and starts nothing."
        )
        while info.whole is not None:
            info = await info.whole()
        try:
            mode: Literal["silo", "swarm"] = "swarm" if await self.pick("Mode", MODES) == "swarm" else "silo"
            invite = await self._invite(info) if mode == "swarm" else ""
            hardware = await self.pick("Hardware", info.hardware)
            own = self._tasks is not None
            tasks = await self.pick(
                "Tasks", [(name, OWN_TABLE if name == OWN else what) for name, what in info.tasks if own or name != OWN]
            )
            model = await self._model(info, tasks == OWN)
            limits = await self.pick("Limits", info.limits)
            name = (await self.line("Name that a swarm sees, or Enter to stay anonymous"))[:40]
            task = ""
            if tasks == OWN and self._tasks is not None:
                made = await TableQuestions(self._tasks, self._typed, self._say).ask(model)
                model, task = made.base, made.task
        except Left:
            return None
        return FirstRunAnswers(mode, invite, False, hardware, model, tasks, limits, name, task)

    async def _invite(self, info: FirstRunInfo) -> str:
        from sapo_swarm.protocol.invite import (  # imports cryptography: only when an invite is typed
            BadInvite,
            parse_invite,
        )

        while True:
            line = await self.line("Paste the invite, one line that begins with sapo://")
            try:
                parse_invite(line)
                wrong = await info.let_in(line) if info.let_in else ""
            except BadInvite as error:
                wrong = str(error)
            if not wrong:
                return line
            self._say(plain_text(wrong, 400))

    async def _model(self, info: FirstRunInfo, own: bool) -> str:
        """A usable model; the hub is asked about a typed name, and about the hub models on the list. own: for a table of the
        person's, which a toy cannot learn: a real one comes first."""
        models = sorted(info.models, key=lambda pair: own and pair[0] != info.own_base)
        while True:
            chosen = await self.pick("Model", models)
            if chosen == LIST:
                chosen = await self._listed(info)
            model = await self._name() if chosen == OTHER else chosen
            wrong = await info.check(model) if info.check and is_checked(chosen) else ""
            if not wrong:
                return model
            self._say(plain_text(wrong, 400))

    async def _listed(self, info: FirstRunInfo) -> str:
        """A model on this computer or to download. Unusable ones are listed first, each with its reason."""
        assert info.offers is not None  # otherwise this answer is not offered
        self._say("Looking for models on this computer")
        groups, answers = await info.offers(False), list[tuple[str, str]]()
        for group in groups:
            for offer in group.offers:
                if offer.blocked:
                    self._say(f"Not {plain_text(offer.value, 80)}: {plain_text(offer.blocked, 200)}")
                else:
                    answers.append((offer.value, f"{offer.detail}. {group.title}"))
            for note in group.notes:
                self._say(plain_text(note, 300))
        return await self.pick("Model of the list", answers) if answers else OTHER

    async def _name(self) -> str:
        while not (line := await self.line("The model's hub id, such as owner/name, a GGUF file, or a folder")):
            self._say("Type one, or q to leave")
        return line
