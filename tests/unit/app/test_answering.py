"""A person as a generator: what the desk asks."""

from __future__ import annotations

import pytest

from sapo_desktop.commands.swarms.contribute import AnswerSession
from sapo_desktop.errors import AppError
from sapo_swarm.protocol.identity import Identity
from sapo_swarm.scoring.scorer import Scorer

ME = Identity(bytes(32))


async def test_a_person_is_not_asked_what_every_node_would_refuse() -> None:
    """Two of a hundred questions of basic_arithmetic are held-out ones: the attempts would be dropped unread."""
    async with Scorer() as scorer:

        def desk(*excluded: str) -> AnswerSession:
            return AnswerSession(scorer, ME, "swarm", ["basic_arithmetic"], "starter", frozenset(excluded), session=7)

        first = desk()
        asked = [await first.question() for _ in range(2)]
        assert await desk(asked[0].prompt_sha256).question() == asked[1]


class _Everything(frozenset[str]):
    def __contains__(self, _prompt: object) -> bool:
        return True


async def test_a_person_hears_in_a_sentence_that_no_question_is_left() -> None:
    async with Scorer() as scorer:
        desk = AnswerSession(scorer, ME, "swarm", ["basic_arithmetic"], "starter", _Everything(), session=7)
        with pytest.raises(AppError, match=r"No question could be made from basic_arithmetic\. Choose other tasks\."):
            await desk.question()
