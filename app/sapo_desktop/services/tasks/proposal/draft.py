"""From a file of rows to a proposed task: which columns, where the answer is, how it is judged. Nothing is run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from sapo_backends.checkpoints.locate import BUNDLED
from sapo_desktop.errors import UsageError
from sapo_desktop.services.tasks.proposal import columns, options
from sapo_desktop.services.tasks.proposal.columns import KINDS, VerifierProposal, propose_verifiers
from sapo_desktop.services.tasks.proposal.wording import (
    QuestionWording,
    WordingInput,
    plain_wording,
    propose_wording,
    rules_wording,
)
from sapo_desktop.services.tasks.ratings import COLUMN as RATING
from sapo_desktop.services.tasks.ratings import without_bad
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.tasks.own.folder import MAX_CODE, OwnTask, build_task, split_held_out
from sapo_swarm.tasks.own.import_rows import RowTable, column_slug, read_bytes, read_table
from sapo_swarm.tasks.own.rules import parse_rules
from sapo_swarm.tasks.own.spec import (
    BadTask,
    ChoiceVerifier,
    EnvironmentVerifier,
    Extract,
    FunctionVerifier,
    JudgedVerifier,
    RulesVerifier,
    TaskSpec,
    validate_spec,
)

RESERVED = ("new", "check", "show", "judge", "examples", "delete", "remove", "share", "unshare", "offered", "accept")
"""Subcommands of `tasks`: a task with such a name could not be addressed."""


@dataclass(frozen=True)
class ImportOptions:
    """What the person said about the file; "" lets the app propose. base: the model to be asked; reasons: it reasons before
    it answers, so that no answer is short."""

    name: str = ""
    question: str = ""
    answer: str = ""
    prompt: str = ""
    extract: Extract | Literal[""] = ""
    heldout: Path | None = None
    environment: Path | None = None
    reward: Path | None = None
    verifier: str = ""
    rubric: str = ""
    rules: str = ""
    encoding: str = ""
    base: str = BUNDLED[0]
    reasons: bool = False

    @property
    def tagged(self) -> bool:
        """Whether answers are between tags: the person said so, or the base was trained to write them."""
        made_for_tags = self.base in BUNDLED or self.base.partition(":")[0] == "fake"
        return self.extract == "tags" or (not self.extract and made_for_tags)


@dataclass(frozen=True)
class TaskDraft:
    """A task that is not stored yet. table: everything that was read, in the task's form, for its row numbers; reason: why
    this verifier; proposals: every proposed verifier, the chosen one first. columns: those of the file; question: the
    question column, "" where the person wrote the wording. rules: that an answer keeps, "" for none.
    guessed: the guessed columns, "" where names decided them; notes: how the file was interpreted, and which columns are not
    used."""

    task: OwnTask
    table: RowTable
    reason: str
    proposals: tuple[VerifierProposal, ...]
    columns: tuple[str, ...] = ()
    question: str = ""
    rules: str = ""
    guessed: str = ""
    notes: tuple[str, ...] = ()


def draft_task(path: Path, wishes: ImportOptions, table: RowTable | None = None) -> TaskDraft:
    """A proposed task from a file. table: its content, where it was read already. Raises BadTask, UsageError, OSError."""
    file = table or read_table(path, encoding=wishes.encoding)
    wished = {columns.find_column(file, wishes.question), columns.find_column(file, wishes.answer)}
    table = file if RATING in wished else without_bad(file)
    if not table.rows:
        raise UsageError(f"{path.name} holds no usable row.{_first_problem(table)}")
    choice = _options(table, wishes)
    merged = choice if choice is not None and choice.sure else None
    question, answer = _question_and_answer(table, wishes, merged)
    sides = [table]
    if wishes.heldout is not None:
        sides.append(read_table(wishes.heldout, table.names, wishes.encoding))
    encodings = [
        encoding_taken(file.name, side) for file, side in zip((path, wishes.heldout), sides, strict=False) if file
    ]
    if merged:
        sides = [options.put_in(side, merged) for side in sides]
    pairs = [(row.get(question, ""), row[answer].strip()) for row in sides[0].rows if row.get(answer, "").strip()]
    if not pairs and answer in sides[0].columns:
        raise UsageError(
            f"{path.name} holds no answer: column {columns.column_heading(table, answer)} is empty in every row. "
            "Fill it in, name another column with --answer COLUMN, or say with --rules TEXT what an answer has to keep."
            f"{_first_problem(table)}"
        )
    truths = [truth for _, truth in pairs]
    offered = _of_letters(sides[0], truths) if merged else propose_verifiers(truths, [asked for asked, _ in pairs])
    proposal, code = _judged(offered, wishes, table)
    names = [columns.column_heading(table, name) if name else "" for name in (question, answer)]
    asked = WordingInput(question, names[0], names[1], pairs, proposal.verifier, wishes.tagged)
    wording = _wording(table, wishes, asked, merged is not None)
    spec = TaskSpec(
        name=free_name(wishes.name) if wishes.name else name_from_file(path.stem),
        prompt=wording.prompt,
        system=wording.system,
        answer=answer,
        extract=wishes.extract or wording.extract,
        max_new_tokens=0 if wishes.reasons else wording.max_new_tokens,
        verifier=(wording.verifier,),
    )
    validate_spec(msgspec.to_builtins(spec), "The task")
    missing = [name for name in spec.columns if name not in sides[0].columns]
    if missing:
        raise UsageError(f"{path.name} has no column {missing[0]!r}. It has: {', '.join(table.columns)}.")
    hard, why_not = columns.find_difficulty_column(spec, [row for side in sides for row in side.rows])
    spec = msgspec.structs.replace(spec, difficulty=hard)
    rule: Literal["balanced", "content"] = "balanced" if isinstance(wording.verifier, ChoiceVerifier) else "content"
    train, held_out = sides if len(sides) > 1 else split_held_out(sides[0], msgspec.structs.replace(spec, split=rule))
    if wishes.heldout is None and not held_out.rows:
        raise UsageError(
            f"{path.name} holds one question, and a task needs at least two: one to train on, and one that is held out "
            f"to measure with.{_first_problem(table)}"
        )
    answer_given = {
        "question": wishes.question != "",
        "answer": wishes.answer != "" or (bool(merged) and answer in options.KEYS),
    }
    used = {*spec.columns, *columns.HARDNESS, *(merged.columns if merged else ()), *([] if table is file else [RATING])}
    notes = (
        *encodings,
        options.describe_options(table, choice) if choice else "",
        columns.no_header(table),
        why_not,
        "" if code else columns.describe_unused_columns(table, used),
    )
    return TaskDraft(
        build_task(spec, train, held_out, code=code),
        sides[0],
        proposal.reason,
        offered,
        tuple(table.columns),
        question,
        wishes.rules,
        columns.describe_guessed_columns(table, {"question": question, "answer": answer}, answer_given),
        tuple(filter(None, notes)),
    )


def _first_problem(table: RowTable) -> str:
    """Behind a refusal: what is wrong with the first row that could not be read, "" where all could."""
    count = len(table.problems) + table.more
    others = f" {count - 1:,} more cannot be read either." if count > 1 else ""
    return f" {table.problems[0]}{others}" if table.problems else ""


def _question_and_answer(
    table: RowTable, wishes: ImportOptions, merged: options.OptionColumns | None
) -> tuple[str, str]:
    """The question and answer columns; no question where the person wrote the wording. Raises UsageError."""
    remaining = [name for name in table.columns if merged is None or name not in merged.columns]
    guess = not (wishes.rubric or wishes.reward)
    if wishes.rules:
        answer = ""  # rules compare with nothing
    else:
        answer = merged.answer if merged else columns.find_answer_column(table, wishes.answer, remaining, guess)
    if wishes.prompt:
        return "", answer
    question = columns.find_question_column(table, wishes.question, [name for name in remaining if name != answer])
    if question and question == answer:
        raise UsageError(
            f"Column {columns.column_heading(table, answer)} cannot be both the question and the answer: choose another for one."
        )
    return question, answer


def _wording(table: RowTable, wishes: ImportOptions, asked: WordingInput, lettered: bool) -> QuestionWording:
    """The wording of the question: the person's own where there is one. lettered: the options of each row have letters. What
    runs code or is judged by a rubric is asked as it is in the file."""
    prompt = _holes(table, wishes.prompt)
    if isinstance(asked.verifier, RulesVerifier):
        return rules_wording(prompt, asked, asked.verifier)
    if wishes.reward or wishes.environment or wishes.rubric:
        extract: Extract = "tags" if asked.tagged and wishes.reward is None else "whole"
        return QuestionWording(prompt or f"{{{asked.question}}}", asked.verifier, extract=extract)
    if lettered and not prompt:
        prompt = f"{{{asked.question}}}\n{options.ASKS}"
    return plain_wording(prompt, asked) if prompt else propose_wording(asked)


def _holes(table: RowTable, prompt: str) -> str:
    """The wording with its columns named as in the task."""
    return re.sub(r"\{([^{}]+)\}", lambda hole: f"{{{table.names.get(hole[1].strip(), hole[1])}}}", prompt)


def encoding_taken(name: str, table: RowTable) -> str:
    """A sentence about the encoding that a file was read in, where the file does not declare it."""
    if not table.encoding:
        return ""
    return (
        f"{safe_text(name, 60, lines=False)} is not UTF-8 and was read as Windows-1252 ({table.encoding}). If letters are wrong, "
        "name its encoding (--encoding mac_roman) or save it as UTF-8."
    )


def rows_of(task: OwnTask, path: Path, encoding: str = "") -> RowTable:
    """A file's rows in the form of the task made from it, for their numbers. Raises BadTask, OSError."""
    table = read_table(path, encoding=encoding)
    merged = options.find_options(table, "", task.spec.answer) if options.COLUMN in task.spec.columns else None
    return table if merged is None or not merged.sure else options.put_in(table, merged)


