"""The phases of one round (SAPO, Algorithm 1). Each looks at the work so far and does only what is missing."""

from __future__ import annotations

import itertools

from sapo_swarm.node.round.context import Correction as Correction
from sapo_swarm.node.round.context import RoundContext as RoundContext
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.node.round.generation import generate as generate
from sapo_swarm.node.round.plan import candidate_refs
from sapo_swarm.node.round.training import update as update
from sapo_swarm.tasks.prompts import conversation
from sapo_swarm.types import Group, Question, Rollout


class NoQuestions(Exception):
    """The task settings regenerate too few questions to work with."""


async def ask(context: RoundContext, work: RoundWork) -> None:
    """Draw this round's questions and turn them into prompts."""
    if work.questions is not None:
        return
    config = context.config
    wanted = context.exchange.prompts_to_sample(config.local_groups, config.external_groups)
    context.begin(work, "questions", f"Sampling {wanted} questions")
    found: list[tuple[Question, list[int]]] = []
    info, tokenizer = context.host.engine.info, context.host.engine.tokenizer
    with work.timed("questions"):
        refs = candidate_refs(context.config, context.node_key, context.swarm, work.round, context.memory.difficulty)
        for _ in range(8):
            batch = list(itertools.islice(refs, wanted - len(found)))
            drawn = await context.scorer.questions(batch)
            made = [q for q in drawn if isinstance(q, Question)]
            reasons = {q.reason for q in drawn if not isinstance(q, Question)}
            asked = [(q, tokenizer.encode_chat(conversation(q))) for q in made if q.prompt_sha256 not in context.apart]
            found += [(q, ids) for q, ids in asked if len(ids) + config.max_new_tokens <= info.context_length]
            if len(found) == wanted:
                break
        else:
            raise NoQuestions(
                f"Only {len(found)} of {wanted} questions could be made from tasks {', '.join(context.config.tasks)} "
                f"with preset {context.config.preset!r} that fit into {info.context_length} tokens. "
                f"{f'The last that could not: {min(reasons)} ' if reasons else ''}Choose other tasks or another preset."
            )
    work.prompts = [ids for _, ids in found]
    work.questions = [q for q, _ in found]
    context.end()


async def score(context: RoundContext, work: RoundWork) -> None:
    """Reward every own completion with this node's own verifier."""
    if work.own is not None:
        return
    assert work.questions is not None
    assert work.completions is not None
    context.begin(work, "score", "Scoring")
    decode = context.host.engine.tokenizer.decode
    groups: list[Group] = []
    work.well_formed = 0
    with work.timed("score"):
        written = [[decode(c.tokens) for c in completions] for completions in work.completions]
        asked = [(question.ref, texts) for question, texts in zip(work.questions, written, strict=True)]
        verdicts = await context.scorer.score_own(asked, context.config.reward_rule)
        for question, completions, texts, scored in zip(
            work.questions, work.completions, written, verdicts, strict=True
        ):
            work.well_formed += sum(scored.well_formed)
            rollouts = tuple(
                Rollout(text, c.finish, reward, len(c.tokens), place in scored.shortcut)
                for place, (text, c, reward) in enumerate(zip(texts, completions, scored.rewards, strict=True))
            )
            groups.append(Group(question, rollouts, model=context.model_label))
    work.own = groups
    context.memory.observe(context.config, work.round, groups)
    context.end()


async def share(context: RoundContext, work: RoundWork) -> None:
    """Share own groups and fetch others' (nothing in silo)."""
    if work.external is not None:
        return
    assert work.own is not None
    wanted = context.config.external_groups
    if wanted:
        context.begin(work, "exchange", f"Sharing {len(work.own)} groups, asking for {wanted}")
    with work.timed("exchange"):
        received = await context.exchange.exchange(work.round, work.own, wanted)
    work.external = received.groups
    work.bytes_sent, work.bytes_received = received.bytes_sent, received.bytes_received
    if wanted:
        context.end()
