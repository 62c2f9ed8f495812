"""The trial of a base before its first round: a few training questions, answered and scored, and what follows from
them.

An untrained model whose answers lack the required form earns no reward, whatever it practises: groups with equal
rewards teach nothing. If the task knows the right answers, imitating them comes first.
"""

from __future__ import annotations

import hashlib
import itertools
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec

from sapo_backends.base import Completion, Sampling, TimeLimit, Tokenizer
from sapo_backends.errors import Cancelled
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.events import Plan, TaskTrial, TrialMeasured
from sapo_swarm.node.checkpoints import package_versions
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.evaluation import EvaluationProgress, sample_completions
from sapo_swarm.node.rollouts import is_turn_over, prompt_ids, score_completions
from sapo_swarm.node.round_phases import RoundContext, round_seed
from sapo_swarm.node.round_warnings import MOSTLY_RIGHT, cause_in_words
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.scoring.scorer import ScoredTexts
from sapo_swarm.tasks.catalogue import generator_of, new_tokens, preset_of, train_seed
from sapo_swarm.types import UNREADABLE, Question, TaskRef
from sapo_swarm.whole_file import write_atomically

QUESTIONS, QUESTIONS_AT_MOST = 12, 24
"""Questions for a base, each answered by a whole group; with many tasks one question per task, up to the second
number."""
CHUNK = 4
"""Questions answered together; progress is published between chunks."""
TRIED_PER_QUESTION = 8
"""References tried per question: some regenerate nothing, or are held out."""
TRIAL_ROUND = -1_000_000
"""Replaces the round number in the seeds of the trial's questions."""
MOST_TRIAL_S = 20.0
"""The trial ends after so much work: a model that writes every answer to a high limit would keep the first step waiting.
Two readings of the same base differ by more than what the questions after that would show."""
SAMPLED_SHARE = 0.8
"""Of that, for the groups; the rest is for the answers at temperature 0."""
LEAST_FINISHED = 8
"""Below this many finished answers a trial that ran out of time says nothing, and a base imitates first where it can."""
LEAST_RIGHT = 0.5
"""Below this share of right answers the known ones are imitated first, even where practice could begin: from the same weights
150 seconds of examples gained where 150 seconds of practice did not (docs/lab), and with a table a model that began at a third
right collapsed into the few most frequent answers by practice alone."""
Show = Callable[[float], None]


@dataclass
class BaseTrial:
    """Mutable: the progress of one trial; an interrupted trial continues from here. most_seconds: of work; what was not asked
    or finished by then stays so.

    answers: the group of each question; greedy: the answer to each question at temperature 0.
    """

    most_seconds: float = MOST_TRIAL_S
    questions: list[Question] | None = None
    answers: list[list[Completion]] = field(default_factory=list)
    greedy: list[list[Completion]] = field(default_factory=list)
    seconds: float = 0.0
    left_out: int = 0
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
        if not self.answers:
            return None
        config, tokenizer = context.config, context.host.engine.tokenizer
        return count_trial(
            config, tokenizer, self.questions, self.answers, scored, self.greedy, at_zero, self.seconds, self.left_out
        )

    async def _scored(self, context: RoundContext, table: list[list[Completion]]) -> list[ScoredTexts]:
        questions = (self.questions or [])[: len(table)]
        verdict = await score_completions(context.host.engine.tokenizer, context.scorer, questions, table)
        return [scored for scored, *_ in verdict]

    async def _ask(self, context: RoundContext, show: Show) -> list[ScoredTexts]:
        """The verdicts on the groups. If no answer was right so far, no more questions are asked: they would show the
        same, and each costs seconds."""
        config, questions, began = context.config, self.questions or [], time.perf_counter()

        def time_for(share: float) -> TimeLimit:
            return TimeLimit(
                context.host.cancel, share * self.most_seconds - self.seconds - time.perf_counter() + began
            )

        scored: list[ScoredTexts] = await self._scored(context, self.answers)
        sampling = time_for(SAMPLED_SHARE)
        while len(self.answers) < len(questions) and not sampling.passed:
            show(SAMPLED_SHARE * len(self.answers) / len(questions))
            part = questions[len(self.answers) : len(self.answers) + CHUNK]
            self.answers += await self._sampled(context, part, config.temperature, config.group_size, sampling)
            scored = await self._scored(context, self.answers)
            if not any(any(verdict.rewards) for verdict in scored) and not sampling.passed:
                questions = self.questions = questions[: len(self.answers)]
        if len(self.answers) < len(questions):
            self.left_out += len(questions) - len(self.answers)
            questions = self.questions = questions[: len(self.answers)]
        show(SAMPLED_SHARE)
        greedy = time_for(1.0)
        if len(self.greedy) < len(questions) and not greedy.passed:
            self.greedy += await self._sampled(context, questions[len(self.greedy) :], 0.0, 1, greedy)
        return scored

    async def _sampled(
        self, context: RoundContext, questions: Sequence[Question], temperature: float, samples: int, limit: TimeLimit
    ) -> list[list[Completion]]:
        """The answers to these questions; when time is up, those to the first of them that were begun, as far as they are."""
        config = context.config
        seed = round_seed(context.node_key, config.seed, len(self.answers), f"trial-{temperature}")
        try:
            table = await sample_completions(
                context.host,
                context.scorer,
                questions,
                Sampling(temperature, 1.0, config.max_new_tokens),
                samples,
                seed,
                partial(new_tokens, config),
                self._begun,
                context.portion,
                cancel=limit,
            )
        except Cancelled:
            if context.host.cancel.cancelled:
                raise
            table = begun_groups(self._begun.table)
        self._begun = EvaluationProgress()
        return table


