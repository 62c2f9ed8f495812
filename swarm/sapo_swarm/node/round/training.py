"""The update of a round: I local and J external groups become one batch and one policy-gradient step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from sapo_backends.base import TokenSequence, TrainSample, UpdateStats
from sapo_swarm.algorithms.base import rate_share
from sapo_swarm.node.round.context import RoundContext, RoundWork, UpdateCall
from sapo_swarm.node.round.plan import round_seed
from sapo_swarm.sapo.assemble import assemble, with_advantages
from sapo_swarm.sapo.novelty import observe
from sapo_swarm.sapo.replay import sample_replay
from sapo_swarm.tasks.prompts import conversation
from sapo_swarm.types import Group

_NAN = float("nan")
NO_UPDATE = UpdateStats(_NAN, _NAN, 0, _NAN, _NAN, _NAN, _NAN, _NAN, 0, 0, 0, 0, 0.0)
"""What an engine without anything to train reports."""


async def update(context: RoundContext, work: RoundWork) -> None:
    """Assemble I own and J external groups into a batch and take the policy-gradient step.

    A node that only generates (method none) shares its groups and trains on nothing.
    """
    if work.stats is not None:
        return
    if context.host.engine.info.trainable == 0:
        work.stats = NO_UPDATE
        return
    assert work.own is not None
    context.begin(work, "update", "Updating the model")
    rng = np.random.default_rng(round_seed(context.node_key, context.config.seed, work.round, "assemble"))
    with work.timed("update"):
        batch = assemble(
            work.own,
            work.external or (),
            context.config.local_groups,
            context.config.external_groups,
            rng,
            context.algorithm.advantages,
            context.config.sampling,
            context.per_source,
            seen=context.seen,
        )
        samples: list[TrainSample] = []
        for group in batch.groups:
            found = _samples(context, work, group)
            correct = context.correction if group.source == "external" else None
            samples += found if correct is None else await correct(group, found)
        replayed = _replayed(context, work, rng)
        for group in replayed:
            samples += _samples(context, work, group, positive_only=True)
        if context.policy.epochs * context.policy.minibatches > 1:
            samples = await _with_old_logprobs(context, samples)
        rate = context.policy.learning_rate * rate_share(context.config, work.round)
        seed = round_seed(context.node_key, context.config.seed, work.round, "update")
        work.call = call = UpdateCall(samples, replace(context.policy, learning_rate=rate), seed)
        work.stats = await context.host.call(
            context.host.engine.update,
            call.batch,
            call.policy,
            call.seed,
            context.host.cancel,
            context.from_thread(lambda fraction: (fraction, "Updating the model")),
        )
    work.trained, work.replayed = list(batch.groups), len(replayed)
    observe(context.seen, (group for group in batch.groups if any(group.advantages)))
    context.end()


def _replayed(context: RoundContext, work: RoundWork, rng: np.random.Generator) -> list[Group]:
    """Local groups of earlier rounds that are trained on again, with advantages."""
    config = context.config
    past = sample_replay(context.memory.replay, work.round, config.replay_groups, config.replay_half_life, rng)
    return [with_advantages(group, context.algorithm.advantages) for group in past]


def _samples(context: RoundContext, work: RoundWork, group: Group, positive_only: bool = False) -> list[TrainSample]:
    """Rollouts of this round keep the ids they were sampled with; other text is encoded without special tokens.

    Texts that do not fit into this model's context are left out, and completions without a positive advantage where only
    these are learned from: of replayed groups, and of external ones (docs/decisions/0013-default-strategy.md).
    """
    tokenizer, longest = context.host.engine.tokenizer, context.host.engine.info.context_length
    positive_only |= group.source == "external" and context.config.external_advantages == "positive"
    assert work.questions is not None
    assert work.completions is not None
    sampled_with: list[tuple[float, ...] | None] = [None] * len(group.rollouts)
    i = next((i for i, q in enumerate(work.questions) if q.ref == group.question.ref), None)
    if group.source == "own" and i is not None:
        prompt, completions = work.prompts[i], [c.tokens for c in work.completions[i]]
        if context.host.engine.separate_generator:  # kept here: the engine forgets them when it is loaded again
            sampled_with = [c.logprobs for c in work.completions[i]]
    else:
        prompt = tokenizer.encode_chat(conversation(group.question))
        end = tokenizer.eos_ids[:1]
        completions = [(*tokenizer.encode_text(r.text), *(end if r.finish == "stop" else ())) for r in group.rollouts]
    return [
        TrainSample(tuple(prompt), tuple(ids), advantage, group.source == "external", behaviour_logprobs=behaviour)
        for ids, advantage, behaviour in zip(completions, group.advantages, sampled_with, strict=True)
        if ids and len(prompt) + len(ids) <= longest and (advantage > 0 or not positive_only)
    ]


async def _with_old_logprobs(context: RoundContext, samples: Sequence[TrainSample]) -> list[TrainSample]:
    """Old log-probabilities where a correction has not set them."""
    missing = [i for i, s in enumerate(samples) if s.old_logprobs is None]
    sequences = [TokenSequence(samples[i].prompt, samples[i].completion) for i in missing]
    found = await context.host.call(context.host.engine.logprobs, sequences, context.policy.temperature)
    filled = list(samples)
    for i, old in zip(missing, found, strict=True):
        filled[i] = replace(samples[i], old_logprobs=tuple(old))
    return filled
