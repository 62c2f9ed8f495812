"""What the untrained model answered to the held-out questions, sampled (temperature 1) and greedily (0): base.json in the
model's folder, to be paired with later answers.

Other tasks, another preset or more items bring questions that it was never asked; and answers that were given under other
conditions count as none. What is missing is asked of the base when the model is opened, between the loading of the base and the
restoring of the trained weights: no other moment has the base in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import msgspec

from sapo_backends.base import EngineInfo
from sapo_swarm.config import RunConfig
from sapo_swarm.evaluation import ItemResult
from sapo_swarm.types import UNREADABLE, TaskRef
from sapo_swarm.whole_file import write_whole


class _Account(msgspec.Struct, frozen=True):
    """base.json. results: answers at temperature 1; greedy: at 0, none in files of versions that did not ask for them.
    max_new_tokens: that an answer could have, by_task: to the questions of a task; answers under another limit are not
    comparable. conditions: see conditions(); none in files of versions that did not note them."""

    max_new_tokens: int
    results: list[ItemResult]
    by_task: dict[str, int] = {}
    conditions: dict[str, str] = {}
    greedy: list[ItemResult] = []


def conditions(config: RunConfig, engine: EngineInfo) -> dict[str, str]:
    """What decides an answer and its verdict beside the weights, the question and the token limit. A difference between answers
    under different conditions is not what was learned."""
    return {
        "thinking": "on" if config.thinking == "on" else "off",
        "answer_format": config.answer_format,
        "judge": config.judge_model,
        "engine": engine.backend,
        "precision": engine.precision,
    }


class BaseAnswers:
    """path: of base.json; limit: task -> the most tokens that an answer may have now; conditions: of now."""

    def __init__(self, path: Path, limit: Callable[[str], int], conditions: Mapping[str, str]) -> None:
        self._path, self._limit, self._conditions = path, limit, dict(conditions)

    def known(self, temperature: float = 1.0) -> dict[TaskRef, ItemResult]:
        """By question, at temperature 1 or 0; without those that were asked under another token limit. None under other or
        unknown conditions, and where the file is missing or was cut off by a full disk."""
        try:
            account = msgspec.json.decode(self._path.read_bytes(), type=_Account)
        except (OSError, *UNREADABLE):  # a list: by versions that did not even note the limit
            return {}
        if account.conditions != self._conditions:
            return {}
        results = account.results if temperature else account.greedy
        was = {task: account.by_task.get(task, account.max_new_tokens) for task in {r.ref.dataset for r in results}}
        return {r.ref: r for r in results if was[r.ref.dataset] == self._limit(r.ref.dataset)}

    def add(self, results: Iterable[ItemResult], greedy: Iterable[ItemResult] = ()) -> None:
        """Keep more of them, answered at temperature 1 and at 0; what is known of other questions stays. Raises OSError."""
        sampled = self.known(1.0) | {result.ref: result for result in results}
        at_0 = self.known(0.0) | {result.ref: result for result in greedy}
        by_task = {task: self._limit(task) for task in {ref.dataset for ref in (*sampled, *at_0)}}
        longest = max(by_task.values(), default=0)
        account = _Account(longest, list(sampled.values()), by_task, self._conditions, list(at_0.values()))
        write_whole(self._path, msgspec.json.encode(account))
