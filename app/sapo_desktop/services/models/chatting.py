"""One question, two answers side by side as they are generated: the base's and the trained model's. The question is the
person's, or a held-out one from the model's tasks, for which both answers are marked right or wrong.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Iterator
from contextlib import suppress
from itertools import zip_longest
from math import inf
from types import TracebackType
from typing import NamedTuple

from sapo_backends.base import Engine, Sampling
from sapo_backends.errors import BackendError
from sapo_desktop.services.against_base import base_difference, format_interval
from sapo_desktop.services.models.checkpoints import SelectedWeights, weights_of_model
from sapo_desktop.services.models.pieces import ChatChunk, HeldOut, Marks, next_piece
from sapo_desktop.services.models.shelf import history
from sapo_desktop.services.models.shelf.store import Model
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import held_out_items
from sapo_swarm.events import Evaluated
from sapo_swarm.node.rollouts import prompt_ids
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring.prompts import SYSTEM_PROMPTS, build_messages, system_prompt
from sapo_swarm.scoring.scorer import Scorer, ScoringFailed
from sapo_swarm.tasks.catalogue import UnknownTask, is_own, new_tokens
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.rules import HOLE
from sapo_swarm.tasks.own.spec import BadTask, TaskSpec
from sapo_swarm.types import Question, TaskRef

LONGEST = 256
"""Longest answer in tokens to a person's own question, for a model whose training limit was not higher."""
TIMES, SHORT = 4, 64
"""A person's own question: once the trained model has ended, the base may write this many times as many tokens, or as many as
this where that is more. Many bases never end by themselves, and a person waits for them."""
MOST_OF_A_TASK = 100
"""Held-out questions per task that a chat goes through: the first ones, which the evaluations ask."""
SHOWN = 400
"""Characters shown of a question; longer ones are cut in the middle."""


UNSAVED = (
    "The newest training is not saved yet: the trained model answers as it was before that. Press space to pause the node, which "
    "saves, then open the chat again."
)


def too_early(model: Model) -> str:
    """Why base and trained model may well answer alike; "" where the newest evaluation tells them apart. Reads the journal."""
    if history.rounds_told(model.folder) > model.rounds_done:
        return UNSAVED
    if not model.rounds_done:
        return "Too early to differ: nothing is trained yet."
    return undecided_reason(history.load_history(model.folder).held_out)


def undecided_reason(event: Evaluated | None) -> str:
    """The same for one evaluation of a trained model: by its greedy result where it was measured, as that is how a chat
    answers."""
    if event is None or not event.round:
        return "Too early to tell whether they differ: the trained model has not been measured yet."
    against = base_difference(event.greedy or event)
    if against is None or not against[1] <= 0 <= against[2]:
        return ""
    ends = format_interval(against[1], against[2], "+")
    return f"Too early to differ: {100 * against[0]:+.1f} points against the base {ends}, which may be chance."


class PairedChat:
    """Both models in memory. Use with `with`; entering raises BackendError, CheckpointCorrupt, UsageError."""

    def __init__(self, model: Model, checkpoint: str = "latest") -> None:
        self.labels = ("base", model.name)
        self._chosen: tuple[SelectedWeights, SelectedWeights] = (
            weights_of_model(model, "base"),
            weights_of_model(model, checkpoint),
        )
        self._engines: list[Engine] = []
        config = self._chosen[1].config
        self._config = config
        self._refs = iter(marked_questions(config))
        self._asked = 0
        self._right = [0, 0]
        self._runner: asyncio.Runner | None = None
        self._scorer: Scorer | None = None
        self._longest = max(LONGEST, config.max_new_tokens)
        self._system = system_prompt(config.tasks, config.answer_format) or SYSTEM_PROMPTS[config.answer_format]

    def __enter__(self) -> PairedChat:
        try:
            for weights in self._chosen:
                self._engines.append(weights.load(lambda *_: None))
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()

    def _close(self) -> None:
        if self._runner is not None:
            if self._scorer is not None:
                self._runner.run(self._scorer.__aexit__(None, None, None))
            self._runner.close()
        self._runner = self._scorer = None
        for engine in self._engines:
            with suppress(BackendError):
                engine.close()
        self._engines.clear()

    def answer(self, question: str, temperature: float) -> Iterator[ChatChunk]:
        """Each model's answer so far, in turns, until both are done. The text is made safe to show.

        Each question stands alone: these models are trained on single questions. Raises BackendError.
        """
        conversation = build_messages(as_asked(self._config, question), self._system)
        yield from self._in_turns(
            {
                place: _continue(engine, engine.tokenizer.encode_chat(conversation), temperature, self._longest)
                for place, engine in enumerate(self._engines)
            },
            TIMES,
        )

    def _in_turns(
        self, writing: dict[int, Iterator[_AnswerSoFar]], times: float = inf
    ) -> Generator[ChatChunk, None, dict[int, str]]:
        """Pieces of each in turns until all are done; returns place -> the whole answer. times: see TIMES."""
        answers: dict[int, str] = {}
        longest = inf
        while writing:
            for place in tuple(writing):
                piece = next(writing[place], None)
                if piece is None or (place == 0 and not piece.ended and piece.tokens >= longest):
                    del writing[place]
                if piece is None:
                    continue
                if place == 1 and piece.ended:
                    longest = max(times * piece.tokens, SHORT)
                answers[place] = piece.text
                yield ChatChunk(place, safe_text(piece.text).strip(), piece.cut or place not in writing)
        return answers

    def next_held_out(self) -> Iterator[HeldOut | ChatChunk | Marks]:
        """The next held-out question, each model's answer to it so far at temperature 0, and at the end the marks. Yields
        nothing where no question is left, or none can be marked. Raises BackendError, ScorerUnavailable."""
        scorer, runner = self._verifier()
        question = None
        while question is None:
            if (ref := next(self._refs, None)) is None:
                return
            generated = runner.run(scorer.questions([ref]))[0]
            question = generated if isinstance(generated, Question) else None
        truth = runner.run(scorer.truth(question))
        yield HeldOut(self._asked + 1, question.ref.dataset, shown_question(question), safe_text(truth, SHOWN).strip())
        prompt, limit = (
            prompt_ids(self._engines[0].tokenizer, scorer, question),
            new_tokens(self._config, question.ref.dataset),
        )
        answers = yield from self._in_turns(
            {place: _continue(e, prompt, 0.0, limit) for place, e in enumerate(self._engines)}
        )
        try:
            rewards = runner.run(
                scorer.score(question.ref, [answers.get(place, "") for place in range(len(self._engines))])
            ).rewards
        except ScoringFailed as error:  # the verifier failed: neither answer is right or wrong
            yield Marks((), tuple(self._right), self._asked, safe_text(str(error), SHOWN))
            return
        self._asked += 1
        self._right = [count + (reward == 1.0) for count, reward in zip(self._right, rewards, strict=True)]
        yield Marks(tuple(rewards), tuple(self._right), self._asked)

    def _verifier(self) -> tuple[Scorer, asyncio.Runner]:
        if self._runner is None or self._scorer is None:
            self._runner = asyncio.Runner()
            self._scorer = Scorer(answer_format=self._config.answer_format)
            self._scorer.in_reasoning = self._engines[0].tokenizer.opens_reasoning
            self._runner.run(self._scorer.__aenter__())
        return self._scorer, self._runner


