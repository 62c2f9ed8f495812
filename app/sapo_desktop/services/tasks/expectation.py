"""What to expect from training a model on a task, based on a few answers of the untrained model on this machine.

The model answers training questions in whole groups at temperature 1, and once at temperature 0. Where few answers are right,
the questions are asked again with worked examples, first at temperature 0, which is cheap; the better of the two is reported.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

import msgspec

from sapo_backends.base import Completion, Sampling, TimeLimit
from sapo_backends.errors import BackendError, Cancelled
from sapo_desktop.services.bases.forecast import TrainingForecast, in_words
from sapo_desktop.services.machine import engines
from sapo_desktop.services.tasks.proposal.wording import has_form, written_answer_of
from sapo_swarm.algorithms import TINY, local_groups
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import wilson_interval
from sapo_swarm.events import TrialMeasured
from sapo_swarm.node.base_trial import SAMPLED_SHARE, begun_groups, count_trial, is_unfinished
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import EvaluationProgress, sample_completions
from sapo_swarm.node.rollouts import model_turns, prompt_ids, score_completions, turn_length
from sapo_swarm.node.round_warnings import CUT_OFF
from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.import_rows import Row
from sapo_swarm.tasks.own.row_roles import choose_examples
from sapo_swarm.tasks.own.rules import longest_answer
from sapo_swarm.tasks.own.spec import RulesVerifier, may_have_examples, right_answer
from sapo_swarm.types import Question, TaskRef

PROMPTS, PROMPTS_OF_LARGE = 64, 16
"""Training questions for a tiny model, and for any other, each with a whole group: two answers do not show whether a group is
mixed."""
FIRST_LOOK = 25
"""Rounds until a run's first held-out evaluation."""
UPDATE_SHARE = 1.0
"""Seconds of an update per second of generation, roughly: measured on starter."""
TOO_EASY, TOO_HARD = 0.9, 0.01
POOR = 0.3
"""Success rate at either temperature below which worked examples are tried."""
SHOTS = 2
"""Number of worked examples that are tried."""
HELPS = 0.15
"""Success rate that they must add: they make every question longer, and so every round slower."""
FEW_FORMED = 0.2
RIGHT_FORM = 0.5
EXAMPLES_FIRST = "Training begins with your rows as examples; practice follows where it helps."
EXAMPLES_ONLY = "Training imitates your rows as examples and ends there: examples = only is set."
NO_EXAMPLES = "Your rows as examples would help, but examples = off is set: choose auto."
MOST_ASKING_S = 60.0
"""Each asking ends after so much work, SAMPLED_SHARE of it at temperature 1: answers of thousands of tokens would take hours."""
Show = Callable[[float], None]


@dataclass(frozen=True)
class Expectation:
    """The result of `answers` answers to `prompts` questions.

    rate: share of right ones at temperature 1, with its 95 % interval; greedy: at temperature 0. mixed: share of the groups,
    of `group_size`, with both right and wrong answers. truncated, formed, fitting: shares of answers that were cut off at
    `limit` tokens, that contained an answer, that had the form of a right one; all of answers that ended in time: `unfinished`
    more did not, `left_out` questions were not asked, and `greedy_asked` were answered at temperature 0 (-1: all). round_s:
    expected seconds of a round here.
    sample: an answer as it was written; reference: a right answer, "" where the task has none to show; longest: tokens of the
    longest one. shots: worked examples in each question; tried: (shots, success rate at temperature 0) of the alternative,
    None where it was not tried. examples: the setting of that name, by which training may begin with the rows as examples.
    counts: the same answers as a node's trial counts them.
    """

    model: str
    prompts: int
    answers: int
    rate: float
    low: float
    high: float
    mixed: float
    group_size: int
    truncated: float
    formed: float
    round_s: float
    sample: str
    greedy: float = 0.0
    fitting: float = 1.0
    limit: int = 0
    reference: str = ""
    longest: int = 0
    shots: int = 0
    tried: tuple[int, float] | None = None
    examples: str = "auto"
    counts: TrialMeasured | None = None
    unfinished: int = 0
    left_out: int = 0
    greedy_asked: int = -1