def _options(table: RowTable, wishes: ImportOptions) -> options.OptionColumns | None:
    """The options of a multiple-choice file; None where a wording without {options}, code or a rubric decides instead."""
    elsewhere = wishes.rubric or wishes.reward or wishes.environment or wishes.rules
    if elsewhere or (wishes.prompt and f"{{{options.COLUMN}}}" not in wishes.prompt):
        return None
    return options.find_options(
        table, columns.find_column(table, wishes.question), columns.find_column(table, wishes.answer)
    )


def _of_letters(table: RowTable, truths: Sequence[str]) -> tuple[VerifierProposal, ...]:
    """The verifier for the letter of the right option, and what else fits letters."""
    best = VerifierProposal(
        ChoiceVerifier(options=options.option_letters(table.rows)), "the letter of the right option"
    )
    return (best, *(proposal for proposal in propose_verifiers(truths) if proposal.kind != best.kind))


def _judged(
    offered: Sequence[VerifierProposal], wishes: ImportOptions, table: RowTable
) -> tuple[VerifierProposal, bytes]:
    """How the task is judged, and its code. Raises UsageError, BadTask, OSError."""
    if wishes.reward is not None:
        return VerifierProposal(FunctionVerifier(), "it gives the reward"), read_bytes(wishes.reward, MAX_CODE)
    if wishes.environment is not None:
        return VerifierProposal(EnvironmentVerifier(), "it says the reward"), read_bytes(wishes.environment, MAX_CODE)
    if wishes.rubric:
        return VerifierProposal(
            JudgedVerifier(rubric=wishes.rubric[:4000]), "a model says whether it fulfils your rubric"
        ), b""
    if wishes.rules:
        rules = _holes(table, wishes.rules)[:1000]
        try:
            parse_rules(rules)
        except ValueError as error:
            raise BadTask(f"The task: {error}") from error
        return VerifierProposal(RulesVerifier(rules=rules), "the share of your rules that it keeps"), b""
    return _wished(offered, wishes.verifier), b""


def _wished(offered: Sequence[VerifierProposal], kind: str) -> VerifierProposal:
    """The first proposal, or the one of that kind. Raises UsageError."""
    proposal = next((candidate for candidate in offered if kind in ("", candidate.kind)), None)
    if proposal is None:
        kinds = ", ".join(candidate.kind for candidate in offered)
        if kind in KINDS:
            raise UsageError(f"The file's own answers are wrong by {kind!r}. Mend them, or choose another: {kinds}.")
        raise UsageError(f"{kind!r} cannot be made from a file alone: write it into task.toml. From a file: {kinds}.")
    return proposal


def name_from_file(stem: str) -> str:
    """A task name from a file's, "my_" before it where a shipped task is called so."""
    try:
        return free_name(stem)
    except UsageError:
        return free_name(f"my_{stem}")


def free_name(text: str) -> str:
    """The text as a task name. Raises UsageError where it is taken."""
    name = column_slug(text) or "my_task"
    if name in CATALOGUE or name in RESERVED:
        raise UsageError(f"The name {name!r} is taken. Give the task another with --name.")
    return name
