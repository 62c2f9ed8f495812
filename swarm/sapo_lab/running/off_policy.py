"""Corrections for external groups: another policy generated them, and the plain update treats them as local ones.

sequence   truncated importance weight pi_receiver / pi_sender, one for all tokens of a completion: the geometric mean of
           their ratios (as arXiv 2507.18071 and, for agents that share rollouts, arXiv 2603.02604)
clip       old log-probability = the sender's: ratio and clip measure the distance to the policy that generated the text
proximity  weight min(1, exp(mean log-probability of the text - of local text)): external text counts the less the less
           the receiver would write it (the idea of F-TIS, arXiv 2605.22537); needs nothing from the sender

The first two need log-probabilities of the sender, which the swarm's protocol does not carry: the lab measures what
carrying them would be worth.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sapo_backends.base import Completion, TokenSequence, TrainSample
from sapo_lab.running.pool import Shared, key_of
from sapo_lab.schema import OffPolicy
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.round.context import Correction
from sapo_swarm.types import Group

LogProbs = Sequence[float]


def correction(
    method: OffPolicy,
    host: EngineHost,
    offered: Mapping[str, Shared],
    local: Sequence[Sequence[Completion]],
    temperature: float,
) -> Correction | None:
    """offered: the pool by key. local: the completions that this node generated in the round."""
    if method == "none":
        return None

    async def correct(group: Group, samples: list[TrainSample]) -> list[TrainSample]:
        if method == "proximity":
            return proximity(samples, await _own(host, samples, temperature), mean_logprob(local))
        sender = _aligned(group, samples, offered[key_of(group)].logprobs)
        if method == "clip":
            return [replace(s, old_logprobs=tuple(b)) if b else s for s, b in zip(samples, sender, strict=True)]
        return sequence_level(samples, await _own(host, samples, temperature), sender)

    return correct


def sequence_level(
    samples: Sequence[TrainSample], own: Sequence[LogProbs], sender: Sequence[LogProbs]
) -> list[TrainSample]:
    """Behaviour log-probabilities that give every token of a completion its geometric-mean ratio."""
    out: list[TrainSample] = []
    for sample, old, behaviour in zip(samples, own, sender, strict=True):
        if not behaviour:
            out.append(sample)
            continue
        gap = sum(o - b for o, b in zip(old, behaviour, strict=True)) / len(old)
        out.append(replace(sample, old_logprobs=tuple(old), behaviour_logprobs=tuple(o - gap for o in old)))
    return out


def proximity(samples: Sequence[TrainSample], own: Sequence[LogProbs], usual: float) -> list[TrainSample]:
    """Advantages times min(1, exp(mean log-probability - usual)); usual: mean log-probability a token of local text."""
    weights = [math.exp(min(0.0, sum(row) / len(row) - usual)) for row in own]
    return [replace(s, advantage=s.advantage * w) for s, w in zip(samples, weights, strict=True)]


def mean_logprob(completions: Sequence[Sequence[Completion]]) -> float:
    """Mean log-probability a token; 0 without tokens."""
    values = [value for group in completions for completion in group for value in completion.logprobs]
    return sum(values) / len(values) if values else 0.0


async def _own(host: EngineHost, samples: Sequence[TrainSample], temperature: float) -> list[list[float]]:
    sequences = [TokenSequence(s.prompt, s.completion) for s in samples]
    return await host.call(host.engine.logprobs, sequences, temperature)


def _aligned(group: Group, samples: Sequence[TrainSample], logprobs: Sequence[LogProbs]) -> list[LogProbs]:
    """The sender's log-probabilities of each sample's tokens; empty where there are none (a tampered text).

    Text that encodes to other tokens than were generated gets the completion's mean for each token.
    """
    if not logprobs or len(samples) != len(group.rollouts):
        return [() for _ in samples]
    out: list[LogProbs] = []
    for sample, row in zip(samples, logprobs, strict=True):
        same = len(row) == len(sample.completion)
        out.append(row if same or not row else [sum(row) / len(row)] * len(sample.completion))
    return out
