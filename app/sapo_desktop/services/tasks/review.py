"""What a careful friend would say about a task's rows before a model is trained on them. Sentences with row numbers."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from sapo_backends.errors import BackendError
from sapo_desktop.services.machine.load_request import local_folder
from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.declared import score_declared
from sapo_swarm.tasks.catalogue import tokens_needed
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.import_rows import Row, Table
from sapo_swarm.tasks.own.row_roles import clusters, key
from sapo_swarm.tasks.own.spec import TRUTHFUL, Choice, Exact, Sql, right_answer

FEW_TRAIN, FEW_HELD_OUT = 50, 50
DOMINATES = 0.5
NAMED = 5
"""Row numbers that a sentence names."""
LONG_ANSWER = 200
Tokens = Callable[[str], int]
"""How many tokens the model reads or writes for a text."""


@dataclass(frozen=True)
class Numbered:
    """A row with the place that the person finds it at. side: the file, "" where all come from one."""

    side: str
    number: int
    row: Row

    @property
    def place(self) -> str:
        """Where it stands, such as "train row 12"."""
        return f"{self.side} row {self.number}".strip()


def numbered(task: OwnTask, table: Table | None = None) -> list[Numbered]:
    """The rows as they were read: by the numbers of the file that they come from, or of the task's own files."""
    if table is not None:
        return [Numbered("", number, row) for number, row in zip(table.numbers, table.rows, strict=True)]
    sides = (("train.jsonl", task.train), ("heldout.jsonl", task.held_out))
    return [Numbered(side, number, row) for side, rows in sides for number, row in enumerate(rows, 1)]


def train_places(task: OwnTask, table: Table | None = None) -> list[str]:
    """Where each training row stands for the person."""
    if table is None:
        return [f"train.jsonl row {number}" for number in range(1, len(task.train) + 1)]
    names = sorted(task.spec.columns)
    found = {
        tuple(row.get(name) for name in names): number
        for row, number in zip(table.rows[::-1], table.numbers[::-1], strict=True)
    }
    return [f"row {found.get(tuple(row[name] for name in names), '?')}" for row in task.train]


def review(task: OwnTask, rows: Sequence[Numbered]) -> list[str]:
    """Everything that the rows alone tell, the gravest first."""
    usable = [row for row in rows if all(row.row.get(name, "").strip() for name in _needed(task))]
    return [
        *_leaks(task),
        *_contradictions(task, usable),
        *_given_away(task, usable),
        *_dominating(task),
        *_answers(task, usable),
        *_few(task),
    ]


def room(task: OwnTask, rows: Sequence[Numbered], config: RunConfig) -> list[str]:
    """What is too long for the run's model; nothing where the model is not on this disk."""
    from sapo_backends.checkpoints.spec import decoder_spec
    from sapo_backends.checkpoints.tokenizer import HfTokenizer, read_json

    try:
        folder = local_folder(config)
        tokenizer, spec = HfTokenizer(folder), decoder_spec(read_json(folder / "config.json"))
    except BackendError:
        return []
    new = tokens_needed(config, task.spec.name, task.spec.max_new_tokens)
    return too_long(task, rows, lambda text: len(tokenizer.encode_text(text)), spec.context, new)


def too_long(task: OwnTask, rows: Sequence[Numbered], tokens: Tokens, context: int, new_tokens: int) -> list[str]:
    """Rows whose question leaves no room for an answer in the model's context, and whose answer is longer than is written."""
    found = []
    usable = [row for row in rows if all(row.row.get(name, "").strip() for name in _needed(task))]
    asked = [(row, task.question(row.row)) for row in usable]
    most = context - new_tokens
    far = [row for row, text in asked if len(text) > most and tokens(text) > most]
    if far:
        found.append(
            f"{_those(far)} too long: question and answer must fit into {context:,} tokens. They are never asked. "
            "Shorten them, or choose a model with a longer context."
        )
    answered = [(row, row.row[task.spec.answer]) for row in usable if _has_answers(task)]
    wordy = [row for row, answer in answered if len(answer) > new_tokens and tokens(answer) > new_tokens]
    if wordy:
        found.append(
            f"{_those(wordy)} answered in more than {new_tokens} tokens: the model is cut off before. "
            "Set max_new_tokens in task.toml."
        )
    return found


def _needed(task: OwnTask) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*task.spec.columns, *((task.spec.answer,) if _has_answers(task) else ()))))


def _has_answers(task: OwnTask) -> bool:
    return task.spec.answer in task.spec.columns


def _leaks(task: OwnTask) -> list[str]:
    prompts = [task.spec.cells(row) for row in (*task.train, *task.held_out)]
    groups = clusters(prompts)
    trained = set(groups[: len(task.train)])
    met = [number for number, group in enumerate(groups[len(task.train) :], 1) if group in trained]
    if not met:
        return []
    return [
        f"Leak: {len(met)} held-out questions are also trained on (heldout.jsonl {_list(met)}). "
        "Their score says nothing; take them out of one side."
    ]


