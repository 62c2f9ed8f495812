"""A person as a generator: questions for people, their attempts scored here, shared as one group. No terminal, no model."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop.errors import AppError
from sapo_swarm.node.known_successes import WrittenAnswer, keep_written
from sapo_swarm.protocol.client import NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.wire import GroupBody, SharedCompletion
from sapo_swarm.scoring.declared import enclose_answer
from sapo_swarm.scoring.prompts import written_answer
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import generator_of, preset_of, train_seed
from sapo_swarm.tasks.own import library
from sapo_swarm.types import MAX_COMPLETION_BYTES, AnswerFormat, Question, TaskRef

MIN_ATTEMPTS, MAX_ATTEMPTS = 2, 16
"""Limits of the protocol: a group of one has no advantage."""
MODEL = "person"
"""Takes the place of a model's name."""


def parse_attempt(typed: str, ref: TaskRef, answer_format: AnswerFormat = "tags") -> str:
    """A person's typed text as a completion: a bare line becomes the answer, in the format in which answers to this question
    are judged. Raises ValueError with a sentence."""
    text = typed.strip()
    if not text:
        raise ValueError("An attempt needs some text.")
    if not library.answers_elsewhere(ref) and written_answer(answer_format, text) is None:
        text = enclose_answer("tags", text, answer_format)
    if len(text.encode()) > MAX_COMPLETION_BYTES:
        raise ValueError(f"An attempt may have {MAX_COMPLETION_BYTES} bytes.")
    return text


@dataclass(slots=True)
class AnswerSession:
    """Hands out questions and takes attempts. swarm: its id; excluded: hashes of prompts that nodes refuse because they are
    held out; session: keeps questions from repeating. kept: file of the right answers, from which a node on this machine may
    learn."""

    scorer: Scorer
    identity: Identity
    swarm: str
    tasks: Sequence[str]
    preset: str
    excluded: frozenset[str] = frozenset()
    session: int = 0
    asked: int = 0
    kept: Path | None = None

    def __post_init__(self) -> None:
        self.session = self.session or secrets.randbits(31)

    async def question(self) -> Question:
        """A fresh question, the tasks in turn. Raises AppError when no task gives one."""
        for _ in range(64 * len(self.tasks)):
            task = self.tasks[self.asked % len(self.tasks)]
            seed = train_seed(self.identity.node, self.swarm, self.session, self.asked, 0)
            self.asked += 1
            (candidate,) = await self.scorer.questions(
                [TaskRef(task, preset_of(task, self.preset), seed, 0, generator_of(task, self.swarm))]
            )
            if isinstance(candidate, Question) and candidate.prompt_sha256 not in self.excluded:
                return candidate
        raise AppError(f"No question could be made from {', '.join(self.tasks)}. Choose other tasks.")

    async def reward(self, question: Question, text: str) -> float:
        """Strict 0/1, by this machine's own verifier. Raises ScoringFailed."""
        scored = await self.scorer.score(question.ref, [text])
        assert isinstance(scored, ScoredTexts)
        return scored.rewards[0]

    def keep(self, question: Question, text: str) -> str:
        """Keep a right answer on this machine; returns a sentence where the disk refuses."""
        if self.kept is None:
            return ""
        try:
            keep_written(self.kept, WrittenAnswer(question.ref, text))
        except OSError as error:
            return f"Not kept for your own models ({error.strerror or error}). It is shared all the same."
        return ""

    async def share(self, client: NodeClient, question: Question, texts: Sequence[str]) -> str:
        """Sign the attempts as one group and upload it; returns a sentence about the result."""
        body = GroupBody(
            ref=question.ref,
            prompt_sha256=question.prompt_sha256,
            completions=tuple(SharedCompletion(text=text, finish="stop") for text in texts),
            node=self.identity.node,
            model=MODEL,
            policy_step=self.asked,
            ts=int(client.unix_time() * 1000),
        )
        result = await client.exchange([self.identity.sign_group(self.swarm, body)], 0)
        if not result.connected:
            return f"Not shared. {result.sentence}"
        if result.accepted:
            uptake = f" Others sampled yours {result.uptake} times so far." if result.uptake else ""
            return f"Shared: the swarm holds your {len(texts)} attempts.{uptake}"
        return f"Not taken by the coordinator: {', '.join(result.refused) or 'no reason given'}."
