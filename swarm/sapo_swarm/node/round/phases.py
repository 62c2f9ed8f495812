"""The phases of one round (SAPO, Algorithm 1). Each looks at the work so far and does only what is missing."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from sapo_backends.base import PolicyUpdate, Sampling, TokenSequence, TrainSample, UpdateStats
from sapo_swarm.algorithms.base import Algorithm, rate_share
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Phase, PhaseName
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.round.context import RoundWork
from sapo_swarm.node.round.plan import candidate_refs, round_seed
from sapo_swarm.node.round.progress import Activity
from sapo_swarm.node.swarm.exchange import Exchange
from sapo_swarm.sapo.assemble import assemble
from sapo_swarm.sapo.novelty import observe
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.prompts import conversation
from sapo_swarm.types import Group, Question, Rollout

_PROGRESS_S = 0.2
"""Seconds between two progress events of one phase."""


_NAN = float("nan")
NO_UPDATE = UpdateStats(_NAN, _NAN, 0, _NAN, _NAN, _NAN, _NAN, _NAN, 0, 0, 0, 0, 0.0)
"""What an engine without anything to train reports."""


class NoQuestions(Exception):
    """The task settings regenerate too few questions to work with."""


Correction = Callable[[Group, list[TrainSample]], Awaitable[list[TrainSample]]]
"""Off-policy correction: the samples of one external group, with other weights or old log-probabilities."""


@dataclass(frozen=True)
class RoundContext:
    """What a round works with; stays the same over a run. stream takes ephemeral events on the event loop.

    per_source: external groups of one node in a batch at most (None: no cap). seen: what was trained on so far.
    apart: hashes of prompts that are not to be trained on (node.apart).
    """

    config: RunConfig
    node_key: str
    swarm: str
    host: EngineHost
    scorer: Scorer
    exchange: Exchange
    algorithm: Algorithm
    policy: PolicyUpdate
    activity: Activity
    stream: Callable[[Phase], None]
    model_label: str
    per_source: int | None = 1
    correction: Correction | None = None
    seen: Counter[str] = field(default_factory=Counter)
    apart: frozenset[str] = frozenset()

    @property
    def sampling(self) -> Sampling:
        return Sampling(self.config.temperature, 1.0, self.config.max_new_tokens)


async def ask(context: RoundContext, work: RoundWork) -> None:
    """Draw this round's questions and turn them into prompts."""
    if work.questions is not None:
        return
    config = context.config
    wanted = context.exchange.to_ask(config.local_groups, config.external_groups)
    _begin(context, work, "questions", f"Drawing {wanted} questions")
    found: list[tuple[Question, list[int]]] = []
    info, tokenizer = context.host.engine.info, context.host.engine.tokenizer
    with work.timed("questions"):
        refs = candidate_refs(context.config, context.node_key, context.swarm, work.round)
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
    _end(context, work, "questions")


async def generate(context: RoundContext, work: RoundWork) -> None:
    """Draw group_size completions of every prompt in the engine's thread."""
    if work.completions is not None:
        return
    total = len(work.prompts) * context.config.group_size
    detail = f"Generating {total} rollouts"
    _begin(context, work, "generate", detail)
    start = time.perf_counter()

    def describe(finished: int, tokens: int) -> tuple[float, str]:
        rate = tokens / max(time.perf_counter() - start, 1e-6)
        longest = total * context.config.max_new_tokens
        fraction = max(finished / total, tokens / longest) if total else 1.0
        return min(fraction, 0.99), f"{detail} · {finished} done · {rate:,.0f} tok/s"

    with work.timed("generate"):
        work.completions = await context.host.call(
            context.host.engine.generate,
            work.prompts,
            context.config.group_size,
            context.sampling,
            round_seed(context.node_key, context.config.seed, work.round, "generate"),
            context.host.cancel,
            _from_thread(context, describe),
        )
    _end(context, work, "generate")


async def score(context: RoundContext, work: RoundWork) -> None:
    """Reward every own completion with this node's own verifier."""
    if work.own is not None:
        return
    assert work.questions is not None
    assert work.completions is not None
    _begin(context, work, "score", "Scoring")
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
    _end(context, work, "score")


async def share(context: RoundContext, work: RoundWork) -> None:
    """Share own groups and fetch others' (nothing in silo)."""
    if work.external is not None:
        return
    assert work.own is not None
    wanted = context.config.external_groups
    if wanted:
        _begin(context, work, "exchange", f"Sharing {len(work.own)} groups, asking for {wanted}")
    with work.timed("exchange"):
        received = await context.exchange.exchange(work.round, work.own, wanted)
    work.external = received.groups
    work.bytes_sent, work.bytes_received = received.bytes_sent, received.bytes_received
    if wanted:
        _end(context, work, "exchange")


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
    _begin(context, work, "update", "Updating the model")
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
        if context.policy.epochs * context.policy.minibatches > 1:
            samples = await _with_old_logprobs(context, samples)
        work.stats = await context.host.call(
            context.host.engine.update,
            samples,
            replace(
                context.policy, learning_rate=context.policy.learning_rate * rate_share(context.config, work.round)
            ),
            round_seed(context.node_key, context.config.seed, work.round, "update"),
            context.host.cancel,
            _from_thread(context, lambda fraction: (fraction, "Updating the model")),
        )
    work.trained = list(batch.groups)
    observe(context.seen, (group for group in batch.groups if any(group.advantages)))
    _end(context, work, "update")


def _samples(context: RoundContext, work: RoundWork, group: Group) -> list[TrainSample]:
    """Own rollouts keep the ids they were drawn with; foreign text is encoded without special tokens.

    Texts that do not fit into this model's context are left out, and what others got wrong where only positive advantages
    are learned (docs/decisions/0013-default-strategy.md).
    """
    tokenizer, longest = context.host.engine.tokenizer, context.host.engine.info.context_length
    only_right = group.source == "external" and context.config.external_advantages == "positive"
    assert work.questions is not None
    assert work.completions is not None
    if group.source == "own":
        i = next(i for i, q in enumerate(work.questions) if q.ref == group.question.ref)
        prompt, completions = work.prompts[i], [c.tokens for c in work.completions[i]]
    else:
        prompt = tokenizer.encode_chat(conversation(group.question))
        end = tokenizer.eos_ids[:1]
        completions = [(*tokenizer.encode_text(r.text), *(end if r.finish == "stop" else ())) for r in group.rollouts]
    return [
        TrainSample(tuple(prompt), tuple(ids), advantage, external=group.source == "external")
        for ids, advantage in zip(completions, group.advantages, strict=True)
        if ids and len(prompt) + len(ids) <= longest and (advantage > 0 or not only_right)
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


def _begin(context: RoundContext, work: RoundWork, phase: PhaseName, detail: str) -> None:
    context.stream(context.activity.begin(phase, work.round, detail))


def _end(context: RoundContext, work: RoundWork, phase: PhaseName) -> None:
    context.stream(context.activity.end(f"{context.activity.sentence}"))


def _from_thread(context: RoundContext, describe: Callable[..., tuple[float, str]]) -> Callable[..., None]:
    """A progress callback for the engine's thread that reaches the event loop at most every _PROGRESS_S seconds."""
    loop, last = asyncio.get_running_loop(), [0.0]

    def report(*numbers: float) -> None:
        now = time.monotonic()
        if now - last[0] >= _PROGRESS_S:
            last[0] = now
            loop.call_soon_threadsafe(lambda: context.stream(context.activity.progress(*describe(*numbers))))

    return report
