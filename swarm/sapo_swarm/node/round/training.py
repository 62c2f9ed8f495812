"""The update of a round, and what the finished round leaves behind: its groups and its figures, as events."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from sapo_backends.base import Cancelled, TokenSequence, TrainSample, UpdateStats
from sapo_swarm.algorithms.base import AFTER_EXAMPLES, rate_share
from sapo_swarm.events import GroupRecorded, RoundFinished
from sapo_swarm.node.round.context import RoundContext, RoundWork, UpdateCall
from sapo_swarm.node.round.phases import round_seed
from sapo_swarm.node.round.turns import encoded, prompt_ids
from sapo_swarm.sapo.training_batch import assemble, observe_trained, sample_replay, with_advantages
from sapo_swarm.types import Group, finite

_NAN = float("nan")
NO_UPDATE = UpdateStats(_NAN, _NAN, 0, _NAN, _NAN, _NAN, _NAN, _NAN, 0, 0, 0.0)
"""What an engine without anything to train reports."""


async def update(context: RoundContext, work: RoundWork) -> None:
    """Assemble I local and J external groups into a batch and take the policy-gradient step.

    A node that only generates (method none) shares its groups and trains on nothing.
    """
    if work.stats is not None:
        return
    if context.host.engine.info.trainable == 0:
        work.stats = NO_UPDATE
        return
    assert work.local is not None
    context.begin(work, "update", "Updating the model")
    rng = np.random.default_rng(round_seed(context.node_key, context.config.seed, work.round, "assemble"))
    with work.timed("update"):
        batch = assemble(
            work.local,
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
        for group in batch:
            samples += _samples(context, work, group)
        replayed = _replayed(context, work, rng)
        for group in replayed:
            samples += _samples(context, work, group, positive_only=True)
        samples += work.stage_samples
        if context.policy.epochs * context.policy.minibatches > 1:
            samples = await _with_old_logprobs(context, samples)
        rate = context.policy.learning_rate * rate_share(context.config, work.round - context.examples_rounds)
        if context.examples_rounds and not context.config.learning_rate:
            rate *= AFTER_EXAMPLES
        seed = round_seed(context.node_key, context.config.seed, work.round, "update")
        work.call = call = UpdateCall(samples, replace(context.policy, learning_rate=rate), seed)
        tell = context.from_thread(lambda fraction: (fraction, "Updating the model"))
        try:
            work.stats = await context.host.call(
                context.host.engine.update, call.batch, call.policy, call.seed, context.host.cancel, tell
            )
        except Cancelled:
            work.call = None  # before its first step: nothing is torn
            raise
    work.trained, work.replayed = batch, len(replayed)
    if context.config.sampling == "novelty":  # who asks for nothing of it remembers nothing
        observe_trained(context.seen, (group for group in batch if any(group.advantages)))
    context.end()


def _replayed(context: RoundContext, work: RoundWork, rng: np.random.Generator) -> list[Group]:
    """Local groups of earlier rounds that are trained on again, with advantages."""
    config = context.config
    if not config.replay_groups:
        return []
    past = sample_replay(context.memory.replay, work.round, config.replay_groups, config.replay_half_life, rng)
    return [with_advantages(group, context.algorithm.advantages) for group in past]


def _samples(context: RoundContext, work: RoundWork, group: Group, positive_only: bool = False) -> list[TrainSample]:
    """Rollouts of this round keep the ids they were sampled with; other text is encoded without special tokens.

    Texts that do not fit into this model's context are left out, and completions without a positive advantage where only
    these are learned from: of replayed groups, and of external ones (docs/decisions/0013-default-strategy.md).
    """
    tokenizer, longest = context.host.engine.tokenizer, context.host.engine.info.context_length
    positive_only |= group.external and context.config.external_advantages == "positive"
    assert work.questions is not None
    assert work.completions is not None
    sampled_with: list[tuple[float, ...] | None] = [None] * len(group.rollouts)
    i = next((i for i, q in enumerate(work.questions) if q.ref == group.question.ref), None)
    if not group.external and i is not None:
        prompt, completions = work.prompts[i], [(c.tokens, c.loss_mask) for c in work.completions[i]]
        if context.host.engine.separate_generator:  # kept here: the engine forgets them when it is loaded again
            sampled_with = [c.logprobs for c in work.completions[i]]
    else:
        prompt = prompt_ids(tokenizer, context.scorer, group.question)
        completions = [encoded(tokenizer, rollout) for rollout in group.rollouts]
    return [
        TrainSample(tuple(prompt), tuple(ids), advantage, group.external, behaviour_logprobs=behaviour, loss_mask=mask)
        for (ids, mask), advantage, behaviour in zip(completions, group.advantages, sampled_with, strict=True)
        if ids and len(prompt) + len(ids) <= longest and (advantage > 0 or not positive_only)
    ]


async def _with_old_logprobs(context: RoundContext, samples: Sequence[TrainSample]) -> list[TrainSample]:
    sequences = [TokenSequence(s.prompt, s.completion) for s in samples]
    found = await context.host.call(context.host.engine.logprobs, sequences, context.policy.temperature)
    return [replace(s, old_logprobs=tuple(old)) for s, old in zip(samples, found, strict=True)]


RoundEvents = list[GroupRecorded | RoundFinished]


def record(work: RoundWork, external_wanted: int, solved: set[str]) -> RoundEvents:
    """The events that the finished round leaves; adds tasks solved for the first time to `solved`."""
    assert work.local is not None
    assert work.stats is not None
    assert work.completions is not None
    used = {g.question.ref: g for g in work.trained if not g.external}
    events: RoundEvents = []
    for group in [*work.local, *(g for g in work.trained if g.external)]:
        first = not group.external and group.solved and group.question.ref.dataset not in solved
        if first:
            solved.add(group.question.ref.dataset)
        kept = group if group.external else used.get(group.question.ref, group)
        events.append(GroupRecorded(round=work.round, group=kept, trained=any(kept.advantages), first_solved=first))
    events += [GroupRecorded(round=work.round, group=g, trained=any(g.advantages)) for g in work.stage_groups]
    stats, flat = work.stats, [c for group in work.completions for c in group]
    counts = {"replayed": work.replayed, "judge_tokens": work.judge_tokens}
    staged = [c for step in work.steps for group in step.work.completions or () for c in group]
    external = [g for g in work.trained if g.external]
    local = [g for g in work.trained if not g.external] if work.trained else work.local
    events.append(
        RoundFinished(
            round=work.round,
            reward_local=_mean(work.local),
            reward_external=_mean(external),
            reward_batch=_mean(work.trained),
            local_groups=len(local),
            external_groups=len(external),
            external_wanted=external_wanted,
            nonzero_groups=sum(g.nonzero_advantage for g in local),
            truncated=sum(c.finish == "length" for c in flat),
            well_formed=work.well_formed,
            completions=len(flat),
            tokens_generated=sum(c.sampled for c in [*flat, *staged]),
            tokens_trained=stats.tokens_local + stats.tokens_external,
            bytes_sent=work.bytes_sent,
            bytes_received=work.bytes_received,
            loss=finite(stats.loss),
            grad_norm=finite(stats.grad_norm),
            entropy=finite(stats.entropy),
            clip_fraction=finite(stats.clip_fraction),
            logprob_local=finite(stats.logprob_local),
            logprob_external=finite(stats.logprob_external),
            ratio_max=finite(stats.ratio_max),
            task_rewards=_by_task(work.local),
            seconds=dict(work.seconds),
            figures=work.figures | {name: float(count) for name, count in counts.items() if count},
            taught=dict(Counter(g.question.ref.dataset for g in external if g.teaches)),
        )
    )
    return events


def _mean(groups: Sequence[Group]) -> float | None:
    rewards = [r for g in groups for r in g.rewards]
    return sum(rewards) / len(rewards) if rewards else None


def _by_task(groups: Sequence[Group]) -> dict[str, float]:
    tasks = sorted({g.question.ref.shown for g in groups})
    means = {t: _mean([g for g in groups if g.question.ref.shown == t]) for t in tasks}
    return {t: m for t, m in means.items() if m is not None}


def stamp(events: Sequence[GroupRecorded | RoundFinished], now: float) -> RoundEvents:
    """The same events with their time set, so that a copy in a checkpoint and the journal agree."""
    return [msgspec.structs.replace(e, time=now) for e in events]
