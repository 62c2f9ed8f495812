"""How many tokens a run's questions and right answers have for a base: its own tokenizer and chat template count a sample of
each task.

Rows of custom tasks are counted directly. reasoning_gym generates its questions in the scorer's process, once: the counts are
kept in cache/question-tokens.json.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from statistics import mean

import msgspec

from sapo_backends.checkpoints import locate
from sapo_backends.checkpoints.tokenizer import HfTokenizer
from sapo_backends.errors import BackendError
from sapo_desktop.paths import Home
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import eval_items
from sapo_swarm.node.evaluation import SLOW
from sapo_swarm.node.verified_examples import FRESH, FRESH_SLOW, MOST_APART, ROWS_OF_A_PASS, rows_apart
from sapo_swarm.scoring.declared_verifiers import enclose_answer
from sapo_swarm.scoring.prompts import build_conversation, build_messages
from sapo_swarm.scoring.scorer import Scorer, ScorerUnavailable
from sapo_swarm.tasks.catalogue import generator_of, is_own, preset_of, tokens_needed, train_seed
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.spec import BadTask, may_have_examples, right_answer
from sapo_swarm.types import Question, TaskRef
from sapo_swarm.whole_file import write_atomically

QUESTIONS, LEAST = 32, 4
"""Questions counted over all tasks together, and at least per task."""
CHARACTERS, TEMPLATE = 4, 12
"""Characters per token, and tokens of a chat template, where the base's tokenizer is not on this disk."""
SHARED = 16
"""Shared tokens that questions must start with before an engine computes them once (packing.SHARED_PREFIX)."""
MOST_KEPT = 64
"""Counts kept in the file."""
Asked = tuple[Question, str]
"""A question and a completion with full reward, "" where its task gives none."""


class TokenCounts(msgspec.Struct, frozen=True):
    """Means over `questions` training questions. shared: tokens that all of them start with. answer, longest: of right
    answers including their end token, or the limit for a task that gives none; known: some task gives them. limit: of an
    answer. by_tokenizer: else estimated from characters. of_pass, apart: examples per pass, and questions set aside.
    held_out: items of an evaluation."""

    questions: int
    prompt: float
    shared: float
    answer: float
    longest: float
    known: bool
    limit: float
    by_tokenizer: bool
    of_pass: int
    apart: int
    held_out: int


