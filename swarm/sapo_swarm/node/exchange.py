"""Where a round meets the swarm: a node in one plugs its exchange in here. A node alone has none."""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence
from typing import Protocol

import msgspec

from sapo_backends.base import TokenSequence
from sapo_swarm.events import SwarmUpdated
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.scoring.prompts import build_conversation
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.types import AnswerFormat, Group, Question


class ReceivedGroups(msgspec.Struct, frozen=True):
    """Verified, locally scored groups of other nodes; bytes on the wire since the last round."""

    groups: tuple[Group, ...] = ()
    bytes_sent: int = 0
    bytes_received: int = 0


class GroupExchange(Protocol):
    """Shares local groups and fetches external ones. Never raises for a network fault: it returns what there is."""

    def attach(self, host: EngineThread, scorer: Scorer, excluded: frozenset[str]) -> None:
        """Called once the engine is loaded: received groups are judged with these."""
        ...

    def prompts_to_sample(self, local: int, external: int) -> int:
        """Prompts to sample for the next batch of I = local and J = external groups, given what the pool holds."""
        ...

    def take(self, taking: bool) -> None:
        """Whether external groups are wanted at all; if not, the pool is emptied. Local ones are shared either way."""
        ...

    async def exchange(self, round_number: int, local: Sequence[Group], wanted: int) -> ReceivedGroups:
        """Hand over this round's local groups; returns what the pool holds for the batch."""
        ...

    def used(self, groups: Sequence[Group], batch: int) -> SwarmUpdated | None:
        """These external groups went into a batch of this size; returns the swarm's news, if there is any."""
        ...

    async def close(self) -> None:
        """End the exchange."""
        ...


# How likely external text is under a node's own policy.

STRETCH = 16
"""Consecutive tokens that are judged together: garbage is not diluted by the honest text around it."""


async def least_likely(
    host: EngineThread, question: Question, texts: Sequence[str], answer_format: AnswerFormat = "tags"
) -> tuple[float, float]:
    """The lowest mean log-probability per token over any STRETCH consecutive tokens of external texts, under the node's policy,
    in nats (0 if all are empty); and the seconds it took in the engine's thread."""

    def measure() -> tuple[float, float]:
        began = time.perf_counter()
        rows = token_logprobs(host, question, texts, answer_format)
        return min((worst_stretch(row, STRETCH) for row in rows), default=0.0), time.perf_counter() - began

    return await host.call(measure)


def worst_stretch(values: Sequence[float], width: int) -> float:
    """The lowest mean of `width` consecutive values; of all values if there are fewer. values: at least one."""
    sums = [0.0, *itertools.accumulate(values)]
    width = min(width, len(values))
    return min((sums[end] - sums[end - width]) / width for end in range(width, len(sums)))


def token_logprobs(
    host: EngineThread, question: Question, texts: Sequence[str], answer_format: AnswerFormat = "tags"
) -> list[list[float]]:
    """Log-probabilities of each text's tokens under the node's policy, in nats. Empty texts are left out, as are those that
    do not fit into the model's context, which are not trained on either.

    Call in the engine's thread.
    """
    engine = host.engine
    prompt = tuple(engine.tokenizer.encode_chat(build_conversation(question, answer_format)))
    room = engine.info.context_length - len(prompt)
    completions = [ids for text in texts if 0 < len(ids := tuple(engine.tokenizer.encode_text(text))) <= room]
    return engine.logprobs([TokenSequence(prompt, ids) for ids in completions]) if completions else []