def begun_groups(table: Sequence[list[Completion]]) -> list[list[Completion]]:
    """The groups before the first one with a completion that has no token yet."""
    return list(itertools.takewhile(lambda group: all(c.tokens for c in group), table))


def is_unfinished(completion: Completion, limit: int) -> bool:
    """The completion neither ended nor reached its limit."""
    return not is_turn_over(completion, limit)


def count_trial(
    config: RunConfig,
    tokenizer: Tokenizer,
    questions: Sequence[Question],
    answers: Sequence[Sequence[Completion]],
    scored: Sequence[ScoredTexts],
    greedy: Sequence[Sequence[Completion]],
    at_zero: Sequence[ScoredTexts],
    seconds: float,
    left_out: int = 0,
) -> TrialMeasured:
    """A trial's counts, without what follows from them. answers, scored: the group of each question; greedy, at_zero: the
    answers to the first questions at temperature 0. left_out: see events.TrialMeasured."""
    by_task: dict[str, list[int]] = {}
    for place, question in enumerate(questions):
        by_task.setdefault(question.ref.shown, []).append(place)
    limits = [new_tokens(config, question.ref.dataset) for question in questions]
    ended = [[not is_unfinished(c, limit) for c in group] for group, limit in zip(answers, limits, strict=True)]
    rewards = [
        [reward if over else 0.0 for reward, over in zip(verdict.rewards, group, strict=True)]
        for verdict, group in zip(scored, ended, strict=True)
    ]

    def mixed(i: int) -> bool:
        return len({reward for reward, over in zip(rewards[i], ended[i], strict=True) if over}) > 1

    tasks = tuple(
        TaskTrial(
            task=task,
            questions=len(places),
            answers=sum(len(answers[i]) for i in places),
            right=sum(r == 1.0 for i in places for r in rewards[i]),
            greedy=sum(at_zero[i].rewards[0] == 1.0 for i in places if i < len(at_zero)),
            well_formed=sum(sum(scored[i].well_formed) for i in places),
            truncated=sum(
                c.finish == "length" and over for i in places for c, over in zip(answers[i], ended[i], strict=True)
            ),
            unequal=sum(mixed(i) for i in places),
        )
        for task, places in by_task.items()
    )
    total, right = sum(t.answers for t in tasks), sum(t.right for t in tasks)
    finished = sum(map(sum, ended))
    low, high = wilson_interval(right, finished)
    greedy_over = sum(not is_unfinished(group[0], limit) for group, limit in zip(greedy, limits, strict=False))
    return TrialMeasured(
        round=0,
        temperature=config.temperature,
        group_size=config.group_size,
        questions=len(questions),
        answers=total,
        right=right,
        low=low,
        high=high,
        greedy=sum(t.greedy for t in tasks),
        well_formed=sum(t.well_formed for t in tasks),
        truncated=sum(t.truncated for t in tasks),
        unequal=sum(t.unequal for t in tasks),
        tasks=tasks,
        seconds=seconds,
        sample=safe_text(tokenizer.decode(answers[0][0].tokens), 600),
        examples=0,
        plan="practice",
        sentence="",
        unfinished=total - finished,
        left_out=left_out,
        greedy_asked=-1 if greedy_over == len(questions) else greedy_over,
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


def plan_of(config: RunConfig, counts: TrialMeasured, examples: int, why_none: str) -> Plan:
    """What follows from the trial. examples: verified texts per pass; why_none: why there is no examples phase for
    another reason."""
    if config.examples == "only":
        return "only" if examples and not why_none else "nothing"
    finished = counts.answers - counts.unfinished
    unknown = counts.unfinished > 0 and finished < LEAST_FINISHED
    right = counts.right / max(1, finished)
    if (right < LEAST_RIGHT or unknown) and examples and not why_none and config.examples == "auto":
        return "examples"
    return "practice" if unknown or counts.unequal or right >= MOSTLY_RIGHT else "nothing"


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
    of = f" ({parts[0].removeprefix(f'{total:,} ')})" if len(parts) == 1 else f": {', '.join(parts)}"
    examples = f"{total:,} example{'' if total == 1 else 's'}{of}{checked}."
    if not set_aside:
        return examples
    return f"{examples} {set_aside:,} more {'is' if set_aside == 1 else 'are'} set aside, to see whether examples help."


def sentence_of(counts: TrialMeasured, plan: Plan, why_none: str) -> str:
    """What the node does now, as a sentence for the person."""
    right = (
        f"{counts.right} of {counts.answers} answers right"
        if counts.right
        else f"Nothing right in {counts.answers} answers"
    )
    noted = _notes(counts)
    if plan == "examples":
        return f"{right} yet{noted}: examples first, for as long as they help, then practice where it does."
    if plan == "only":
        return f"{right} yet{noted}: examples for as long as they help, and no practice (examples = only)."
    if plan == "nothing":
        return f"Cannot learn yet: {zero_reward_reason(counts)}, and there are no examples: {why_none}"
    if not counts.unequal and counts.right:
        return f"{right} already{noted}: little is left to learn here. Practice at once; harder questions would teach more."
    if not counts.unequal:
        return f"{right} yet{noted}: practice at once, which will show more."
    return f"Practice at once: {counts.unequal} of {counts.questions} questions can teach something ({right}{noted})."


def _notes(counts: TrialMeasured) -> str:
    """What a trial had no time for: the end of a phrase, or ""."""
    notes = []
    if counts.left_out or counts.unfinished:
        notes.append(f"{format_duration(counts.seconds)} of trial")
    if counts.left_out:
        total = counts.questions + counts.left_out
        notes.append(f"{counts.left_out} of {total} questions left out")
    if counts.unfinished:
        notes.append(f"{counts.unfinished} answers unfinished")
    return f" ({', '.join(notes)})" if notes else ""


def zero_reward_reason(counts: TrialMeasured) -> str:
    """Why answers earn no reward, as the middle of a sentence."""
    finished = counts.answers - counts.unfinished
    if not finished:
        return "no training question could be asked" if not counts.answers else "no answer ended in time"
    return cause_in_words(counts.right / finished, counts.well_formed / finished, counts.truncated / finished)


# Trials that were made before, on disk: a model's first run does not repeat what `tasks new` or another run has measured under
# the same conditions.
#
# One JSON file per trial, named by a hash of everything that decides it: the weights, the version of each task, what decides an
# answer and its verdict, and the versions of the packages. A changed table or model, or an update, has another name.

KEPT = 64
"""Trials on disk; the oldest beyond that are deleted."""


@dataclass(frozen=True)
class StoredTrials:
    """folder: of the files, made when needed. model_id: identifies the base's weights, read from its files; raises what
    reading them raises. version: of the app, whose wording of the questions counts."""

    folder: Path
    model_id: Callable[[], str]
    version: str

    def find(self, config: RunConfig, swarm: str) -> TrialMeasured | None:
        """The counts of such a trial, if one was made; `time` says when. Takes some file reads. Raises UnknownTask, BadTask."""
        try:
            counts = msgspec.json.decode(self._file(config, swarm).read_bytes(), type=TrialMeasured)
        except (OSError, *UNREADABLE):
            return None
        return counts if counts.questions else None

    def store(self, config: RunConfig, swarm: str, counts: TrialMeasured, now: float) -> None:
        """Store a trial, made at `now` (Unix seconds). A disk that refuses costs another trial, and nothing else. Raises
        UnknownTask, BadTask."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            dated = msgspec.structs.replace(counts, time=now)
            write_atomically(self._file(config, swarm), msgspec.json.encode(dated))
            files = sorted(self.folder.glob("*.json"), key=lambda file: file.stat().st_mtime)
            for file in files[:-KEPT]:
                file.unlink(missing_ok=True)
        except OSError:
            return

    def _file(self, config: RunConfig, swarm: str) -> Path:
        """Raises OSError if the model's files cannot be read."""
        return self.folder / f"{trial_key(config, swarm, self.model_id(), self.version)}.json"


def trial_key(config: RunConfig, swarm: str, model_id: str, version: str) -> str:
    """Equal for trials of which one stands for the other. Precision is taken as it is set: what "auto" becomes on this
    machine is no reason to try a base twice. Raises UnknownTask, BadTask."""
    tasks = [
        (task, preset_of(task, config.preset), generator_of(task, swarm), new_tokens(config, task))
        for task in config.tasks
    ]
    conditions = {
        "model": model_id,
        "tasks": sorted(tasks),
        "temperature": config.temperature,
        "group_size": config.group_size,
        "answer_format": config.answer_format,
        "thinking": "on" if config.thinking == "on" else "off",
        "judge": config.judge_model,
        "engine": [config.trainer, config.precision, config.method],
        "versions": [version, sorted(package_versions(config.trainer).items())],
    }
    return hashlib.sha256(json.dumps(conditions, sort_keys=True).encode()).hexdigest()[:32]
