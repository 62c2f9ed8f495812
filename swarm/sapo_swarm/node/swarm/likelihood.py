"""How likely foreign text is under a node's own policy."""

from __future__ import annotations

import itertools
import random
import time
from collections.abc import Sequence

from sapo_backends.base import TokenSequence
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.tasks.prompts import conversation
from sapo_swarm.types import AnswerFormat, Question

STRETCH = 16
"""Tokens in a row that are judged together: garbage is not diluted by the honest work around it."""
PROBED = 4
"""Foreign texts of a group whose log-probability is computed: chosen at random, so that none can count on slipping by."""


async def least_likely(
    host: EngineHost, question: Question, texts: Sequence[str], answer_format: AnswerFormat = "tags"
) -> tuple[float, float]:
    """The lowest mean log-probability a token of any STRETCH tokens in a row of up to PROBED foreign texts, under the
    node's policy, in nats (0 where all are empty), and the seconds that it cost the engine's thread."""
    probed = texts if len(texts) <= PROBED else random.sample(texts, PROBED)

    def measure() -> tuple[float, float]:
        began = time.perf_counter()
        rows = token_logprobs(host, question, probed, answer_format)
        return min((worst_stretch(row, STRETCH) for row in rows), default=0.0), time.perf_counter() - began

    return await host.call(measure)


def worst_stretch(values: Sequence[float], width: int) -> float:
    """The lowest mean of `width` values in a row; of all where there are fewer. values: at least one."""
    sums = [0.0, *itertools.accumulate(values)]
    width = min(width, len(values))
    return min((sums[end] - sums[end - width]) / width for end in range(width, len(sums)))


def token_logprobs(
    host: EngineHost, question: Question, texts: Sequence[str], answer_format: AnswerFormat = "tags"
) -> list[list[float]]:
    """Log-probabilities of each text's tokens under the node's policy, in nats. Left out are empty texts, and those that do not
    fit into the model's context, which are not trained on either.

    Call in the engine's thread.
    """
    engine = host.engine
    prompt = tuple(engine.tokenizer.encode_chat(conversation(question, answer_format)))
    room = engine.info.context_length - len(prompt)
    completions = [ids for text in texts if 0 < len(ids := tuple(engine.tokenizer.encode_text(text))) <= room]
    return engine.logprobs([TokenSequence(prompt, ids) for ids in completions]) if completions else []
