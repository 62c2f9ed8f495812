"""A round in flight as a file, and back: which rollouts are kept over a stop, and whether they, and the groups of others that
were taken for it, still belong."""

from __future__ import annotations

import hashlib

import msgspec

from sapo_swarm.node.round.context import RoundContext, RoundWork, sizes_adapt
from sapo_swarm.node.round.turns import prompt_ids
from sapo_swarm.node.storage.unfinished import InFlight, KeptQuestion
from sapo_swarm.node.swarm.pool import GROUP_LIFE_S
from sapo_swarm.tasks.catalogue import new_tokens
from sapo_swarm.types import Question

_DECIDES = ("tasks", "preset", "group_size", "local_groups", "external_groups", "max_new_tokens", "temperature", "seed")
"""Settings that decide what the rollouts of a round are."""


def fingerprint(context: RoundContext) -> str:
    """SHA-256 of everything but the round and the weights that decides what a round's rollouts are."""
    info = context.host.engine.info
    parts = {name: getattr(context.config, name) for name in _DECIDES}
    parts |= (
        {"limits": {task: new_tokens(context.config, task) for task in context.config.tasks}}
        if context.config.task_tokens
        else {}
    )
    parts |= {"group_sizes": "adaptive"} if sizes_adapt(context.config) else {}
    parts |= {"node": context.node_key, "swarm": context.swarm, "model": info.model, "method": info.method}
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def _sha256(prompt: list[int]) -> str:
    return hashlib.sha256(msgspec.json.encode(prompt)).hexdigest()


def in_flight(context: RoundContext, work: RoundWork) -> InFlight | None:
    """What is worth keeping of the round; None while nothing is sampled."""
    rows = work.completions or work.partial
    if work.questions is None or not any(c.tokens for row in rows for c in row):
        return None
    return InFlight(
        round=work.round,
        belongs=fingerprint(context),
        questions=tuple(
            KeptQuestion(q.ref, q.prompt_sha256, tuple(row), _sha256(prompt))
            for q, row, prompt in zip(work.questions, rows, work.prompts, strict=True)
        ),
        external=work.external,
        bytes_sent=work.bytes_sent,
        bytes_received=work.bytes_received,
        seconds=dict(work.seconds),
        taken=work.taken,
    )


async def restored(context: RoundContext, kept: InFlight) -> RoundWork | None:
    """The round as it was, or None when settings, tasks or model are others now. Rewards are computed again."""
    if kept.belongs != fingerprint(context):
        return None
    found = await context.scorer.questions([q.ref for q in kept.questions])
    size = context.config.group_size
    work = RoundWork(kept.round, external=kept.external, taken=kept.taken, seconds=dict(kept.seconds))
    work.bytes_sent, work.bytes_received = kept.bytes_sent, kept.bytes_received
    work.questions = []
    for question, was in zip(found, kept.questions, strict=True):
        same = isinstance(question, Question) and question.prompt_sha256 == was.prompt_sha256
        sized = sizes_adapt(context.config) or len(was.completions) == size
        if not isinstance(question, Question) or not same or not sized:
            return None
        prompt = prompt_ids(context.host.engine.tokenizer, context.scorer, question)
        if was.read_sha256 not in ("", _sha256(prompt)):
            return None
        work.questions.append(question)
        work.prompts.append(prompt)
        work.partial.append(list(was.completions))
    return work


def torn(work: RoundWork) -> bool:
    """Its update of several steps failed on the way: the weights may hold a part of it."""
    if work.call is None or work.stats is not None:
        return False
    return work.call.policy.epochs * work.call.policy.minibatches > 1


def outlived(work: RoundWork, now: float) -> bool:
    """The groups of others wait for longer than a pool would have kept them. now: Unix time; a clock that was set back counts."""
    return not 0 <= now - work.taken <= GROUP_LIFE_S


def drop_external(work: RoundWork) -> None:
    """What is not in the weights yet is trained without the groups of others, and without what a stage made of them."""
    if work.external and work.stats is None:
        work.external, work.staged = (), False
        work.steps, work.stage_samples, work.stage_groups, work.figures = [], [], [], {}
