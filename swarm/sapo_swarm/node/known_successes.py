"""Known successes: texts that answered a training question correctly, for questions whose task provides no answer.

Three sources: what the person wrote, what this model wrote in earlier rounds, and what other nodes wrote, as far as it was
trained on. None is trusted: this node's own verifier judges each text again before it is imitated, and of other nodes' texts
only the answer counts. The texts that a phase imitates are saved in the model's folder when the phase begins, so that a
killed node continues with the same texts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

import msgspec

from sapo_swarm.events import Event, GroupRecorded
from sapo_swarm.scoring.declared_verifiers import enclose_answer, extract_answer
from sapo_swarm.scoring.prompts import after_reasoning
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import is_own, is_train
from sapo_swarm.tasks.own import library
from sapo_swarm.types import MAX_COMPLETION_BYTES, UNREADABLE, AnswerFormat, Group, Question, TaskRef
from sapo_swarm.whole_file import write_atomically

Writer = Literal["person", "own", "others"]
"""Who wrote a success, in order of preference: the person, this model, another node's model (or person)."""
QUESTIONS_KNOWN = 512
"""Most questions with a success that a phase imitates: the newest."""
TEXTS_TRIED = 3
"""Most texts by one writer to one question that are judged, the shortest first."""
GROUPS_READ = 4096
"""The newest groups of the journal that are searched."""
WRITTEN_MOST = 2000
"""The person's newest answers are kept, up to this many."""
WRITTEN_BYTES, KEPT_BYTES = 24 * 2**20, 64 * 2**20
"""A larger file of them was not written by this program."""
KEPT = "known-successes.json"
"""In the folder of a model: what the newest examples phase imitates besides the tasks' own answers."""


class WrittenAnswer(msgspec.Struct, frozen=True):
    """A text as an answer to a question, as saved and not yet judged."""

    ref: TaskRef
    text: str


class KnownSuccess(msgspec.Struct, frozen=True):
    """A question, and a completion to which this node's verifier gave the full reward."""

    question: Question
    text: str
    writer: Writer


class KeptSuccesses(msgspec.Struct, frozen=True):
    """Those of the phase that followed a trial after this many rounds."""

    round: int
    successes: tuple[KnownSuccess, ...]


@dataclass(frozen=True, slots=True)
class SuccessCandidate:
    """A text that was right once, somewhere."""

    ref: TaskRef
    text: str
    writer: Writer

    @property
    def order(self) -> tuple[int, int, str]:
        """The first of a question's candidates that passes is imitated: the person's before others, short before long."""
        return get_args(Writer).index(self.writer), len(self.text), self.text


def collect_candidates(
    events: Sequence[Event],
    written: Iterable[WrittenAnswer],
    tasks: Sequence[str],
    others: bool = True,
    answer_format: AnswerFormat = "tags",
) -> dict[TaskRef, list[SuccessCandidate]]:
    """Training question of these tasks -> its candidates in order, at most QUESTIONS_KNOWN questions: first those that the
    person answered, then the newest. events: of a journal, oldest first; written: oldest first. others: whether other nodes'
    groups count."""
    chosen: dict[TaskRef, list[SuccessCandidate]] = {}
    answers = [SuccessCandidate(answer.ref, answer.text, "person") for answer in reversed([*written])]
    for event in reversed(events):
        if isinstance(event, GroupRecorded) and (others or not event.group.external):
            answers += _of_group(event.group, answer_format)
    for candidate in answers:
        whole = 0 < len(candidate.text.encode("utf-8", "replace")) <= MAX_COMPLETION_BYTES
        if not whole or candidate.ref.dataset not in tasks or not is_train(candidate.ref):
            continue
        if len(chosen) < QUESTIONS_KNOWN or candidate.ref in chosen:
            chosen.setdefault(candidate.ref, []).append(candidate)
    return {ref: _shortest(texts) for ref, texts in chosen.items()}


def _of_group(group: Group, answer_format: AnswerFormat) -> list[SuccessCandidate]:
    """The group's right texts, of another node's the answers alone; no episodes."""
    ref = group.question.ref
    right = [
        rollout.text
        for rollout in group.rollouts
        if rollout.reward == 1.0 and rollout.finish == "stop" and not rollout.shortcut and not rollout.turns
    ]
    if group.external:
        return [SuccessCandidate(ref, text, "others") for text in _answers_alone(ref, right, answer_format)]
    return [SuccessCandidate(ref, text, "own") for text in right]