def _contradictions(task: OwnTask, rows: Sequence[Numbered]) -> list[str]:
    same: dict[tuple[str, bool], list[Numbered]] = defaultdict(list)
    for row in rows:
        asked = task.spec.fill(row.row)
        factorial = "!" in asked[len(asked.rstrip(" .?!")) :]
        same[key(asked), factorial].append(row)
    against: list[list[Numbered]] = []
    rest: list[list[Numbered]] = []
    for group in same.values():
        if len(group) > 1:
            alike = all(_agree(task, group[0].row, other.row) for other in group[1:])
            (rest if alike else against).append(group)
    sentences = []
    if against:
        pairs = "; ".join(" and ".join(r.place for r in group[:3]) for group in against[:NAMED])
        sentences.append(
            f"{_questions(len(against))} different answers in different rows ({pairs}): one of them must be wrong."
        )
    if rest:
        pairs = "; ".join(" and ".join(r.place for r in group[:3]) for group in rest[:NAMED])
        sentences.append(
            f"{_questions(len(rest))} several rows ({pairs}). They stay together, all trained on or all held out."
        )
    return sentences


def _agree(task: OwnTask, row: Row, other: Row) -> bool:
    """The answers of both rows are the same, or right by each other, as far as that is told without running anything."""
    if not _has_answers(task) or row[task.spec.answer].strip() == other[task.spec.answer].strip():
        return True
    compared = tuple(part for part in task.spec.verifier if isinstance(part, TRUTHFUL) and not isinstance(part, Sql))
    judge = replace(task, spec=msgspec.structs.replace(task.spec, verifier=compared)) if compared else None
    answers = [(truth, right_answer(task.spec, answer)) for truth, answer in ((row, other), (other, row))]
    return judge is not None and any(score_declared(judge, truth, answer, answer) == 1.0 for truth, answer in answers)


def _questions(count: int) -> str:
    return "One question has" if count == 1 else f"{count:,} questions have"


def _given_away(task: OwnTask, rows: Sequence[Numbered]) -> list[str]:
    """Answers that stand in their question: what extraction is about, and a leak everywhere else."""
    if not _has_answers(task):
        return []
    texts = own_texts(task, [row.row for row in rows])
    met = [row for row, text in zip(rows, texts, strict=True) if _contains(text, right_answer(task.spec, row.row))]
    if not met or len(met) < 0.2 * len(rows):
        return []
    return [
        f"The answer stands in the question in {len(met)} of {len(rows)} rows ({_list([r.number for r in met])}). "
        "Right for a task of finding it; a leak in any other."
    ]


def own_texts(task: OwnTask, rows: Sequence[Row]) -> list[str]:
    """What each question says that not all of them say: its cells, without the lines, the beginning and the end that they share.
    Options that are named in every question give no answer away."""
    texts = [task.spec.cells(row) for row in rows]
    if len(texts) < 2:
        return texts
    every = set(texts[0].split("\n")).intersection(*(text.split("\n") for text in texts))
    texts = ["\n".join(line for line in text.split("\n") if line not in every) for text in texts]
    start = _shared_start(texts)
    texts = [text[start:] for text in texts]
    end = _shared_start([text[::-1] for text in texts])
    return [text[: len(text) - end] for text in texts]


def _shared_start(texts: Sequence[str]) -> int:
    """Characters, in whole words, that all begin with."""
    first, last = min(texts), max(texts)  # what these two share, all between them do
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first.rfind(" ", 0, same) + 1


def _contains(text: str, answer: str) -> bool:
    plain = answer.strip()
    return len(plain) > 1 and re.search(rf"(?<!\w){re.escape(plain)}(?!\w)", text) is not None


def chance(task: OwnTask) -> float:
    """Of a guess among the options of the task's verifiers, 0 where they have none."""
    numbers = [len(part.options) for part in task.spec.verifier if isinstance(part, Choice) and part.options]
    return 1 / min(numbers) if numbers else 0.0


def _dominating(task: OwnTask) -> list[str]:
    if not _has_answers(task):
        return []
    counts = Counter(right_answer(task.spec, row).strip().casefold() for row in (*task.train, *task.held_out))
    (answer, times), total = counts.most_common(1)[0], sum(counts.values())
    if times < 2 or times <= max(DOMINATES, 1.5 * chance(task)) * total:
        return []
    return [
        f"One answer dominates: {answer[:60]!r} is right in {100 * times / total:.0f} % of the rows. A model that always says it "
        "earns as much without reading. Take fewer rows of it."
    ]


def _answers(task: OwnTask, rows: Sequence[Numbered]) -> list[str]:
    if not _has_answers(task):
        return []
    lengths = sorted(len(right_answer(task.spec, row.row)) for row in rows)
    if lengths and lengths[len(lengths) // 2] > LONG_ANSWER and isinstance(task.spec.verifier[0], Exact):
        return [
            f"Half of the answers have over {lengths[len(lengths) // 2]} characters, and only the very same text counts as "
            "right. A model will hardly ever earn anything; ask for something shorter."
        ]
    return []


def _few(task: OwnTask) -> list[str]:
    sentences = []
    if len(task.train) < FEW_TRAIN:
        sentences.append(
            f"Only {_rows(len(task.train), 'row')} to train on: a model learns them by heart. Some hundreds are better."
        )
    if not task.held_out:
        sentences.append(
            "No held-out rows: they stay with the host of the swarm it came from. No score is measured here."
        )
    elif len(task.held_out) < FEW_HELD_OUT:
        width = 100 * 0.98 / max(1, len(task.held_out)) ** 0.5
        sentences.append(
            f"Only {_rows(len(task.held_out), 'held-out row')}: a score is known to about ±{width:.0f} points. 200 give ±7."
        )
    return sentences


def _rows(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _those(rows: Sequence[Numbered]) -> str:
    if len(rows) == 1:
        return f"{rows[0].place.capitalize()} is"
    return f"{len(rows)} rows ({', '.join(row.place for row in rows[:NAMED])}{', …' if len(rows) > NAMED else ''}) are"


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{', …' if len(numbers) > NAMED else ''}"
