"""Stages: what a node generates in a round besides its own questions, from what others wrote. Pure; found by name."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import msgspec
import numpy as np

from sapo_swarm.sapo.training_batch import has_advantage
from sapo_swarm.scoring.prompts import written_answer
from sapo_swarm.types import AnswerFormat, Group, Question, TaskRef

# The interface of a stage: more prompts in a round, made from local groups and from the pool, and what is learned from
# them.
#
# A round with a stage continues after the exchange: `prompts` is called repeatedly, each time with everything answered
# so far, until it returns nothing; the completions are generated and rewarded like local groups. Then `lessons` says
# which of these completions the update takes, and under which prompt.


class StagePrompt(msgspec.Struct, frozen=True):
    """A question to generate a group for. text: the whole prompt of a second attempt, else "". start: the beginning of every
    completion; the model writes the rest."""

    question: Question
    text: str = ""
    start: str = ""


class AnsweredPrompt(msgspec.Struct, frozen=True):
    """What was generated for a prompt of the stage, rewarded by this node's own verifier."""

    prompt: StagePrompt
    group: Group


class StageLesson(msgspec.Struct, frozen=True):
    """Completions that an update takes.

    answered: index of their group among everything the stage had answered. places: indices of the completions in it.
    baseline: rewards of other attempts at the question that count in the advantages and are not trained on. shown: the
    update's prompt is the one that was generated with; else it is the question alone.
    """

    answered: int
    places: tuple[int, ...]
    baseline: tuple[float, ...] = ()
    shown: bool = False


class StageMaterial(msgspec.Struct, frozen=True):
    """What a stage works with. local: groups of this round. known: other nodes' groups (for a node alone: of earlier rounds),
    verified here.

    wanted: number of questions it may take from `known`. answer_format: where an answer stands.
    """

    local: tuple[Group, ...]
    known: tuple[Group, ...]
    wanted: int
    answer_format: AnswerFormat = "tags"


