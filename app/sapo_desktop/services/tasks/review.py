"""What a careful friend would say about a task before a model is trained on it, and what reward it gives without being
solved."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import msgspec

from sapo_backends.errors import BackendError
from sapo_desktop.services.machine.load_request import local_folder
from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.declared_verifiers import enclose_answer, extract_answer, score_declared
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed, UnanswerableQuestion
from sapo_swarm.tasks.catalogue import held_out, tokens_needed
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.import_rows import Row, RowTable
from sapo_swarm.tasks.own.row_roles import cluster_prompts, prompt_key
from sapo_swarm.tasks.own.rules import HOLE
from sapo_swarm.tasks.own.spec import (
    TRUTHFUL,
    ChoiceVerifier,
    ExactVerifier,
    RulesVerifier,
    SqlVerifier,
    right_answer,
    truth_column,
)
from sapo_swarm.types import RewardRule, TaskRef

# What a careful friend would say about a task's rows before a model is trained on them: sentences with row numbers.

FEW_TRAIN, FEW_HELD_OUT = 50, 50
DOMINATES = 0.5
NAMED = 5
"""Row numbers listed in a sentence."""
LONG_ANSWER = 200
Tokens = Callable[[str], int]
"""How many tokens the model reads or writes for a text."""


@dataclass(frozen=True)
class NumberedRow:
    """A row with the place where the person finds it. side: the file, "" where all come from one."""

    side: str
    number: int
    row: Row

    @property
    def place(self) -> str:
        """Its place, such as "train row 12"."""
        return f"{self.side} row {self.number}".strip()


def number_rows(task: OwnTask, table: RowTable | None = None) -> list[NumberedRow]:
    """The rows as they were read, numbered as in the file that they come from, or as in the task's own files."""
    if table is not None:
        return [NumberedRow("", number, row) for number, row in zip(table.numbers, table.rows, strict=True)]
    sides = (("train.jsonl", task.train), ("heldout.jsonl", task.held_out))
    return [NumberedRow(side, number, row) for side, rows in sides for number, row in enumerate(rows, 1)]


def train_places(task: OwnTask, table: RowTable | None = None) -> list[str]:
    """The place of each training row, for the person."""
    if table is None:
        return [f"train.jsonl row {number}" for number in range(1, len(task.train) + 1)]
    names = sorted(task.spec.columns)
    places = {
        tuple(row.get(name) for name in names): number
        for row, number in zip(table.rows[::-1], table.numbers[::-1], strict=True)
    }
    return [f"row {places.get(tuple(row[name] for name in names), '?')}" for row in task.train]


def review_rows(task: OwnTask, rows: Sequence[NumberedRow]) -> list[str]:
    """Everything that the rows alone show, the most serious first."""
    usable = [row for row in rows if all(row.row.get(name, "").strip() for name in _needed(task))]
    return [
        *_unread(task),
        *_leaks(task),
        *_contradictions(task, usable),
        *_given_away(task, usable),
        *_dominating(task),
        *_loose_rules(task),
        *_answers(task, usable),
        *_few(task),
    ]


def length_warnings(task: OwnTask, rows: Sequence[NumberedRow], config: RunConfig) -> list[str]:
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


def too_long(task: OwnTask, rows: Sequence[NumberedRow], tokens: Tokens, context: int, new_tokens: int) -> list[str]:
    """Rows whose question leaves no room for an answer in the model's context, and rows whose answer exceeds the limit on new
    tokens."""
    warnings = []
    usable = [row for row in rows if all(row.row.get(name, "").strip() for name in _needed(task))]
    questions = [(row, task.question(row.row)) for row in usable]
    room = context - new_tokens
    far = [row for row, text in questions if len(text) > room and tokens(text) > room]
    if far:
        warnings.append(
            f"{_those(far)} too long: question and answer must fit into {context:,} tokens. They are never asked. "
            "Shorten them, or choose a model with a longer context."
        )
    answered = [(row, row.row[task.spec.answer]) for row in usable if _has_answers(task)]
    wordy = [row for row, answer in answered if len(answer) > new_tokens and tokens(answer) > new_tokens]
    if wordy:
        warnings.append(
            f"{_those(wordy)} answered in more than {new_tokens} tokens: the model is cut off before. "
            "Set max_new_tokens in task.toml."
        )
    return warnings


def _needed(task: OwnTask) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*task.spec.columns, *((task.spec.answer,) if _has_answers(task) else ()))))


def _has_answers(task: OwnTask) -> bool:
    return task.spec.answer in task.spec.columns


