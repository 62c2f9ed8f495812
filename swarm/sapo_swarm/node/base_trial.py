"""The trial of a base before its first round: a few training questions, answered and scored, and what follows from
them.

An untrained model whose answers lack the required form earns no reward, whatever it practises: groups with equal
rewards teach nothing. If the task knows the right answers, imitating them comes first.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from sapo_backends.base import Completion, Sampling
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.events import Plan, TaskTrial, TrialMeasured
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.evaluation import EvaluationProgress, sample_completions
from sapo_swarm.node.rollouts import prompt_ids, score_completions
from sapo_swarm.node.round_context import RoundContext
from sapo_swarm.node.round_phases import round_seed
from sapo_swarm.node.round_warnings import MOSTLY_RIGHT, cause_in_words
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring.scorer import ScoredTexts
from sapo_swarm.tasks.catalogue import generator_of, new_tokens, preset_of, train_seed
from sapo_swarm.types import Question, TaskRef

QUESTIONS, QUESTIONS_AT_MOST = 12, 24
"""Questions for a base, each answered by a whole group; with many tasks one question per task, up to the second
number."""
CHUNK = 4
"""Questions answered together; progress is published between chunks."""
TRIED_PER_QUESTION = 8
"""References tried per question: some regenerate nothing, or are held out."""
TRIAL_ROUND = -1_000_000
"""Replaces the round number in the seeds of the trial's questions."""
LEAST_UNEQUAL = 0.3
"""Below this share of questions with both right and wrong answers, practice has too little to learn from;"""
LEAST_RIGHT = 0.5
"""and with a table of right answers, below this share of right answers the table is imitated first: a model that
began at a third right collapsed into the few most frequent answers with practice alone."""
Show = Callable[[float], None]


@dataclass
class BaseTrial:
    """Mutable: the progress of one trial; an interrupted trial continues from here.

    answers: the group of each question; greedy: the answer to each question at temperature 0.
    """

    questions: list[Question] | None = None
    answers: list[list[Completion]] = field(default_factory=list)
    greedy: list[list[Completion]] = field(default_factory=list)
    seconds: float = 0.0
    _begun: EvaluationProgress = field(default_factory=EvaluationProgress)

    async def measure(self, context: RoundContext, show: Show) -> TrialMeasured | None:
        """The counts, without what follows from them. None if no question can be asked. Raises Cancelled,
        BackendError, ScorerUnavailable."""
        began = time.perf_counter()
        try:
            if self.questions is None:
                self.questions = await _questions(context)
            if not self.questions:
                return None
            scored = await self._ask(context, show)
            at_zero = await self._scored(context, self.greedy)
        finally:
            self.seconds += time.perf_counter() - began
        return self._counted(context, scored, at_zero)

    async def _scored(self, context: RoundContext, table: list[list[Completion]]) -> list[ScoredTexts]:
        questions = (self.questions or [])[: len(table)]
        verdict = await score_completions(context.host.engine.tokenizer, context.scorer, questions, table)
        return [scored for scored, *_ in verdict]

    async def _ask(self, context: RoundContext, show: Show) -> list[ScoredTexts]:
        """The verdicts on the groups. If no answer was right so far, no more questions are asked: they would show the
        same, and each costs seconds."""
        config, questions = context.config, self.questions or []
        scored: list[ScoredTexts] = await self._scored(context, self.answers)
        while len(self.answers) < len(questions):
            show(0.8 * len(self.answers) / len(questions))
            part = questions[len(self.answers) : len(self.answers) + CHUNK]
            self.answers += await self._sampled(context, part, config.temperature, config.group_size)
            scored = await self._scored(context, self.answers)
            if not any(any(verdict.rewards) for verdict in scored):
                questions = self.questions = questions[: len(self.answers)]
        show(0.8)
        if len(self.greedy) < len(questions):
            self.greedy += await self._sampled(context, questions[len(self.greedy) :], 0.0, 1)
        return scored

    async def _sampled(
        self, context: RoundContext, questions: Sequence[Question], temperature: float, samples: int
    ) -> list[list[Completion]]:
        config, limit = context.config, partial(new_tokens, context.config)
        seed = round_seed(context.node_key, config.seed, len(self.answers), f"trial-{temperature}")
        sampling = Sampling(temperature, 1.0, config.max_new_tokens)
        table = await sample_completions(
            context.host, context.scorer, questions, sampling, samples, seed, limit, self._begun, context.portion
        )
        self._begun = EvaluationProgress()
        return table

    def _counted(
        self, context: RoundContext, scored: Sequence[ScoredTexts], at_zero: Sequence[ScoredTexts]
    ) -> TrialMeasured:
        questions = self.questions or []
        by_task: dict[str, list[int]] = {}
        for place, question in enumerate(questions):
            by_task.setdefault(question.ref.shown, []).append(place)
        tasks = tuple(
            TaskTrial(
                task=task,
                questions=len(places),
                answers=sum(len(self.answers[i]) for i in places),
                right=sum(r == 1.0 for i in places for r in scored[i].rewards),
                greedy=sum(at_zero[i].rewards[0] == 1.0 for i in places),
                well_formed=sum(sum(scored[i].well_formed) for i in places),
                truncated=sum(c.finish == "length" for i in places for c in self.answers[i]),
                unequal=sum(len(set(scored[i].rewards)) > 1 for i in places),
            )
            for task, places in by_task.items()
        )
        answers, right = sum(t.answers for t in tasks), sum(t.right for t in tasks)
        low, high = wilson_interval(right, answers)
        sample = context.host.engine.tokenizer.decode(self.answers[0][0].tokens)
        return TrialMeasured(
            round=0,
            temperature=context.config.temperature,
            group_size=context.config.group_size,
            questions=len(questions),
            answers=answers,
            right=right,
            low=low,
            high=high,
            greedy=sum(t.greedy for t in tasks),
            well_formed=sum(t.well_formed for t in tasks),
            truncated=sum(t.truncated for t in tasks),
            unequal=sum(t.unequal for t in tasks),
            tasks=tasks,
            seconds=self.seconds,
            sample=safe_text(sample, 600),
            examples=0,
            plan="practice",
            sentence="",
        )


