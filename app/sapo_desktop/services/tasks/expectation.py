"""What to expect of training a model on a task, from a few answers of the untrained model on this machine."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from sapo_backends.base import Completion, Sampling
from sapo_desktop.services.machine import engines
from sapo_swarm.algorithms.base import TINY, local_groups
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import wilson
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.evaluation.evaluate import sampled
from sapo_swarm.node.round.cut_off import CUT_OFF
from sapo_swarm.node.round.turns import model_turns, prompt_ids, verdicts
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.types import Question, TaskRef

PROMPTS, PROMPTS_OF_LARGE = 64, 16
"""Training questions that a tiny model answers, and any other, with a whole group each: two answers do not tell whether a group
is mixed."""
LOOKS = 4
"""At the progress."""
FIRST_LOOK = 25
"""Rounds to the first held-out evaluation of a run."""
UPDATE_SHARE = 1.0
"""Seconds of an update for a second of generation, about: measured on starter."""
TOO_EASY, TOO_HARD = 0.9, 0.01
Show = Callable[[float], None]


@dataclass(frozen=True)
class Expectation:
    """What `answers` answers to `prompts` questions say.

    rate: share of right ones, with its 95 % interval. mixed: share of the groups, of `group_size`, with both right and wrong
    answers. truncated, formed: shares that were cut off, that held an answer. round_s: seconds that a round should take here.
    sample: an answer as it was written.
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


def chance_of_mixed(rate: float, size: int) -> float:
    """The chance that a group of independent answers holds right and wrong ones: 1 - (1-p)^G - p^G."""
    return 1.0 - (1.0 - rate) ** size - rate**size


async def measure(task: OwnTask, config: RunConfig, scorer: Scorer, show: Show = lambda _: None) -> Expectation | None:
    """Ask the untrained model training questions. None where no question fits into its context. show: is given the part that is
    done.

    Needs the task in the library in force. Raises BackendError, ScorerUnavailable.
    """
    host = EngineHost()
    try:
        await host.load(lambda: engines.builder(config)(lambda *_: None))
        show(0.2)
        scorer.in_reasoning = host.engine.tokenizer.opens_reasoning
        return await _ask(task, config, scorer, host, show)
    finally:
        scorer.in_reasoning = False
        await host.close()


async def _ask(task: OwnTask, config: RunConfig, scorer: Scorer, host: EngineHost, show: Show) -> Expectation | None:
    engine, info = host.engine, host.engine.info
    places = _spread(len(task.train), PROMPTS if info.parameters < TINY else PROMPTS_OF_LARGE)
    refs = [TaskRef(task.spec.name, "own", number, 0, task.generator) for number in places]
    found = [q for q in await scorer.questions(refs) if isinstance(q, Question)]
    prompts = [(q, prompt_ids(engine.tokenizer, scorer, q)) for q in found]
    new = new_tokens(config, task.spec.name)
    asked = [q for q, ids in prompts if len(ids) + new <= info.context_length]
    if not asked:
        return None
    samples, at_once = config.group_size, -(-len(asked) // LOOKS)
    began = time.perf_counter()
    completions: list[list[Completion]] = []
    sampling = Sampling(config.temperature, 1.0, new)
    for first in range(0, len(asked), at_once):
        completions += await sampled(host, scorer, asked[first : first + at_once], sampling, samples, first)
        show(0.2 + 0.7 * len(completions) / len(asked))
    seconds = time.perf_counter() - began
    scored = [verdict for verdict, *_ in await verdicts(engine.tokenizer, scorer, asked, completions)]
    rates = [sum(r == 1.0 for r in s.rewards) / samples for s in scored]
    answers = len(rates) * samples
    low, high = wilson(sum(rates), len(rates))
    round_answers = local_groups(config, info.parameters) * config.group_size
    return Expectation(
        model=config.model,
        prompts=len(rates),
        answers=answers,
        rate=sum(rates) / len(rates),
        low=low,
        high=high,
        mixed=sum(0.0 < rate < 1.0 for rate in rates) / len(rates),
        group_size=config.group_size,
        truncated=sum(c.finish == "length" for group in completions for c in group) / answers,
        formed=sum(sum(s.well_formed) for s in scored) / answers,
        round_s=seconds / answers * round_answers * (1 + UPDATE_SHARE),
        sample="\n".join(model_turns(engine.tokenizer, completions[0][0])),
    )


def _spread(rows: int, most: int) -> list[int]:
    """Up to so many row numbers, evenly over the rows."""
    count = min(most, rows)
    return [number * rows // count for number in range(count)]


def sentences(found: Expectation) -> list[str]:
    """What a friend would say about the figures."""
    lines = [
        f"{found.model} answers {100 * found.rate:.1f} % of {found.prompts} training questions right before training "
        f"(95 %: {100 * found.low:.1f} to {100 * found.high:.1f}; {found.answers} answers).",
        f"Groups of {found.group_size} with unequal rewards: {100 * found.mixed:.0f} % "
        f"(from the mean alone: {100 * chance_of_mixed(found.rate, found.group_size):.0f} %).",
    ]
    minutes = FIRST_LOOK * found.round_s / 60
    lines.append(
        f"A round takes about {found.round_s:.1f} s here; the first held-out comparison, after {FIRST_LOOK} rounds, "
        f"comes in about {minutes:.0f} minute{'s' if round(minutes) != 1 else ''}."
        if minutes >= 1
        else f"A round takes about {found.round_s:.1f} s here; the first held-out comparison comes within a minute."
    )
    return [*lines, _verdict(found)]


def _verdict(found: Expectation) -> str:
    if found.formed < 0.2:
        return (
            f"Only {100 * found.formed:.0f} % of the answers hold an answer at all (for example: {_shown(found.sample)}). "
            "Say in the prompt how to answer, or choose another way to read it (Read from; --extract)."
        )
    if found.truncated > CUT_OFF:
        return f"{100 * found.truncated:.0f} % of the answers are cut off: raise max_new_tokens."
    if found.rate < TOO_HARD and found.mixed < 0.05:
        return (
            "Too hard for this model: where nothing is ever right, there is nothing to learn from. "
            "Choose a larger model, easier rows, or partial credit (--partial-credit)."
        )
    if found.rate > TOO_EASY:
        return "Too easy: almost everything is right already. Choose harder rows or a smaller model."
    if found.mixed >= 0.3:
        return "Well suited: success is neither rare nor certain. A change is often visible after 25 to 100 rounds."
    return "Possible, but slow: few groups teach anything. Easier rows beside the hard ones help. Allow some hundred rounds."


def _shown(text: str) -> str:
    plain = " ".join(text.split())
    return repr(plain[:80] + ("…" if len(plain) > 80 else ""))