def _unread(task: OwnTask) -> list[str]:
    """Right answers in which the way of reading an answer finds none: nothing that a model writes could count."""
    how = task.spec.extract
    if not _has_answers(task) or how == "tags":
        return []
    answers = [right_answer(task.spec, row) for row in task.train]
    lost = [answer for answer in answers if extract_answer(how, answer) is None]
    if 2 * len(lost) <= len(answers):
        return []
    kind = {"last_number": "number", "json": "JSON object or list"}.get(how, "line")
    return [
        f"{len(lost):,} of {len(answers):,} right answers hold no {kind} (such as {lost[0][:60]!r}), and the last {kind} of what "
        "a model writes is read: nothing could count. Read from its last line instead (--extract last_line)."
    ]


def _leaks(task: OwnTask) -> list[str]:
    prompts = [task.spec.cells(row) for row in (*task.train, *task.held_out)]
    groups = cluster_prompts(prompts)
    trained = set(groups[: len(task.train)])
    met = [number for number, group in enumerate(groups[len(task.train) :], 1) if group in trained]
    if not met:
        return []
    return [
        f"Leak: {len(met)} held-out questions are also trained on (heldout.jsonl {_list(met)}). "
        "Their score says nothing; take them out of one side."
    ]


def _contradictions(task: OwnTask, rows: Sequence[NumberedRow]) -> list[str]:
    same: dict[tuple[str, bool], list[NumberedRow]] = defaultdict(list)
    for row in rows:
        question = task.spec.fill(row.row)
        factorial = "!" in question[len(question.rstrip(" .?!")) :]
        same[prompt_key(question), factorial].append(row)
    against: list[list[NumberedRow]] = []
    groups: list[list[NumberedRow]] = []
    for group in same.values():
        if len(group) > 1:
            alike = all(_agree(task, group[0].row, other.row) for other in group[1:])
            (groups if alike else against).append(group)
    sentences = []
    if against:
        pairs = "; ".join(" and ".join(r.place for r in group[:3]) for group in against[:NAMED])
        sentences.append(
            f"{_questions(len(against))} different answers in different rows ({pairs}): one of them must be wrong."
        )
    if groups:
        pairs = "; ".join(" and ".join(r.place for r in group[:3]) for group in groups[:NAMED])
        sentences.append(
            f"{_questions(len(groups))} several rows ({pairs}). They stay together, all trained on or all held out."
        )
    return sentences


def _agree(task: OwnTask, row: Row, other: Row) -> bool:
    """Whether the answers of both rows are the same, or each is right for the other, as far as can be checked without running
    anything."""
    if not _has_answers(task) or row[task.spec.answer].strip() == other[task.spec.answer].strip():
        return True
    compared = tuple(
        part for part in task.spec.verifier if isinstance(part, TRUTHFUL) and not isinstance(part, SqlVerifier)
    )
    judge = replace(task, spec=msgspec.structs.replace(task.spec, verifier=compared)) if compared else None
    answers = [(truth, right_answer(task.spec, answer)) for truth, answer in ((row, other), (other, row))]
    return judge is not None and any(score_declared(judge, truth, answer, answer) == 1.0 for truth, answer in answers)


def _questions(count: int) -> str:
    return "One question has" if count == 1 else f"{count:,} questions have"


def _given_away(task: OwnTask, rows: Sequence[NumberedRow]) -> list[str]:
    """Answers found in their question: normal for extraction, and a leak everywhere else."""
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
    """The part of each question that not all share: its cells, without the common lines, beginning and end. Options that are
    named in every question give no answer away."""
    texts = [task.spec.cells(row) for row in rows]
    if len(texts) < 2:
        return texts
    common = set(texts[0].split("\n")).intersection(*(text.split("\n") for text in texts))
    texts = ["\n".join(line for line in text.split("\n") if line not in common) for text in texts]
    start = _shared_start(texts)
    texts = [text[start:] for text in texts]
    end = _shared_start([text[::-1] for text in texts])
    return [text[: len(text) - end] for text in texts]


def _shared_start(texts: Sequence[str]) -> int:
    """Characters, in whole words, that all texts start with."""
    first, last = min(texts), max(texts)  # their common prefix is that of all texts
    same = next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    return first.rfind(" ", 0, same) + 1


def _contains(text: str, answer: str) -> bool:
    plain = answer.strip()
    return len(plain) > 1 and re.search(rf"(?<!\w){re.escape(plain)}(?!\w)", text) is not None


def guess_rate(task: OwnTask) -> float:
    """The success rate of guessing among the options of the task's verifiers, 0 where they have none."""
    numbers = [len(part.options) for part in task.spec.verifier if isinstance(part, ChoiceVerifier) and part.options]
    return 1 / min(numbers) if numbers else 0.0