async def measure_expectation(
    task: OwnTask, config: RunConfig, scorer: Scorer, show: Show = lambda _: None
) -> Expectation | None:
    """Ask the untrained model training questions. None where no question fits into its context. show: called with the
    fraction done.

    Needs the task in the active library. Raises BackendError, ScorerUnavailable.
    """
    host = EngineThread()
    try:
        await host.load(lambda: engines.engine_builder(config)(lambda *_: None))
        show(0.2)
        scorer.in_reasoning = host.engine.tokenizer.opens_reasoning
        trial = _Trial(task, config, scorer, host)
        questions = await trial.questions()
        first = await trial.ask(questions, lambda part: show(0.2 + 0.4 * part))
        if first is None or not _may_gain(task, first):
            return first
        longer = with_shots(task, SHOTS)
        texts = [longer.question(row) for _, row in questions]
        with_examples = [
            (msgspec.structs.replace(q, prompt=text), row) for (q, row), text in zip(questions, texts, strict=True)
        ]
        right = trial.right_of_finished(*await trial.greedy([q for q, _ in with_examples]))
        if len(right) < len(with_examples):
            return first  # there was no time to see whether they help
        greedy = sum(right) / len(right)
        show(0.7)
        if greedy < first.greedy + HELPS:
            return replace(first, tried=(SHOTS, greedy))
        second = await trial.ask(with_examples, lambda part: show(0.7 + 0.3 * part))
        if second is None or second.rate < first.rate:
            return replace(first, tried=(SHOTS, greedy))
        return replace(second, shots=SHOTS, tried=(0, first.greedy))
    finally:
        scorer.in_reasoning = False
        await host.close()


def with_shots(task: OwnTask, shots: int) -> OwnTask:
    """The task with `shots` worked examples in each question; this is another version, with different digests."""
    spec = msgspec.structs.replace(task.spec, shots=shots)
    return replace(task, spec=spec, examples=choose_examples(spec, task.train))


def _may_gain(task: OwnTask, found: Expectation) -> bool:
    """Whether few answers are right, and the rows can be used as worked examples."""
    rows_left = len(task.train) >= 4 * SHOTS
    return max(found.rate, found.greedy) < POOR and not task.spec.shots and rows_left and may_have_examples(task.spec)


