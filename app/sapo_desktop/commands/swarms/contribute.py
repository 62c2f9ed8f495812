"""`sapo-desktop contribute --answer`: a person answers questions and shares the attempts with the swarm.

The paper (arXiv 2509.08721, section 4) lets any generator take part, humans too. The receivers verify the group.
"""

from __future__ import annotations

import argparse
import asyncio
import secrets
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sapo_desktop import settings
from sapo_desktop.commands.parsing import read_invite
from sapo_desktop.errors import AppError, UsageError
from sapo_desktop.paths import Home
from sapo_desktop.services.swarms import membership
from sapo_desktop.settings import flags
from sapo_swarm.node.known_successes import WrittenAnswer, keep_written
from sapo_swarm.protocol.client import CoordinatorError, NodeClient
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.protocol.wire import GroupBody, SharedCompletion
from sapo_swarm.scoring.declared_verifiers import enclose_answer
from sapo_swarm.scoring.prompts import written_answer
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer, ScoringFailed
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.catalogue import generator_of, preset_of, train_seed
from sapo_swarm.tasks.own import library
from sapo_swarm.types import MAX_COMPLETION_BYTES, AnswerFormat, Question, TaskRef

MIN_ATTEMPTS, MAX_ATTEMPTS = 2, 16
"""Limits of the protocol: a group of one has no advantage."""
_HOW = (
    "Answer as often as you like; every line is one attempt and is scored here. An empty line shares them (at least "
    f"{MIN_ATTEMPTS}), 's' skips the question, 'q' ends. Share wrong attempts as well: a model learns from a right one only "
    "beside a wrong one."
)


class _Done(Exception):
    """The person wants to stop."""


def add_arguments(parser: argparse.ArgumentParser, _verb: str) -> None:
    """The verb's flags."""
    parser.add_argument("--answer", action="store_true", help="you answer; without it: how a model contributes")
    parser.add_argument(
        "--join",
        default="",
        metavar="INVITE",
        help="the swarm, this time only: the invite is kept nowhere; -: typed or piped in (default: the saved one)",
    )
    parser.add_argument("--questions", type=int, default=0, help="how many questions (default: until you stop)")
    flags.add_run_flags(parser, only=("tasks", "preset"))


def main(args: argparse.Namespace) -> int:
    """Run the verb; its exit code. Raises AppError."""
    if not args.answer:
        raise UsageError(
            "Answer questions yourself with: sapo-desktop contribute --answer. Let a model generate for the swarm "
            "without training: sapo-desktop new helper --method none, then sapo-desktop node helper --join INVITE"
        )
    home = Home.find()
    home.prepare()
    try:
        return asyncio.run(_contribute(home, args))
    except _Done:
        return 0


async def _contribute(home: Home, args: argparse.Namespace) -> int:
    from sapo_swarm.node.evaluation import held_out_exclusion
    from sapo_swarm.scoring.scorer import Scorer

    chosen = settings.load_settings(home.settings)
    config = flags.run_config(chosen, args)
    invite = membership.parse_typed_invite(read_invite(args.join)) if args.join else membership.load_invite(home.invite)
    membership.require_shared(config, invite.swarm)
    tasks = [
        task for task in config.tasks if not catalogue.is_own(task) or library.has_shared_version(task, invite.swarm)
    ]
    who = await asyncio.to_thread(membership.load_identity, home)
    async with NodeClient(invite, who.identity) as client, Scorer(answer_format=config.answer_format) as scorer:
        try:
            info = await client.join(chosen.person.name, "person")
        except CoordinatorError as error:
            raise UsageError(f"{safe_text(str(error), 300, lines=False)}") from error
        print(f"In {safe_text(info.name, 40, lines=False)} with {info.nodes} nodes. {who.sentence}\n{_HOW}")
        excluded = await held_out_exclusion(scorer, config.tasks, config.preset)
        desk = AnswerSession(
            scorer, who.identity, invite.swarm, tasks, config.preset, excluded, kept=home.written_answers
        )
        shared = 0
        while not args.questions or shared < args.questions:
            question = await desk.question()
            texts = await _attempts(desk, question)
            if texts:
                await asyncio.sleep(client.wait_s)
                print(safe_text(await desk.share(client, question, texts), 400))
                shared += 1
    return 0


async def _attempts(desk: AnswerSession, question: Question) -> list[str]:
    """The attempts at one question; empty if it was skipped. Raises _Done."""
    print(f"\n{question.ref.dataset.replace('_', ' ')}\n{safe_text(question.prompt)}\n")
    texts: list[str] = []
    while len(texts) < MAX_ATTEMPTS:
        typed = await asyncio.to_thread(_read, f"attempt {len(texts) + 1}: ")
        if typed in {"", "q", "s"}:
            if typed == "q":
                raise _Done
            if typed == "s":
                return []
            if len(texts) >= MIN_ATTEMPTS:
                return texts
            print(f"A group needs at least {MIN_ATTEMPTS} attempts; another one may also be wrong.")
            continue
        try:
            text = parse_attempt(typed, question.ref, desk.scorer.answer_format)
            reward = await desk.reward(question, text)
        except (ValueError, ScoringFailed) as error:
            print(f"  {safe_text(str(error), 200, lines=False)}")
            continue
        texts.append(text)
        if reward >= 1.0 and (said := await asyncio.to_thread(desk.keep, question, text)):
            print(f"  {said}")
        print(f"  {'right' if reward >= 1.0 else 'not right'} (reward {reward:.2f})")
    return texts


def _read(prompt: str) -> str:
    """One line; the end of the input counts as 'q'."""
    print(prompt, end="", flush=True)
    line = sys.stdin.readline()
    return line.strip() if line else "q"


# A person as a generator: questions for people, their attempts scored here, shared as one group. No terminal, no model.

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
