"""One text against one regenerated entry. Runs in the scorer worker; never on an entry that came off the wire."""

from __future__ import annotations

import decimal
import math
from collections.abc import Callable, Mapping
from typing import Any

from sapo_swarm.scoring.answer_format import after_reasoning
from sapo_swarm.scoring.declared.extract import extract
from sapo_swarm.scoring.declared.judge import declared
from sapo_swarm.scoring.messages import cap
from sapo_swarm.scoring.verifiers import GUARDS, VERIFIERS, names_no_number
from sapo_swarm.tasks.exact import EXACT
from sapo_swarm.tasks.extra import LIBRARY_PRESET
from sapo_swarm.tasks.own.folder import OwnTask
from sapo_swarm.tasks.own.verifiers import Environment
from sapo_swarm.types import STRICT, RewardRule

FATAL = (MemoryError,)
"""Not a verdict: the group fails and its source is struck."""


class DeadlineExceeded(BaseException):
    """Raised by the alarm inside a scorer; no `except Exception` of a scorer can swallow it."""


def raw_score(answer: str, name: str, dataset: Any, entry: dict[str, Any], preset: str = "") -> float:
    """What the dataset's verifier (or ours) says; may raise anything that reasoning_gym raises.

    Where the library gives full marks to more than a right answer, only the right one has them, except in preset `library`.
    """
    own = VERIFIERS.get(name)
    if own is not None:
        return own(answer, entry)
    guard = GUARDS.get(name)
    if (guard is not None and not guard(answer, entry)) or names_no_number(answer, entry):
        return 0.0
    found = float(dataset.score_answer(answer, entry))
    exact = EXACT.get(name)
    if exact is not None and found >= 1.0 and preset != LIBRARY_PRESET and not exact(answer, entry):
        return 0.0
    return found


def score_text(
    text: str, name: str, dataset: Any, entry: dict[str, Any], rule: RewardRule = STRICT, preset: str = ""
) -> tuple[float, bool]:
    """(reward in [0, 1], well formed); preset: the reference's. Without partial credit the reward is 1.0 or 0.0.

    Well formed: the text ends with a non-empty answer in the rule's format, behind its reasoning, and only such a text earns
    anything; or it holds an answer where the person's own task looks for one elsewhere. An exception in a verifier is a
    verdict of 0; raises MemoryError and DeadlineExceeded only.
    """
    text = after_reasoning(cap(text), rule.in_reasoning)
    own = dataset if isinstance(dataset, OwnTask) else None
    answer = extract("tags" if own is None else own.spec.extract, text, rule.answer_format)
    if not answer:
        return 0.0, False
    if own is None:
        return _judged(rule, lambda: raw_score(answer, name, dataset, entry, preset))
    return _judged(rule, lambda: declared(own, entry["row"], answer, text, answer_format=rule.answer_format))


def score_episode(
    task: OwnTask, row: Mapping[str, str], text: str, environment: float, rule: RewardRule
) -> tuple[float, bool]:
    """(reward, well formed) of an episode: the environment's verdict, and the other verifiers on the model's last turn.

    Where the environment is the only one, the last turn may have any form. Raises MemoryError, DeadlineExceeded.
    """
    text = after_reasoning(cap(text), rule.in_reasoning)
    alone = all(isinstance(part, Environment) for part in task.spec.verifier)
    answer = text if alone else extract(task.spec.extract, text, rule.answer_format) or ""
    if not alone and not answer:
        return 0.0, False
    return _judged(rule, lambda: declared(task, row, answer, text, environment, rule.answer_format))


def _judged(rule: RewardRule, verdict: Callable[[], float]) -> tuple[float, bool]:
    """(reward, well formed) of a text that holds an answer. Raises MemoryError, DeadlineExceeded."""
    try:
        raw = verdict()
    except (DeadlineExceeded, *FATAL):
        raise
    except BaseException:  # a scorer may raise anything, SystemExit included: junk in the answer, not a crash here
        return 0.0, True
    if not math.isfinite(raw):
        return 0.0, True
    return min(max(raw, 0.0), 1.0) if rule.partial else float(raw == 1.0), True


def fresh_context() -> decimal.Context:
    """reasoning_gym's decimal_arithmetic sets the global precision: each group starts from the default again."""
    return decimal.Context(prec=28)
