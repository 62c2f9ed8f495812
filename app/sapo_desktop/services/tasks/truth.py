"""The answers that tasks themselves give: regenerated here by the limited scorer worker, when somebody asks."""

from __future__ import annotations

import asyncio

from sapo_swarm.scoring.process import ScorerUnavailable
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import Question

NONE = "not known: the task gives no single answer, or makes another question of these coordinates in this version"


class Truths:
    """Asks one worker, which is started with the first question (about a second) and lives until `close`."""

    def __init__(self) -> None:
        self._scorer: Scorer | None = None
        self._known: dict[str, str] = {}
        self._one = asyncio.Lock()

    async def of(self, question: Question) -> str:
        """A right answer, or a sentence why there is none to show."""
        label = f"{question.ref.generator} {question.ref.label}"
        async with self._one:
            if label not in self._known:
                try:
                    self._known[label] = await self._ask(question)
                except ScorerUnavailable as error:
                    return f"not known: {error}"
        return self._known[label]

    async def _ask(self, question: Question) -> str:
        if self._scorer is None:
            self._scorer = await Scorer().__aenter__()
        return await self._scorer.truth(question) or NONE

    async def close(self) -> None:
        """End the worker."""
        scorer, self._scorer = self._scorer, None
        if scorer is not None:
            await scorer.__aexit__(None, None, None)