def _dominating(task: OwnTask) -> list[str]:
    if not _has_answers(task):
        return []
    counts = Counter(right_answer(task.spec, row).strip().casefold() for row in (*task.train, *task.held_out))
    (answer, times), total = counts.most_common(1)[0], sum(counts.values())
    if times < 2 or times <= max(DOMINATES, 1.5 * guess_rate(task)) * total:
        return []
    return [
        f"One answer dominates: {answer[:60]!r} is right in {100 * times / total:.0f} % of the rows. A model that always says it "
        "earns as much without reading. Take fewer rows of it."
    ]


def _loose_rules(task: OwnTask) -> list[str]:
    """Rules that say nothing about the row are kept by one answer to all of them, and training finds it."""
    rules = [part.rules for part in task.spec.verifier if isinstance(part, RulesVerifier)]
    if len(rules) < len(task.spec.verifier) or any(HOLE.search(text) for text in rules):
        return []
    return [
        "No rule names a column: one answer could be right for every row, and a model may find it. Add a rule such as: "
        f"contains {{{HOLE.findall(task.spec.prompt)[0]}}}"
    ]


def _answers(task: OwnTask, rows: Sequence[NumberedRow]) -> list[str]:
    if not _has_answers(task):
        return []
    lengths = sorted(len(right_answer(task.spec, row.row)) for row in rows)
    if lengths and lengths[len(lengths) // 2] > LONG_ANSWER and isinstance(task.spec.verifier[0], ExactVerifier):
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


def _those(rows: Sequence[NumberedRow]) -> str:
    if len(rows) == 1:
        return f"{rows[0].place.capitalize()} is"
    return f"{len(rows)} rows ({', '.join(row.place for row in rows[:NAMED])}{', …' if len(rows) > NAMED else ''}) are"


def _list(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:NAMED]))
    return f"row{'s' if len(numbers) > 1 else ''} {shown}{', …' if len(numbers) > NAMED else ''}"


# The reward without solving the task: for the best constant answer, for another row's answer, for the question itself.
#
# A person sees a shortcut here before a model finds it. Everything is judged in the scorer worker, as in training.

LOOKED_AT = 400
"""Held-out rows, and training rows for the truth itself, at most."""
MUCH = 0.3
"""Score that must not be reached without reading the question, unless a guess reaches nearly as much."""
COMMON = 6
JUNK = ("0", "1", "yes", "no", "true", "null", "[]", "{}", "a", ",", ".*")


@dataclass(frozen=True)
class ShortcutScores:
    """Strict scores in [0, 1] over the held-out rows.

    truth: of the rows' own answers (None where the verifiers have none to compare with). wrong: places of the training rows
    whose own answer is judged wrong; hanging: those that could not be judged at all, with the reason. constant: the best of
    the answers tried on every row, and its score. permuted: of a different answer taken from another row. echo: of the
    question repeated as the answer. chance: of a guess among the options, 0 where there are none.
    """

    rows: int
    truth: float | None
    wrong: tuple[str, ...]
    hanging: tuple[str, ...]
    constant: tuple[str, float]
    permuted: float | None
    echo: float
    chance: float = 0.0


async def measure_shortcuts(task: OwnTask, scorer: Scorer, places: Sequence[str]) -> ShortcutScores:
    """Needs the task in the active library. places: of each training row. Raises ScorerUnavailable."""
    rows = task.held_out[:LOOKED_AT]
    refs = [held_out(task.spec.name, "own", index) for index in range(len(rows))]
    truths = [right_answer(task.spec, row) for row in rows] if _has_truth(task) else []
    if not refs:
        return ShortcutScores(0, None, (), (), ("", 0.0), None, 0.0)
    (first,) = await scorer.questions(refs[:1])
    if isinstance(first, UnanswerableQuestion):
        return ShortcutScores(len(rows), None, (), (first.reason,), ("", 0.0), None, 0.0)
    best, score = "", -1.0
    for text in constant_answers(task):
        mean_score = _mean(await _judge(scorer, task, refs, [text] * len(refs)))
        if mean_score > score:
            best, score = text, mean_score
    right = await _judge(scorer, task, refs, truths) if truths else []
    turned = await _judge(scorer, task, *_permuted(refs, truths))
    echo = await _judge(scorer, task, refs, [task.spec.fill(row) for row in rows])
    wrong, hanging = await _own_answers(task, scorer, places) if truths else ((), ())
    return ShortcutScores(
        rows=len(rows),
        truth=_mean(right) if truths else None,
        wrong=wrong,
        hanging=hanging,
        constant=(best, max(score, 0.0)),
        permuted=_mean(turned) if turned else None,
        echo=_mean(echo),
        chance=guess_rate(task),
    )