def _answers_alone(ref: TaskRef, texts: Iterable[str], answer_format: AnswerFormat) -> list[str]:
    """The answers of these texts in the form that the task asks for. Nobody judged what stands around them, and an example
    comes back in every pass: a model would learn what was planted there. None if the task is gone."""
    how = library.answer_extraction(ref)
    if how is None:
        return []
    answers = dict.fromkeys(extract_answer(how, after_reasoning(text), answer_format) for text in texts)
    return [enclose_answer(how, answer, answer_format) for answer in answers if answer]


def _shortest(texts: Sequence[SuccessCandidate]) -> list[SuccessCandidate]:
    """At most TEXTS_TRIED of each writer, in order."""
    ranked = sorted(set(texts), key=lambda candidate: candidate.order)
    by_writer = [[c for c in ranked if c.writer == writer][:TEXTS_TRIED] for writer in get_args(Writer)]
    return [candidate for part in by_writer for candidate in part]


async def verify_candidates(
    scorer: Scorer, known: dict[TaskRef, list[SuccessCandidate]], excluded: frozenset[str]
) -> list[KnownSuccess]:
    """For each question whose task has no passing answer, the first candidate that passes here and now; each prompt once.
    excluded: hashes of held-out prompts. Raises ScorerUnavailable."""
    refs = [ref for ref in known if not _without_text(ref)]
    own_answers = await scorer.examples(refs) if refs else []
    unanswered = [ref for ref, pair in zip(refs, own_answers, strict=True) if pair is None]
    questions = [q for q in await scorer.questions(unanswered) if isinstance(q, Question)] if unanswered else []
    verdicts = (
        await scorer.score_many([(q.ref, [c.text for c in known[q.ref]]) for q in questions]) if questions else []
    )
    passed: dict[str, tuple[Question, SuccessCandidate]] = {}
    for question, verdict in zip(questions, verdicts, strict=True):
        if question.prompt_sha256 in excluded or not isinstance(verdict, ScoredTexts):
            continue
        right = [c for c, reward in zip(known[question.ref], verdict.rewards, strict=True) if reward == 1.0]
        same = passed.get(question.prompt_sha256)
        if right and (same is None or right[0].order < same[1].order):
            passed[question.prompt_sha256] = question, right[0]
    return [KnownSuccess(question, candidate.text, candidate.writer) for question, candidate in passed.values()]


def _without_text(ref: TaskRef) -> bool:
    """An environment or a judge decides, or the task is gone: no text is known to be right."""
    if not is_own(ref.dataset):
        return library.is_own_ref(ref)
    spec = library.load_task(ref.dataset).spec
    return bool(spec.turns or spec.rubric)


def train_place(ref: TaskRef) -> int | None:
    """The training row of an own task that a reference names; None if it belongs to another version of the task."""
    task = library.load_task(ref.dataset)
    if ref.preset == library.PRESET:
        return ref.seed % len(task.train)
    places = task.levels.get(ref.preset)
    return places[ref.seed % len(places)] if places else None


# -- files -------------------------------------------------------------------------------------------------------------


def read_written(path: Path | None) -> list[WrittenAnswer]:
    """The answers that the person wrote, oldest first; unreadable lines are skipped."""
    lines = _lines(path) if path is not None else []
    answers = []
    for line in lines[-WRITTEN_MOST:]:
        try:
            answers.append(msgspec.json.decode(line, type=WrittenAnswer))
        except UNREADABLE:
            continue
    return answers


def keep_written(path: Path, answer: WrittenAnswer) -> None:
    """Add an answer; the oldest is dropped if there are too many. Raises OSError."""
    answers = [entry for entry in read_written(path) if entry != answer]
    lines = [msgspec.json.encode(entry) + b"\n" for entry in [*answers, answer][-WRITTEN_MOST:]]
    write_atomically(path, b"".join(lines), private=True)


def _lines(path: Path) -> list[bytes]:
    try:
        return path.read_bytes().splitlines() if path.stat().st_size <= WRITTEN_BYTES else []
    except OSError:
        return []


def read_kept(folder: Path) -> KeptSuccesses | None:
    """What the newest phase imitates; None if no such file can be read."""
    path = folder / KEPT
    try:
        return msgspec.json.decode(path.read_bytes(), type=KeptSuccesses) if path.stat().st_size <= KEPT_BYTES else None
    except (OSError, *UNREADABLE):
        return None


def write_kept(folder: Path, kept: KeptSuccesses) -> None:
    """Raises OSError."""
    write_atomically(folder / KEPT, msgspec.json.encode(kept), private=True)
