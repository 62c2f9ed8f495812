"""The stage of a round (sapo_swarm.sapo.stages): generates with its prompts, scores, and makes samples for the update.

Text of others enters a prompt here. It has passed the receiver (signature, own verifier, likelihood, phrases), goes through
safe_text, is cut, and the tokenizer never makes a control token of it. What was written behind such text is trained on
without it only where this node's policy could have written it unaided (the receiver's log-probability floor).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import msgspec
import numpy as np

from sapo_backends.base import Completion, TrainSample
from sapo_swarm.node.round import phases
from sapo_swarm.node.round.context import RoundContext, RoundWork, StageStep
from sapo_swarm.node.round.turns import judged, prompt_ids
from sapo_swarm.node.swarm.likelihood import least_likely
from sapo_swarm.protocol.receive import AcceptanceRules
from sapo_swarm.protocol.safe_text import safe_text
from sapo_swarm.sapo.stages import STAGES, Answered, Lesson, Material, StagePrompt
from sapo_swarm.sapo.training_batch import as_rewards
from sapo_swarm.tasks.own import library
from sapo_swarm.types import Group

ASKED = 4096
"""Questions of others that a node remembers having attempted."""


async def stage(context: RoundContext, work: RoundWork) -> None:
    """Everything the run's stage asks for, as far as it is missing; nothing where the run has none. Raises Cancelled."""
    config = context.config
    if config.stage == "none" or work.staged or context.host.engine.info.trainable == 0:
        return
    chosen, material = STAGES[config.stage], _material(context, work)
    seed = phases.round_seed(context.node_key, config.seed, work.round, "stage")
    while True:
        answered = [a for step in work.steps for a in step.answered or ()]
        if not work.steps or work.steps[-1].answered is not None:
            wanted = _fitting(context, chosen.prompts(material, answered, np.random.default_rng(seed)))
            if not wanted:
                break
            work.steps.append(_step(context, work, wanted))
        await _answer(context, work, work.steps[-1], len(work.steps))
    completions = [row for step in work.steps for row in step.completions]
    groups, samples = [a.group for a in answered], list[TrainSample]()
    for lesson in chosen.lessons(material, answered):
        i = lesson.answered
        advantages = _advantages(context, answered[i], lesson)
        samples += await _samples(context, answered[i], completions[i], lesson, advantages)
        filled = tuple(advantages.get(place, 0.0) for place in range(len(groups[i].rollouts)))
        groups[i] = msgspec.structs.replace(groups[i], advantages=filled)
    work.stage_groups, work.stage_samples = groups, samples
    work.figures |= chosen.figures(material, answered)
    mine = {group.question.ref for group in material.local}
    context.memory.asked += [ref for a in answered if (ref := a.prompt.question.ref) not in mine]
    del context.memory.asked[:-ASKED]
    work.staged = True


def _material(context: RoundContext, work: RoundWork) -> Material:
    """Local groups, and what others had success or failed at; alone, own groups of earlier rounds. Episodes are left out."""
    assert work.local is not None
    config, memory = context.config, context.memory
    if work.external or config.external_groups:
        asked = set(memory.asked)
        known = tuple(group for group in work.external or () if group.question.ref not in asked)
    else:
        known = tuple(past.group for past in memory.replay if past.round < work.round)
    local, others = (
        [made_safe(g) for g in groups if not library.turns(g.question.ref)] for groups in (work.local, known)
    )
    return Material(tuple(local), tuple(others), config.stage_groups, config.answer_format)


def made_safe(group: Group) -> Group:
    """The group with texts that hold nothing a terminal would obey or a reader could be fooled by."""
    rollouts = tuple(msgspec.structs.replace(r, text=safe_text(r.text)) for r in group.rollouts)
    return msgspec.structs.replace(group, rollouts=rollouts)


def _ids(context: RoundContext, prompt: StagePrompt) -> list[int]:
    question = msgspec.structs.replace(prompt.question, prompt=prompt.text or prompt.question.prompt)
    tokenizer = context.host.engine.tokenizer
    return [*prompt_ids(tokenizer, context.scorer, question), *tokenizer.encode_text(prompt.start)]


def _fitting(context: RoundContext, prompts: Sequence[StagePrompt]) -> list[StagePrompt]:
    """Those that leave room for a completion."""
    room = context.host.engine.info.context_length - context.config.max_new_tokens
    return [prompt for prompt in prompts if len(_ids(context, prompt)) <= room]


def _step(context: RoundContext, work: RoundWork, prompts: Sequence[StagePrompt]) -> StageStep:
    inner = RoundWork(work.round, questions=[prompt.question for prompt in prompts])
    inner.prompts = [_ids(context, prompt) for prompt in prompts]
    inner.seconds = work.seconds
    return StageStep(tuple(prompts), inner)


async def _answer(context: RoundContext, work: RoundWork, step: StageStep, number: int) -> None:
    """Generate and reward the step's groups, with random numbers of their own."""
    further = replace(context, node_key=f"{context.node_key}/stage-{number}")
    await phases.generate(further, step.work)
    assert step.work.questions is not None
    assert step.work.completions is not None
    tokenizer, rule, label = context.host.engine.tokenizer, context.config.reward_rule, context.model_label
    name = context.config.stage
    starts = [tuple(tokenizer.encode_text(prompt.start)) for prompt in step.prompts]
    step.completions = [
        [Completion(start + c.tokens, c.logprobs if not start else (), c.finish) for c in row]
        for start, row in zip(starts, step.work.completions, strict=True)
    ]
    with work.timed("score"), work.judging(context.scorer.judge):
        found = await judged(tokenizer, context.scorer, step.work.questions, step.completions, rule, label)
    step.answered = tuple(
        Answered(prompt, msgspec.structs.replace(group, stage=f"{name}/shown" if prompt.text else name))
        for prompt, (group, _) in zip(step.prompts, found, strict=True)
    )


def _advantages(context: RoundContext, answered: Answered, lesson: Lesson) -> dict[int, float]:
    """Of the lesson's completions, by their places: among each other and the baseline."""
    rewards = [*lesson.baseline, *(answered.group.rewards[place] for place in lesson.places)]
    values = context.algorithm.advantages(as_rewards(rewards))[len(lesson.baseline) :]
    return dict(zip(lesson.places, values.tolist(), strict=True))


async def _samples(
    context: RoundContext,
    answered: Answered,
    completions: Sequence[Completion],
    lesson: Lesson,
    advantages: dict[int, float],
) -> list[TrainSample]:
    """The lesson's completions under its prompt. Where that is not the one they were generated with, the policy that is
    trained did not write them: they have no behaviour log-probabilities."""
    asked = answered.prompt
    same = not asked.start and (lesson.shown or asked.text in ("", asked.question.prompt))
    prompt = asked if same else StagePrompt(asked.question)
    ids, longest = tuple(_ids(context, prompt)), context.host.engine.info.context_length
    places = list(lesson.places)
    if not same:
        places = [place for place in places if await _plausible(context, answered.group, place)]
    keeps = same and context.host.engine.separate_generator
    return [
        TrainSample(ids, c.tokens, advantages[place], behaviour_logprobs=c.logprobs if keeps else None)
        for place in places
        if (c := completions[place]).tokens and len(ids) + len(c.tokens) <= longest
    ]


async def _plausible(context: RoundContext, group: Group, place: int) -> bool:
    text = group.rollouts[place].text
    found, _ = await least_likely(context.host, group.question, [text], context.config.answer_format)
    return found >= AcceptanceRules().logprob_floor
