"""How long training will take, part by part: the trial, the examples, a round of practice, an evaluation.

Based on measurements on this machine where there are any, else on its limits. Lengths are those of the run's own questions
and right answers where they can be counted (question_tokens); assumptions are stated.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from sapo_backends.measure.choice import PROMPT, RoundWorkload
from sapo_desktop.services.bases.question_tokens import TokenCounts
from sapo_swarm.config import RunConfig
from sapo_swarm.node.base_trial import CHUNK, MOST_TRIAL_S, QUESTIONS, QUESTIONS_AT_MOST
from sapo_swarm.node.clock import format_duration
from sapo_swarm.node.examples_phase import TAUGHT, steps_between_readings
from sapo_swarm.node.verified_examples import BATCH

PASSES, FEW_PASSES, MANY_PASSES = 3, 2, 8
"""Passes over the examples: in six runs on custom tasks (docs/benchmarks/real-tasks.md) the phase ended after 2, 2, 3, 3, 3 and
8. The forecast hours assume the first figure; the range shown to a person comes from the other two."""
SHORT = 4
"""Tokens of a short answer, such as a word: the lower end of a forecast for questions that are not known."""
ROUNDS = 200
"""The forecast hours are for a training run of this many rounds."""


class EngineRates(Protocol):
    """How fast a model works here."""

    def generate(self, work: RoundWorkload) -> float:
        """Seconds to read the prompts and write the answers."""

    def update(self, context: float, answers: float) -> float:
        """Seconds of an update on `answers` answer tokens that follow `context` prompt tokens."""


@dataclass(frozen=True, slots=True)
class TrainingForecast:
    """Times in seconds. trial, examples: once, 0 where there is none. evaluation: at both temperatures, every `every` rounds
    and once before the first, 0 where there is none. answer: the assumed tokens of one answer. counts: None where the
    questions are not known; then least is a round's time with answers of a word or two, and round's with the longest."""

    trial: float
    examples: float
    round: float
    evaluation: float
    every: int
    answer: float
    counts: TokenCounts | None
    least: float = 0.0

    def whole(self, rounds: int = ROUNDS) -> float:
        """Seconds until that many rounds of practice are done."""
        looks = 1 + math.ceil(rounds / self.every) if self.every else 0
        return self.trial + self.examples + rounds * self.round + looks * self.evaluation

    @property
    def parts(self) -> str:
        """Every part on one line of a screen."""
        a_round = f"about {in_words(self.round)}"
        if self.least:
            a_round = f"{in_words(self.least)} to {in_words(self.round)}, by the length of the answers"
        texts = [f"a round of practice {a_round}"] if self.round else []
        texts += [f"an evaluation about {in_words(self.evaluation)}"] if self.evaluation else []
        return ", ".join([f"examples {self.examples_range}", *texts] if self.examples else texts)

    @property
    def examples_range(self) -> str:
        """How long the examples take, depending on how soon the rows set aside stop improving."""
        low, high = (self.examples * passes / PASSES for passes in (FEW_PASSES, MANY_PASSES))
        return f"{in_words(low)} to {in_words(high)}"

    @property
    def basis(self) -> str:
        """What was counted, and what was assumed."""
        counts = self.counts
        if counts is None:
            return f"assumed: questions of {PROMPT} tokens, answers of {SHORT} to {self.answer:.0f}"
        how = "" if counts.by_tokenizer else f", {counts.questions} estimated by their characters"
        alike = f", of which {counts.shared:.0f} are the same in all" if counts.shared else ""
        answers = f"answers of {self.answer:.0f}" + ("" if counts.known else ", as no right one is known")
        return f"questions of {counts.prompt:.0f} tokens{alike}, {answers}{how}"


def in_words(seconds: float) -> str:
    """Rounded to the precision that an estimate has."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 100 else format_duration(seconds)


def forecast_training(
    config: RunConfig, rates: EngineRates, rows: int, counts: TokenCounts | None, measured: float = 0.0
) -> TrainingForecast:
    """rows: completions per round. measured: seconds of a round that ran here, 0 for none."""
    if counts is None:
        return _forecast_range(config, rates, rows, measured)
    return _forecast(config, rates, rows, counts, measured)


def _forecast_range(config: RunConfig, rates: EngineRates, rows: int, measured: float) -> TrainingForecast:
    """Where the questions are not known, and so nothing is known of their answers: with the longest ones, and a round's time
    with short ones too. It was a tenth of the other with SmolLM2 on a table whose answers are a word."""
    limit = config.max_new_tokens
    longest, short = (
        _forecast(config, rates, rows, TokenCounts(0, PROMPT, 0.0, n, n, False, n, False, 0, 0, 0), measured)
        for n in (limit, min(SHORT, limit))
    )
    least = short.round if short.round < longest.round else 0.0
    return replace(longest, counts=None, least=least)


def _forecast(
    config: RunConfig, rates: EngineRates, rows: int, counts: TokenCounts, measured: float
) -> TrainingForecast:
    taught = config.model.partition(":")[0] in TAUGHT
    limit = counts.limit
    # Untrained models seldom end their answers; those trained on the form, or on examples, write answers like these.
    examples = 0.0
    follows = config.examples != "off" and counts.known and counts.of_pass > 0 and not taught
    answer, longest = (counts.answer, counts.longest) if follows else (limit, limit)
    workload = RoundWorkload(rows, answer, True, config.group_size, counts.prompt, counts.shared, longest)
    if follows or (config.examples == "only" and counts.known):
        examples = examples_seconds(rates, workload, counts)
    round_s = rates.generate(workload) + (rates.update(workload.groups * counts.prompt, rows * answer))
    evaluation = 0.0
    if config.eval_every and counts.held_out:
        evaluation = 2 * rates.generate(replace(workload, rows=counts.held_out, group_size=1))
    trial = 0.0
    if not taught:
        questions = min(max(QUESTIONS, len(config.tasks)), QUESTIONS_AT_MOST)
        if follows:
            questions = min(questions, CHUNK)  # with nothing right it stops there
        base = replace(workload, rows=questions * config.group_size, new_tokens=limit, most=limit)
        trial = min(MOST_TRIAL_S, rates.generate(base) + rates.generate(replace(base, rows=questions, group_size=1)))
    practice = config.examples != "only"
    return TrainingForecast(
        trial, examples, (measured or round_s) if practice else 0.0, evaluation, config.eval_every, answer, counts
    )


def examples_seconds(rates: EngineRates, asked: RoundWorkload, counts: TokenCounts) -> float:
    """Seconds of the phase: PASSES over the examples, and the evaluations on the rows set aside along the way."""
    steps = max(1, round(counts.of_pass / BATCH))
    step = step_seconds(rates, counts, counts.of_pass / steps)
    readings = PASSES * steps / steps_between_readings(steps)
    return PASSES * steps * step + readings * reading_seconds(rates, asked, counts)


def step_seconds(rates: EngineRates, counts: TokenCounts, rows: float) -> float:
    """Seconds of one update on `rows` examples; the shared start of their prompts is computed once."""
    return rates.update(counts.shared + rows * (counts.prompt - counts.shared), rows * counts.answer)


def reading_seconds(rates: EngineRates, asked: RoundWorkload, counts: TokenCounts) -> float:
    """Seconds for the rows set aside: logprobs of their right answers, and an answer each at temperature 0."""
    likelihood = step_seconds(rates, counts, counts.apart) / 3
    return likelihood + rates.generate(replace(asked, rows=counts.apart, group_size=1))