def constant_answers(task: OwnTask) -> list[str]:
    """Constant answers worth trying: the commonest truths, and junk that careless verifiers accept."""
    truths = Counter(right_answer(task.spec, row).strip() for row in task.train) if _has_truth(task) else Counter[str]()
    return list(dict.fromkeys([text for text, _ in truths.most_common(COMMON) if text] + list(JUNK)))


def describe_shortcuts(found: ShortcutScores) -> list[str]:
    """The scores for a person: plain figures first, then what is wrong with them."""
    if not found.rows:
        return ["Shortcuts were not looked for: there are no held-out rows here."]
    text, score = found.constant
    shown = text if len(text) <= 40 else f"{text[:40]}…"
    guess = f" (a guess: {100 * found.chance:.1f} %)" if found.chance else ""
    lines = [f"Always answering {shown!r} would be right on {100 * score:.1f} % of {found.rows} held-out rows{guess}."]
    if found.permuted is not None:
        lines.append(f"The answer of another row, where it differs, counts as right on {100 * found.permuted:.1f} %.")
    lines += shortcut_warnings(found)
    return lines


def shortcut_warnings(found: ShortcutScores) -> list[str]:
    """Only what a person should act on."""
    lines = []
    limit = max(MUCH, 1.5 * found.chance)
    if found.constant[1] >= limit:
        lines.append("Shortcut: so much can be earned without reading the question. Take fewer rows with that answer.")
    if found.permuted is not None and found.permuted >= limit:
        lines.append("Shortcut: the verifier hardly tells one row's answer from another's. Make it stricter.")
    if found.echo >= 0.1:
        lines.append(f"Shortcut: giving the question back is right on {100 * found.echo:.1f} %.")
    if found.wrong:
        shown = ", ".join(found.wrong[:5]) + (", …" if len(found.wrong) > 5 else "")
        lines.append(
            f"The row's own answer is judged wrong in {len(found.wrong)} of the rows looked at ({shown}): nobody can earn "
            "anything there. Mend them or choose another verifier."
        )
    lines += [f"Could not be judged: {reason}" for reason in found.hanging[:5]]
    return lines


def _has_truth(task: OwnTask) -> bool:
    """Whether the task's answer column shows what a right answer looks like. One turn in an environment does not."""
    spec = task.spec
    return not spec.turns and any(
        isinstance(part, TRUTHFUL) and truth_column(spec, part) == spec.answer for part in spec.verifier
    )


def _permuted(refs: Sequence[TaskRef], truths: Sequence[str]) -> tuple[list[TaskRef], list[str]]:
    """Rows, and for each the next row's answer that differs from its own: with five categories, one in five would be the same
    by chance. None where all are the same."""
    plain = [" ".join(truth.split()).casefold() for truth in truths]
    pairs = []
    for place, own in enumerate(plain):
        following = (at % len(plain) for at in range(place + 1, place + len(plain)))
        following_row = next((at for at in following if plain[at] != own), None)
        if following_row is not None:
            pairs.append((refs[place], truths[following_row]))
    return [ref for ref, _ in pairs], [truth for _, truth in pairs]


async def _own_answers(task: OwnTask, scorer: Scorer, places: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Training rows whose own answer is judged wrong, and those that cannot be judged."""
    rows = task.train[:LOOKED_AT]
    refs = [TaskRef(task.spec.name, "own", number, 0, task.generator) for number in range(len(rows))]
    texts = [enclose_answer(task.spec.extract, right_answer(task.spec, row), scorer.answer_format) for row in rows]
    verdicts = await scorer.score_many([(ref, (text,)) for ref, text in zip(refs, texts, strict=True)])
    judged = list(zip(places, verdicts, strict=False))
    wrong = [place for place, verdict in judged if isinstance(verdict, ScoredTexts) and verdict.rewards[0] < 1.0]
    hanging = [f"{place}: {verdict.reason}" for place, verdict in judged if isinstance(verdict, ScoringFailed)]
    return tuple(wrong), tuple(hanging)


async def _judge(scorer: Scorer, task: OwnTask, refs: Sequence[TaskRef], answers: Sequence[str]) -> list[float]:
    texts = [enclose_answer(task.spec.extract, answer, scorer.answer_format) for answer in answers]
    pairs = [(ref, (text,)) for ref, text in zip(refs, texts, strict=True)]
    return [float(scored.rewards[0] == 1.0) for scored in await scorer.score_local(pairs, RewardRule())]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