async def _questions(context: RoundContext) -> list[Question]:
    """Training questions, the same number from each task. Raises ScorerUnavailable."""
    config, tokenizer, room = context.config, context.host.engine.tokenizer, context.host.engine.info.context_length
    question_count = min(max(QUESTIONS, len(config.tasks)), QUESTIONS_AT_MOST)
    chosen: list[Question] = []
    seen: set[str] = set()
    for start in range(0, TRIED_PER_QUESTION * question_count, question_count):
        refs = []
        for slot in range(start, start + question_count):
            task = config.tasks[slot % len(config.tasks)]
            preset, generator = preset_of(task, config.preset), generator_of(task, context.swarm)
            seed = train_seed(context.node_key, context.swarm, TRIAL_ROUND, slot, config.seed)
            refs.append(TaskRef(task, preset, seed, 0, generator))
        for question in await context.scorer.questions(refs):
            if not isinstance(question, Question) or question.prompt_sha256 in context.excluded | seen:
                continue
            needed = len(prompt_ids(tokenizer, context.scorer, question)) + new_tokens(config, question.ref.dataset)
            if needed <= room and len(chosen) < question_count:
                seen.add(question.prompt_sha256)
                chosen.append(question)
        if len(chosen) >= question_count:
            break
    return chosen


def no_questions(config: RunConfig) -> TrialMeasured:
    """The trial of a base for which no training question could be asked."""
    return TrialMeasured(
        round=0,
        temperature=config.temperature,
        group_size=config.group_size,
        questions=0,
        answers=0,
        right=0,
        low=0.0,
        high=1.0,
        greedy=0,
        well_formed=0,
        truncated=0,
        unequal=0,
        tasks=(),
        seconds=0.0,
        sample="",
        examples=0,
        plan="nothing",
        sentence="",
    )


def plan_of(config: RunConfig, counts: TrialMeasured, examples: int, why_none: str, bounded: bool) -> Plan:
    """What follows from the trial. examples: verified texts per pass; why_none: why there is no examples phase for
    another reason. bounded: the examples are rows of a table."""
    if config.examples == "only":
        return "only" if examples and not why_none else "nothing"
    right, unequal = counts.right / max(1, counts.answers), counts.unequal / max(1, counts.questions)
    lost = right < MOSTLY_RIGHT and (unequal < LEAST_UNEQUAL or (bounded and right < LEAST_RIGHT))
    if lost and examples and not why_none and config.examples == "auto":
        return "examples"
    return "practice" if counts.unequal or right >= MOSTLY_RIGHT else "nothing"


SOURCES = {
    "table": ("row of your tables", "rows of your tables"),
    "task": ("question with the task's own answer", "questions with the task's own answers"),
    "person": ("answer you wrote", "answers you wrote"),
    "own": ("earlier answer of this model", "earlier answers of this model"),
    "others": ("answer of others", "answers of others"),
}
"""Where examples come from: key of TrialMeasured.sources -> its words (singular, plural)."""


def sources_in_words(sources: Mapping[str, int], set_aside: int = 0) -> str:
    """Where the texts of a pass come from, as a sentence, and how many questions are set aside beside them; "" where there
    are no texts."""
    parts = [f"{sources[name]:,} {words[sources[name] != 1]}" for name, words in SOURCES.items() if sources.get(name)]
    if not parts:
        return ""
    checked = ", all checked here" if sources.get("others") or sources.get("own") or sources.get("person") else ""
    total = sum(sources.values())
    examples = f"{total:,} example{'' if total == 1 else 's'}: {', '.join(parts)}{checked}."
    if not set_aside:
        return examples
    return f"{examples} {set_aside:,} more {'is' if set_aside == 1 else 'are'} set aside, to see whether examples help."


def sentence_of(counts: TrialMeasured, plan: Plan, why_none: str, most_s: float) -> str:
    """What the node does now, as a sentence for the person."""
    right = (
        f"{counts.right} of {counts.answers} answers right"
        if counts.right
        else f"Nothing right in {counts.answers} answers"
    )
    if plan == "examples":
        return f"{right} yet: examples first, {format_duration(most_s)} at most, then practice where it helps."
    if plan == "only":
        return f"{right} yet: examples, {format_duration(most_s)} at most, and no practice (examples = only)."
    if plan == "nothing":
        return f"Cannot learn yet: {zero_reward_reason(counts)}, and there are no examples: {why_none}"
    if not counts.unequal:
        return f"{right} already: little is left to learn here. Practice at once; harder questions would teach more."
    return f"Practice at once: {counts.unequal} of {counts.questions} questions can teach something ({right})."


def zero_reward_reason(counts: TrialMeasured) -> str:
    """Why answers earn no reward, as the middle of a sentence."""
    if not counts.answers:
        return "no training question could be asked"
    return cause_in_words(
        counts.right / max(1, counts.answers),
        counts.well_formed / max(1, counts.answers),
        counts.truncated / max(1, counts.answers),
    )