@dataclass
class _Trial:
    """One loaded model and one task."""

    task: OwnTask
    config: RunConfig
    scorer: Scorer
    host: EngineThread

    async def questions(self) -> list[tuple[Question, Row]]:
        """Training questions that fit into the model's context, with their rows."""
        info, tokenizer = self.host.engine.info, self.host.engine.tokenizer
        places = _spread(len(self.task.train), PROMPTS if info.parameters < TINY else PROMPTS_OF_LARGE)
        refs = [TaskRef(self.task.spec.name, "own", number, 0, self.task.generator) for number in places]
        generated = zip(await self.scorer.questions(refs), (self.task.train[place] for place in places), strict=True)
        pairs = [(question, row) for question, row in generated if isinstance(question, Question)]
        new = new_tokens(self.config, self.task.spec.name)
        room = info.context_length - new
        return [(q, row) for q, row in pairs if len(prompt_ids(tokenizer, self.scorer, q)) <= room]

    async def ask(self, asked: Sequence[tuple[Question, Row]], show: Show) -> Expectation | None:
        """The model's answers at both temperatures, scored. None where there is nothing to ask."""
        if not asked:
            return None
        config, engine = self.config, self.host.engine
        questions, rows = [q for q, _ in asked], [row for _, row in asked]
        new, samples = new_tokens(config, self.task.spec.name), config.group_size
        at_once = local_groups(
            config, engine.info.parameters
        )  # as many as in a round: they fit into memory, and the timing is comparable
        completions: list[list[Completion]] = []
        judged = []
        sampling = Sampling(config.temperature, 1.0, new)
        seconds, time_limit = 0.0, TimeLimit(self.host.cancel, SAMPLED_SHARE * MOST_ASKING_S)
        began_all = time.perf_counter()
        for first in range(0, len(asked), at_once):
            part = questions[first : first + at_once]
            began = time.perf_counter()
            group = await self._answers(part, sampling, samples, first, time_limit)
            seconds += time.perf_counter() - began
            completions += group
            judged += await score_completions(engine.tokenizer, self.scorer, part[: len(group)], group)
            show(0.8 * len(completions) / len(asked))
            if time_limit.passed or not any(any(scored.rewards) for scored, *_ in judged):
                break  # more questions would not change the result, and each costs a large model seconds
        if not completions:
            waited = format_duration(SAMPLED_SHARE * MOST_ASKING_S)
            raise BackendError(f"No answer began within {waited}; this model is too slow here to be tried.")
        left_out = len(questions) - len(completions) if time_limit.passed else 0
        questions, rows = questions[: len(completions)], rows[: len(completions)]
        at_zero = await self.greedy(questions)
        show(1.0)
        counts = count_trial(
            config,
            engine.tokenizer,
            questions,
            completions,
            [scored for scored, *_ in judged],
            *at_zero,
            time.perf_counter() - began_all,
            left_out,
        )
        ended = [[not is_unfinished(c, new) for c in group] for group in completions]
        rates = [
            sum(r == 1.0 for r, over in zip(scored.rewards, group, strict=True) if over) / sum(group)
            for (scored, *_), group in zip(judged, ended, strict=True)
            if any(group)
        ]
        finished = max(1, counts.answers - counts.unfinished)
        low, high = wilson_interval(sum(rates), len(rates))
        references = [right_answer(self.task.spec, row).strip() for row in rows] if self._has_references() else []
        wrong = next(
            (group[0] for group, (scored, *_) in zip(completions, judged, strict=True) if min(scored.rewards) < 1), None
        )
        written = [
            (row, text)
            for row, (_, texts, _), group in zip(rows, judged, ended, strict=True)
            for text, over in zip(texts, group, strict=True)
            if over
        ]
        right_at_zero = self.right_of_finished(*at_zero)
        return Expectation(
            model=shown_model(config.model),
            prompts=len(completions),
            answers=counts.answers - counts.unfinished,
            rate=sum(rates) / max(1, len(rates)),
            low=low,
            high=high,
            mixed=counts.unequal / len(completions),
            group_size=samples,
            truncated=counts.truncated / finished,
            formed=counts.well_formed / finished,
            round_s=self._whole_s(seconds, completions, new) / counts.answers * at_once * samples * (1 + UPDATE_SHARE),
            sample="\n".join(model_turns(engine.tokenizer, wrong or completions[0][0])),
            greedy=sum(right_at_zero) / max(1, len(right_at_zero)),
            fitting=self._fitting(written),
            limit=new,
            reference=references[0] if references else "",
            longest=max(
                (len(engine.tokenizer.encode_text(text)) for text in references), default=_ruled(self.task) // 4
            ),
            shots=self.task.spec.shots,
            examples=config.examples,
            counts=counts,
            unfinished=counts.unfinished,
            left_out=left_out,
            greedy_asked=counts.greedy_asked,
        )

    @staticmethod
    def _whole_s(seconds: float, completions: Sequence[Sequence[Completion]], limit: int) -> float:
        """The seconds that the answers take if those that were interrupted go on to their limit."""
        every = [completion for group in completions for completion in group]
        sampled = sum(c.sampled for c in every)
        left = sum(limit - turn_length(c) for c in every if is_unfinished(c, limit))
        return seconds * (sampled + left) / max(1, sampled)

    async def _answers(
        self, questions: Sequence[Question], sampling: Sampling, samples: int, seed: int, limit: TimeLimit
    ) -> list[list[Completion]]:
        """Completions of these questions; when time is up, of the first of them that were begun, as far as they are."""
        begun = EvaluationProgress()
        try:
            return await sample_completions(
                self.host, self.scorer, questions, sampling, samples, seed, begun=begun, cancel=limit
            )
        except Cancelled:
            if self.host.cancel.cancelled:
                raise
            return begun_groups(begun.table)

    async def greedy(self, questions: Sequence[Question]) -> tuple[list[list[Completion]], list[ScoredTexts]]:
        """The answers at temperature 0 to the first of these questions, as many as there is time for, and their verdicts."""
        new, engine = new_tokens(self.config, self.task.spec.name), self.host.engine
        limit = TimeLimit(self.host.cancel, (1 - SAMPLED_SHARE) * MOST_ASKING_S)
        completions = await self._answers(questions, Sampling(0.0, 1.0, new), 1, 0, limit)
        judged = await score_completions(engine.tokenizer, self.scorer, questions[: len(completions)], completions)
        return completions, [scored for scored, *_ in judged]

    def right_of_finished(
        self, completions: Sequence[Sequence[Completion]], verdicts: Sequence[ScoredTexts]
    ) -> list[bool]:
        """Which of the greedy answers are right, of those that came to their end."""
        limit = new_tokens(self.config, self.task.spec.name)
        return [
            scored.rewards[0] == 1.0
            for group, scored in zip(completions, verdicts, strict=True)
            if not is_unfinished(group[0], limit)
        ]

    def _has_references(self) -> bool:
        spec = self.task.spec
        return may_have_examples(msgspec.structs.replace(spec, extract="whole"))

    def _fitting(self, written: Sequence[tuple[Row, str]]) -> float:
        """The share of the answers that have the form of a right one; 1 where nothing says what that is."""
        if not self._has_references():
            return 1.0
        form, reasoning = self.scorer.answer_format, self.scorer.in_reasoning
        answers = [(row, written_answer_of(self.task, text, form, reasoning)) for row, text in written]
        return sum(has_form(self.task, row, answer) for row, answer in answers) / max(1, len(answers))