def marked_questions(config: RunConfig) -> list[TaskRef]:
    """Held-out questions whose answers a verifier can mark, the tasks in turns; none from a task that is gone or does not
    load: the models still answer the person's own questions."""
    by_task = [_marked_questions_of(task, config.preset) for task in config.tasks]
    return [ref for refs in zip_longest(*by_task) for ref in refs if ref is not None]


def _marked_questions_of(task: str, preset: str) -> list[TaskRef]:
    with suppress(UnknownTask, BadTask):
        if not is_own(task) or _has_verifier(task):
            return held_out_items([task], preset, MOST_OF_A_TASK)
    return []


def without_marks(config: RunConfig) -> str:
    """Why a chat does not start with a held-out question, as a sentence; "" where it does."""
    if marked_questions(config):
        return ""
    try:
        held_out_items(config.tasks, config.preset, 1)
    except (UnknownTask, BadTask) as error:
        return f"No held-out questions can be asked. {error}"
    if any(not is_own(task) or _has_verifier(task) for task in config.tasks):
        return "There are no held-out rows of its tasks on this machine."
    return "Its tasks are judged by a model or played in turns: there is no single right answer to show."


def _has_verifier(task: str) -> bool:
    spec = library.load_task(task).spec
    return not (spec.turns or spec.rubric)


def as_asked(config: RunConfig, text: str) -> str:
    """The person's own question in the form used in training: where the model has one task, a table with one column in its
    question, the text takes that column's place, after the instruction that all rows share."""
    template = _template(config)
    return template[0].fill({template[1]: text}) if template else text


def wording_note(config: RunConfig) -> str:
    """What becomes of the person's own question, as a sentence; "" where it is asked as it was typed."""
    template = _template(config)
    return (
        f"What you type is put into the task's question in place of {{{template[1]}}}. "
        f"To see it: sapo-desktop tasks show {template[0].name}"
        if template
        else ""
    )


def _template(config: RunConfig) -> tuple[TaskSpec, str] | None:
    """The task in whose words a typed question is asked, and the one column of its question that it takes the place of."""
    with suppress(UnknownTask, BadTask):
        if len(config.tasks) == 1 and is_own(config.tasks[0]):
            spec = library.load_task(config.tasks[0]).spec
            if len(columns := set(HOLE.findall(spec.prompt))) == 1 and not spec.turns:
                return spec, columns.pop()
    return None


def shown_question(question: Question) -> str:
    """The question, short enough for a screen: for a table the row itself, without the instruction that all rows share."""
    text = question.prompt
    if is_own(question.ref.dataset):
        task = library.load_task(question.ref.dataset)
        if question.ref.index < len(task.held_out):
            text = task.spec.cells(task.held_out[question.ref.index])
    text = safe_text(text).strip()
    half = SHOWN // 2
    return text if len(text) <= SHOWN else f"{text[:half].rstrip()} … {text[-half:].lstrip()}"


class _AnswerSoFar(NamedTuple):
    """tokens: of the text. ended: nothing follows. cut: it ended for want of room."""

    text: str
    tokens: int
    ended: bool
    cut: bool


def _continue(engine: Engine, prompt: list[int], temperature: float, longest: int) -> Iterator[_AnswerSoFar]:
    """An answer in growing pieces. longest: in tokens."""
    tokens: list[int] = []
    longest = min(longest, engine.info.context_length - len(prompt))
    ended = longest <= 0
    while not ended:
        sampling = Sampling(temperature, 1.0, min(next_piece(len(tokens)), longest - len(tokens)))
        piece = engine.generate([tuple(prompt + tokens)], 1, sampling, seed=len(tokens))[0][0]
        tokens += piece.tokens
        stopped = piece.finish == "stop" or not piece.tokens
        ended = stopped or len(tokens) >= longest
        yield _AnswerSoFar(engine.tokenizer.decode(tuple(tokens)), len(tokens), ended, ended and not stopped)