class Stage(Protocol):
    """Its methods are pure: the same arguments give the same result."""

    def prompts(
        self, material: StageMaterial, answered: Sequence[AnsweredPrompt], random: np.random.Generator
    ) -> list[StagePrompt]:
        """What to generate next, given everything answered so far; [] when the stage is over."""
        ...

    def lessons(self, material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> list[StageLesson]:
        """What the update is to learn from the answers."""
        ...

    def figures(self, material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> dict[str, float]:
        """Counts for the journal, by name."""
        ...


def is_all_failures(group: Group) -> bool:
    """No rollout has the full reward."""
    return not group.solved


def sample_groups(groups: Sequence[Group], wanted: int, random: np.random.Generator) -> list[Group]:
    """Up to `wanted` of the groups, uniformly sampled, in their order, at most one per question."""
    by_ref = {group.question.ref: group for group in groups}
    distinct = list(by_ref.values())
    if len(distinct) <= wanted:
        return distinct
    chosen = random.choice(len(distinct), size=wanted, replace=False)
    return [distinct[i] for i in sorted(chosen.tolist())]


# Other nodes' text as a part of a prompt: short, and (as a hint) without the answer.
#
# It is hostile. The caller makes sure that it has gone through safe_text, and that no part of it becomes a control
# token for the tokenizer (Tokenizer.encode_chat).

SHOWN_CHARACTERS = 600
"""Characters of such a text in a prompt, at most."""
MASK = "_"
"""Replaces the answer in a hint."""
_MARKERS: dict[AnswerFormat, str] = {"tags": "<answer>", "boxed": "\\boxed", "json": "{"}


def truncate_lines(text: str) -> str:
    """As many whole lines as fit; of a single long line its beginning."""
    whole = text.strip()
    if len(whole) <= SHOWN_CHARACTERS:
        return whole
    cut = whole[:SHOWN_CHARACTERS]
    return cut[: cut.rfind("\n")].rstrip() if "\n" in cut else cut


def reasoning_before_answer(text: str, answer_format: AnswerFormat) -> str:
    """The text before the first answer of a completion."""
    if answer_format == "last_line":
        lines = text.rstrip().splitlines()
        return "\n".join(lines[:-1])
    at = text.find(_MARKERS[answer_format])
    return text if at < 0 else text[:at]


def _squeezed(text: str) -> str:
    return "".join(text.split()).casefold()


def contains_answer(text: str, answer: str) -> bool:
    """Whether the answer occurs in the text, regardless of case and spaces."""
    return _squeezed(answer) in _squeezed(text)


def _pattern(answer: str) -> re.Pattern[str]:
    """Its characters with any spaces between them; matches in linear time, because no literal is a space."""
    return re.compile(r"\s*".join(re.escape(character) for character in "".join(answer.split())), re.IGNORECASE)


def masked_hint(text: str, answer_format: AnswerFormat) -> str:
    """The reasoning of a verified completion with every occurrence of its answer masked, regardless of case and spaces.

    "" if there is no reasoning, no answer, or the answer cannot be removed.
    """
    answer = written_answer(answer_format, text)
    if not answer or not _squeezed(answer):
        return ""
    masked = _pattern(answer).sub(MASK, truncate_lines(reasoning_before_answer(text, answer_format)))
    return "" if contains_answer(masked, answer) or not masked.strip(f"{MASK} \n.,:;=") else masked


def reasoning_prefix(text: str, answer_format: AnswerFormat) -> str:
    """The reasoning of a verified completion up to the first occurrence of its answer, as the beginning of another
    completion.

    "" if nothing precedes the answer, or there is none.
    """
    answer = written_answer(answer_format, text)
    if not answer or not _squeezed(answer):
        return ""
    whole = truncate_lines(reasoning_before_answer(text, answer_format))
    match = _pattern(answer).search(whole)
    start = whole[: match.start()] if match else whole
    return "" if contains_answer(start, answer) else start.rstrip()


# Critique: a node sees an attempt that failed, says what is wrong with it, and answers.
#
# The attempt is another node's at its own question (for a node alone: one of its own). What is trained on is the answer
# after the critique, verified, under the prompt that showed the attempt: a separate group, sampled by this policy. Only
# failed attempts are shown, because the answer of a right one would be copied.

CRITICISED = (
    "{question}\n\nSomebody's attempt, which is wrong:\n{shown}\n\nSay what is wrong with it, then solve the problem.\n"
)


@dataclass(frozen=True, slots=True)
class CritiqueStage:
    """See the comment above."""

    def prompts(
        self, material: StageMaterial, answered: Sequence[AnsweredPrompt], random: np.random.Generator
    ) -> list[StagePrompt]:
        """One prompt for each of up to `wanted` questions; see Stage."""
        if answered:
            return []
        groups = [group for group in material.known or material.local if _failed(group)]
        chosen = sample_groups(groups, material.wanted, random)
        texts = [_failed(group) for group in chosen]
        shown = [text[int(random.integers(len(text)))] for text in texts]
        return [
            StagePrompt(group.question, CRITICISED.format(question=group.question.prompt, shown=text))
            for group, text in zip(chosen, shown, strict=True)
        ]

    def lessons(self, material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> list[StageLesson]:
        """Every group with a policy gradient, complete, under the prompt it was generated with."""
        del material
        return [
            StageLesson(number, tuple(range(len(a.group.rollouts))), shown=True)
            for number, a in enumerate(answered)
            if has_advantage(a.group)
        ]

    def figures(self, material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> dict[str, float]:
        """attempted: attempts criticised. corrected: those after which something succeeded."""
        del material
        return {
            "stage_attempted": float(len(answered)),
            "stage_corrected": float(sum(a.group.solved for a in answered)),
        }


def _failed(group: Group) -> list[str]:
    """The group's failures that can be shown."""
    shown = (truncate_lines(r.text) for r in group.rollouts if r.reward < 1.0 and r.finish == "stop")
    return [text for text in shown if text]


# Hint relay: sharing as help, not as data.
#
# 1. Attempt questions at which others had a verified success, unaided.
# 2. Where all own attempts at a question failed, show the reasoning of a verified attempt of others, without its answer, and
#    generate again.
# 3. Train on what succeeded as if the hint had not been there: the update's prompt is the question alone, and the
#    advantages are those of a success among the failures.
#
# Scaf-GRPO (arXiv 2510.19807) and QuestA (2507.13266) do this with a teacher's hints. A model that was not trained to follow
# instructions makes nothing of a hint in its prompt: `relay_start` lets its completion begin with the hint instead, which is
# then a part of what succeeded. `retry` is the control: the same second generation without a hint.

HINTED = "{question}\n\nThe beginning of a solution:\n{shown}\n"


@dataclass(frozen=True, slots=True)
class RelayStage:
    """place: where the hint stands; "none" generates again without one."""

    place: Literal["prompt", "start", "none"] = "prompt"

    def prompts(
        self, material: StageMaterial, answered: Sequence[AnsweredPrompt], random: np.random.Generator
    ) -> list[StagePrompt]:
        """First the other nodes' questions, then the failed ones again; see Stage."""
        found = self._hints(material)
        if not answered:
            mine = {group.question.ref for group in material.local}
            others = [
                group for group in material.known if group.question.ref in found and group.question.ref not in mine
            ]
            if first := sample_groups(others, material.wanted, random):
                return [StagePrompt(group.question) for group in first]
        if any(a.prompt.text for a in answered):
            return []
        return [self._again(q, found[q.ref]) for q in _dead_questions(material, answered) if q.ref in found]

    def _again(self, question: Question, shown: str) -> StagePrompt:
        if self.place == "prompt":
            return StagePrompt(question, HINTED.format(question=question.prompt, shown=shown))
        return StagePrompt(question, question.prompt, shown if self.place == "start" else "")

    def _hints(self, material: StageMaterial) -> Mapping[TaskRef, str]:
        """For each question with a verified attempt by others, the first hint that such an attempt gives."""
        make = reasoning_prefix if self.place == "start" else masked_hint
        hints: dict[TaskRef, str] = {}
        for group in material.known:
            solved = (make(r.text, material.answer_format) for r in group.rollouts if r.reward >= 1.0)
            if group.question.ref not in hints and (shown := next((text for text in solved if text), "")):
                hints[group.question.ref] = shown
        return hints

    def lessons(self, material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> list[StageLesson]:
        """The unaided groups as they are; from the others the successes, without the hint, among the failures before them."""
        failures = {
            g.question.ref: g.rewards for g in [*material.local, *(a.group for a in answered if not a.prompt.text)]
        }
        lessons: list[StageLesson] = []
        for number, (prompt, group) in enumerate((a.prompt, a.group) for a in answered):
            if not prompt.text:
                if has_advantage(group):
                    lessons.append(StageLesson(number, tuple(range(len(group.rollouts)))))
            elif places := tuple(i for i, reward in enumerate(group.rewards) if reward >= 1.0):
                rest = failures[prompt.question.ref][len(places) :]
                lessons.append(StageLesson(number, places, rest or failures[prompt.question.ref][:1]))
        return lessons

    def figures(self, material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> dict[str, float]:
        """attempted: questions of others. dead: groups of all failures among these and the local ones. hinted: dead groups
        that were generated again. revived: hinted ones in which something succeeded."""
        again = [a.group for a in answered if a.prompt.text]
        return {
            "stage_attempted": float(len(answered) - len(again)),
            "stage_dead": float(len(list(_dead_questions(material, answered)))),
            "stage_hinted": float(len(again)),
            "stage_revived": float(sum(group.solved for group in again)),
        }


def _dead_questions(material: StageMaterial, answered: Sequence[AnsweredPrompt]) -> Iterator[Question]:
    unaided = [*material.local, *(a.group for a in answered if not a.prompt.text)]
    return (group.question for group in unaided if is_all_failures(group))


# Stages by name: the values of run.stage besides "none".

STAGES: Mapping[str, Stage] = {
    "relay": RelayStage(),
    "relay_start": RelayStage("start"),
    "retry": RelayStage("none"),
    "critique": CritiqueStage(),
}