def _spread(rows: int, most: int) -> list[int]:
    """At most `most` row numbers, spread evenly over the rows."""
    count = min(most, rows)
    return [number * rows // count for number in range(count)]


def shown_model(model: str) -> str:
    """The name of a base in a sentence: a file or folder by its last part."""
    return PurePath(model).name if os.path.exists(os.path.expanduser(model)) else model


def describe_expectation(found: Expectation, kept: bool = False, time: TrainingForecast | None = None) -> list[str]:
    """The figures as a friend would explain them. kept: the task now has the better number of worked examples. time: how long
    training takes here, None where unknown."""
    if not found.answers:
        return [
            f"{found.model} came to no end with any of {found.unfinished} answers within "
            f"{format_duration(SAMPLED_SHARE * MOST_ASKING_S)}, so there is no rate to show. They begin like "
            f"{_shown(found.sample)}.",
            f"The most that an answer may have is {found.limit} tokens: --max-new-tokens sets it. {_unasked(found)}".strip(),
            _examples_sentence(found) if found.reference else "Shorter answers, or a faster model, could be tried.",
        ]
    greedy = "was not asked in time" if not found.greedy_asked else f"{100 * found.greedy:.1f} %"
    verdict = _verdict(found)
    return [
        verdict,
        f"Right before training: answered greedily (temperature 0, as in a chat) {greedy}, sampled (temperature 1) "
        f"{100 * found.rate:.1f} % (95 %: {100 * found.low:.1f} to {100 * found.high:.1f}; {found.answers} answers to "
        f"{found.prompts} training questions).",
        *filter(None, [_unasked(found)]),
        f"Practice could learn from {100 * found.mixed:.0f} % of them: where some answers earn more than others.",
        _when(found, verdict, time),
        *_about_examples(found, kept),
    ]


def _unasked(found: Expectation) -> str:
    """What the time limit of the trial left out of the figures; "" if nothing."""
    parts = [f"{found.unfinished} more answers were not at their end"] if found.unfinished else []
    parts += (
        [f"{found.left_out} of {found.prompts + found.left_out} questions were not asked"] if found.left_out else []
    )
    if found.greedy_asked > 0:
        parts.append(f"{found.greedy_asked} of {found.prompts} were answered at temperature 0")
    if not parts:
        return ""
    return f"The trial ends after {format_duration(MOST_ASKING_S)}: {', '.join(parts)}; these figures are without them."


def _when(found: Expectation, verdict: str, time: TrainingForecast | None) -> str:
    """When there will be something to compare, and how long a round of practice takes."""
    round_s = in_words(time.round if time and time.round else found.round_s)
    usual = f"{time.examples_range} here" if time and time.examples else "usually 2 to 5 minutes"
    phase = f"Examples come first: {usual}"
    if found.examples == "only":
        return f"{phase}; the held-out comparison follows."
    look = (
        f"; a held-out evaluation, every {time.every} rounds, takes about {in_words(time.evaluation)}"
        if time and time.evaluation
        else ""
    )
    if verdict.endswith(EXAMPLES_FIRST):
        return f"{phase}; a held-out comparison follows. If practice follows, its rounds take about {round_s}{look}."
    minutes = FIRST_LOOK * found.round_s / 60
    return (
        f"A round takes about {found.round_s:.1f} s here; the first held-out comparison, after {FIRST_LOOK} rounds, "
        f"comes in about {minutes:.0f} minute{'s' if round(minutes) != 1 else ''}."
        if minutes >= 1
        else f"A round takes about {found.round_s:.1f} s here; the first held-out comparison comes within a minute."
    )


def _about_examples(found: Expectation, kept: bool) -> list[str]:
    """Whether worked examples in the question help."""
    if found.tried is None:
        return []
    shots, greedy = found.tried
    alternative = f"{100 * greedy:.0f} % at temperature 0"
    if not found.shots:
        return [
            f"With {shots} worked examples in each question: {alternative}. That is no help, and they are left out."
        ]
    advice = "The task has them from now on" if kept else f"Write shots = {found.shots} into task.toml to have them"
    return [f"These figures are with {found.shots} worked examples in each question; without: {alternative}. {advice}."]


def _verdict(found: Expectation) -> str:
    """What the figures mean, and what to do."""
    endless = found.truncated > CUT_OFF and bool(found.longest) and found.limit >= 2 * found.longest
    if found.formed >= FEW_FORMED and found.truncated > CUT_OFF and not endless:
        return f"{100 * found.truncated:.0f} % of the answers are cut off: raise max_new_tokens."
    cause, by_hand = _obstacle(found, endless)
    if cause:
        return _remedy(found, cause, by_hand)
    if found.rate > TOO_EASY:
        return "Too easy: almost everything is right already. Choose harder rows or a smaller model."
    if found.mixed >= 0.3:
        return "Well suited: many questions have both better and worse answers. A change is often visible after 25 to 100 rounds."
    if found.reference:
        return f"Little is right yet. {_examples_sentence(found)}"
    return "Possible, but slow: few groups teach anything. Easier rows beside the hard ones help. Allow some hundred rounds."


def _ruled(task: OwnTask) -> int:
    """Characters that the task's rules allow an answer, 0 where none limits them."""
    limits = [longest_answer(part.rules) for part in task.spec.verifier if isinstance(part, RulesVerifier)]
    return min(filter(None, limits), default=0)


def _obstacle(found: Expectation, endless: bool) -> tuple[str, str]:
    """The first cause that keeps the model from learning, and what the person can do about it; "" for none. endless: answers
    are cut off although the limit leaves enough room for right ones."""
    if found.formed < FEW_FORMED:
        cause = f"only {100 * found.formed:.0f} % of the answers hold an answer at all, such as {_shown(found.sample)}"
        return cause, "Say in the prompt how to answer, or choose another way to read it (Read from; --extract)."
    if endless and found.rate < POOR and found.reference:
        share = f"{100 * found.truncated:.0f} % of the answers are much longer than yours"
        return f"{share} and are cut off at {found.limit} tokens, such as {_shown(found.sample)}", ""
    if found.rate < POOR and found.mixed < 0.3 and found.fitting < RIGHT_FORM:
        return f"answers look like {_shown(found.sample)} and yours like {_shown(found.reference)}", ""
    if found.rate < TOO_HARD and found.mixed < 0.05 and found.greedy < HELPS:
        wrong = f"the answers are wrong although they have the right form, such as {_shown(found.sample)}"
        cause = wrong if found.reference else "where nothing is ever right, there is nothing to learn from"
        return cause, "Choose a larger model, easier rows, or partial credit (--partial-credit)."
    return "", ""


def _remedy(found: Expectation, cause: str, by_hand: str) -> str:
    """The cause, and the remedy: the person's own rows as examples, where they hold right answers."""
    if found.reference:
        much = "Little" if max(found.rate, found.greedy) else "Nothing"
        return f"{much} right yet: {cause}. {_examples_sentence(found)}"
    start = "Too hard for this model: " if found.formed >= FEW_FORMED else ""
    text = f"{start}{cause}."
    return f"{text[0].upper()}{text[1:]} {by_hand}".strip()


def _examples_sentence(found: Expectation) -> str:
    """What training does with the rows, depending on the setting."""
    return {"off": NO_EXAMPLES, "only": EXAMPLES_ONLY}.get(found.examples, EXAMPLES_FIRST)


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain[:80] + ("…" if len(plain) > 80 else ""))