def count_question_tokens(
    home: Home, config: RunConfig, *, make: bool, table: OwnTask | None = None
) -> TokenCounts | None:
    """Counts for the run's tasks; None where they are not known. make: reasoning_gym's questions may be generated now, in
    about 3 s. table: the run's one task, where it is not stored yet. Blocks."""
    try:
        if table is not None:
            return _counted(config, rows_of(config, table, QUESTIONS), {table.spec.name: table})
        key = _key(config)
        if (cached := _kept(home).get(key)) is not None:
            return msgspec.convert(cached, TokenCounts)
        catalogue = [task for task in config.tasks if not is_own(task)]
        if catalogue and not make:
            return None
        per_task = max(LEAST, QUESTIONS // max(1, len(config.tasks)))
        loaded = {task: library.load_task(task) for task in config.tasks if is_own(task)}
        pairs = [pair for task in loaded.values() for pair in rows_of(config, task, per_task)]
        if catalogue:
            pairs += asyncio.run(_made(config, catalogue, per_task))
        counts = _counted(config, pairs, loaded)
    except (BadTask, ScorerUnavailable, KeyError, ValueError, OSError):  # whoever starts the run says what is wrong
        return None
    if counts is not None and catalogue:
        with contextlib.suppress(OSError):
            newest = dict([*_kept(home).items(), (key, msgspec.to_builtins(counts))][-MOST_KEPT:])
            write_atomically(home.cache / "question-tokens.json", json.dumps(newest))
    return counts


def mean_prompt(home: Home, config: RunConfig) -> float:
    """Mean tokens of the questions of the run's tasks, for its memory; 0 where they are not counted yet. Nothing is
    generated for it. Blocks."""
    counts = count_question_tokens(home, config, make=False)
    return counts.prompt if counts is not None else 0.0


def _key(config: RunConfig) -> str:
    """The cache key: everything the counts depend on."""
    try:
        folder = locate.resolve_local_model(config.model)
        model: list[object] = [str(folder), os.stat(folder / "tokenizer.json").st_mtime]
    except (BackendError, OSError):
        model = [config.model]
    tasks = [[task, preset_of(task, config.preset), generator_of(task)] for task in config.tasks]
    limits = [config.max_new_tokens, config.task_tokens, config.eval_items, config.answer_format, config.thinking]
    return hashlib.sha256(json.dumps([model, tasks, limits]).encode()).hexdigest()[:24]


def _kept(home: Home) -> dict[str, object]:
    with contextlib.suppress(OSError, ValueError):
        stored = json.loads((home.cache / "question-tokens.json").read_text("utf-8"))
        return stored if isinstance(stored, dict) else {}
    return {}


def rows_of(config: RunConfig, task: OwnTask, most: int) -> list[Asked]:
    """Training rows of a custom task, spread evenly over all of them."""
    pairs, spec = list[Asked](), task.spec
    answers = may_have_examples(msgspec.structs.replace(spec, extract="whole"))
    total = min(most, len(task.train))
    for place in (number * len(task.train) // total for number in range(total)):
        row, ref = task.train[place], TaskRef(spec.name, library.PRESET, place, 0, task.generator)
        right = right_answer(spec, row).strip() if answers else ""
        text = enclose_answer(spec.extract, right, config.answer_format) if right else ""
        pairs.append((Question(ref, task.question(row), "0" * 64), text))
    return pairs


async def _made(config: RunConfig, tasks: Sequence[str], each: int) -> list[Asked]:
    """Questions of the catalogue's tasks, not the ones a node trains on. Raises ScorerUnavailable."""
    refs = [
        TaskRef(task, preset_of(task, config.preset), train_seed("counted", "", 0, slot), 0, generator_of(task))
        for task in tasks
        for slot in range(each)
    ]
    async with Scorer(answer_format=config.answer_format) as scorer:
        pairs = await scorer.examples(refs)
        without = [ref for ref, pair in zip(refs, pairs, strict=True) if pair is None]
        questions = await scorer.questions(without) if without else []
    return [*filter(None, pairs), *((question, "") for question in questions if isinstance(question, Question))]


def _counted(config: RunConfig, asked: Sequence[Asked], loaded: Mapping[str, OwnTask]) -> TokenCounts | None:
    """loaded: the custom tasks among the run's."""
    if not asked:
        return None

    def limit_of(task: str) -> int:
        return tokens_needed(config, task, loaded[task].spec.max_new_tokens if task in loaded else 0)

    try:
        tokenizer = HfTokenizer(locate.resolve_local_model(config.model), config.thinking)
    except BackendError:
        tokenizer = None
    prompts = [_prompt(config, question, loaded.get(question.ref.dataset), tokenizer) for question, _ in asked]
    answers: dict[str, list[int]] = {}
    for question, text in asked:
        limit, measured = limit_of(question.ref.dataset), answers.setdefault(question.ref.dataset, [])
        if text:
            measured.append(min(limit, _text(text, tokenizer) + 1))
    has_answers = any(answers.values())
    lengths = [values or [limit_of(task)] for task, values in answers.items()]
    first, last = min(prompts), max(prompts)
    shared = next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    scale = 1 if tokenizer else CHARACTERS
    shared = shared // scale if len(prompts) > 1 and shared >= SHARED * scale else 0
    tables = {name: rows_apart(task) for name, task in loaded.items()}
    fresh = [task for task in config.tasks if task not in loaded]
    held_out = {name: len(task.held_out) for name, task in loaded.items()}
    largest_share = max(8, MOST_APART // len(config.tasks))
    return TokenCounts(
        questions=len(asked),
        prompt=mean(map(len, prompts)) / scale + (0 if tokenizer else TEMPLATE),
        shared=shared,
        answer=mean(map(mean, lengths)),
        longest=mean(map(max, lengths)),
        known=has_answers,
        limit=mean(limit_of(task) for task in config.tasks),
        by_tokenizer=tokenizer is not None,
        of_pass=sum(min(len(rows), ROWS_OF_A_PASS) for rows, _ in tables.values())
        + sum(max(8, (FRESH_SLOW if _slow(config, task) else FRESH) // len(config.tasks)) for task in fresh),
        apart=sum(min(len(apart), largest_share) for _, apart in tables.values()) + largest_share * len(fresh),
        held_out=sum(min(eval_items(config), held_out.get(task, eval_items(config))) for task in config.tasks),
    )


def _slow(config: RunConfig, task: str) -> bool:
    return f"{task}/{preset_of(task, config.preset)}" in SLOW


def _prompt(config: RunConfig, question: Question, table: OwnTask | None, tokenizer: HfTokenizer | None) -> list[int]:
    """Ids of the whole prompt; without a tokenizer, its characters. table: the question's, which need not be stored."""
    chat = (
        build_messages(question.prompt, table.spec.system, config.answer_format)
        if table is not None
        else build_conversation(question, config.answer_format)
    )
    return tokenizer.encode_chat(chat) if tokenizer else [ord(c) for part in chat for c in part["content"]]


def _text(text: str, tokenizer: HfTokenizer | None) -> int:
    return len(tokenizer.encode_text(text)) if tokenizer else len(text) // CHARACTERS
