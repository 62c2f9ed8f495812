"""What the untrained model answered to the held-out questions: base.json in the model's folder, to be paired with later answers.

Other tasks, another preset or more items bring questions that it was never asked. They are asked of the base when the model is
opened, between the loading of the base and the restoring of the trained weights: no other moment has the base in memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from sapo_swarm.evaluation import ItemResult
from sapo_swarm.node.storage.files import write_whole
from sapo_swarm.types import UNREADABLE, TaskRef


class _Account(msgspec.Struct, frozen=True):
    """base.json. max_new_tokens: that an answer could have, by_task: to the questions of a task; answers under another limit
    are not comparable."""

    max_new_tokens: int
    results: list[ItemResult]
    by_task: dict[str, int] = {}


class BaseAnswers:
    """path: of base.json; limit: task -> the most tokens that an answer may have now."""

    def __init__(self, path: Path, limit: Callable[[str], int]) -> None:
        self._path, self._limit = path, limit

    def known(self) -> dict[TaskRef, ItemResult]:
        """By question; without those that were asked under another token limit. None where the file is missing or was cut off
        by a full disk."""
        try:
            found = msgspec.json.decode(self._path.read_bytes(), type=_Account | list[ItemResult])
        except (OSError, *UNREADABLE):
            return {}
        if isinstance(found, list):  # by versions that did not note the limit
            return {r.ref: r for r in found}
        was = {task: found.by_task.get(task, found.max_new_tokens) for task in {r.ref.dataset for r in found.results}}
        return {r.ref: r for r in found.results if was[r.ref.dataset] == self._limit(r.ref.dataset)}

    def add(self, results: Iterable[ItemResult]) -> None:
        """Keep more of them; what is known of other questions stays. Raises OSError."""
        whole = self.known() | {result.ref: result for result in results}
        by_task = {task: self._limit(task) for task in {ref.dataset for ref in whole}}
        account = _Account(max(by_task.values(), default=0), list(whole.values()), by_task)
        write_whole(self._path, msgspec.json.encode(account))
