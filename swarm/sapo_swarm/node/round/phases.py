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
from sapo_swarm.tasks.prompts import messages
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
class Bench:
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


async def ask(bench: Bench, work: RoundWork) -> None:
    """Draw this round's questions and turn them into prompts."""
    if work.questions is not None:
        return
    config = bench.config
    wanted = bench.exchange.to_ask(config.own_groups, config.external_groups)
    _begin(bench, work, "questions", f"Drawing {wanted} questions")
    found: list[tuple[Question, list[int]]] = []
    info, tokenizer = bench.host.engine.info, bench.host.engine.tokenizer
    with work.timed("questions"):
        refs = candidate_refs(bench.config, bench.node_key, bench.swarm, work.round)
        for _ in range(8):
            batch = list(itertools.islice(refs, wanted - len(found)))
            made = [q for q in await bench.scorer.questions(batch) if isinstance(q, Question)]
            asked = [(q, tokenizer.encode_chat(messages(q.prompt))) for q in made if q.prompt_sha256 not in bench.apart]
            found += [(q, ids) for q, ids in asked if len(ids) + config.max_new_tokens <= info.context_length]
            if len(found) == wanted:
                break
        else:
            raise NoQuestions(
                f"Only {len(found)} of {wanted} questions could be made from tasks {', '.join(bench.config.tasks)} "
                f"with preset {bench.config.preset!r} that fit into {info.context_length} tokens. "
                "Choose other tasks or another preset."
            )
    work.prompts = [ids for _, ids in found]
    work.questions = [q for q, _ in found]
    _end(bench, work, "questions")


async def generate(bench: Bench, work: RoundWork) -> None:
    """Draw group_size completions of every prompt in the engine's thread."""
    if work.completions is not None:
        return
    total = len(work.prompts) * bench.config.group_size
    detail = f"Generating {total} rollouts"
    _begin(bench, work, "generate", detail)
    start = time.perf_counter()

    def describe(finished: int, tokens: int) -> tuple[float, str]:
        rate = tokens / max(time.perf_counter() - start, 1e-6)
        longest = total * bench.config.max_new_tokens
        fraction = max(finished / total, tokens / longest) if total else 1.0
        return min(fraction, 0.99), f"{detail} · {finished} done · {rate:,.0f} tok/s"

    with work.timed("generate"):
        work.completions = await bench.host.call(
            bench.host.engine.generate,
            work.prompts,
            bench.config.group_size,
            bench.sampling,
            round_seed(bench.node_key, bench.config.seed, work.round, "generate"),
            bench.host.cancel,
            _from_thread(bench, describe),
        )
    _end(bench, work, "generate")


async def score(bench: Bench, work: RoundWork) -> None:
    """Reward every own completion with this node's own verifier."""
    if work.own is not None:
        return
    assert work.questions is not None
    assert work.completions is not None
    _begin(bench, work, "score", "Scoring")
    decode = bench.host.engine.tokenizer.decode
    groups: list[Group] = []
    work.well_formed = 0
    with work.timed("score"):
        written = [[decode(c.tokens) for c in completions] for completions in work.completions]
        asked = [(question.ref, texts) for question, texts in zip(work.questions, written, strict=True)]
        verdicts = await bench.scorer.score_own(asked, bench.config.reward_rule)
        for question, completions, texts, scored in zip(
            work.questions, work.completions, written, verdicts, strict=True
        ):
            work.well_formed += sum(scored.well_formed)
            rollouts = tuple(
                Rollout(text, c.finish, reward, len(c.tokens), place in scored.unread)
                for place, (text, c, reward) in enumerate(zip(texts, completions, scored.rewards, strict=True))
            )
            groups.append(Group(question, rollouts, model=bench.model_label))
    work.own = groups
    _end(bench, work, "score")


async def share(bench: Bench, work: RoundWork) -> None:
    """Share own groups and fetch others' (nothing in silo)."""
    if work.external is not None:
        return
    assert work.own is not None
    wanted = bench.config.external_groups
    if wanted:
        _begin(bench, work, "exchange", f"Sharing {len(work.own)} groups, asking for {wanted}")
    with work.timed("exchange"):
        received = await bench.exchange.exchange(work.round, work.own, wanted)
    work.external = received.groups
    work.bytes_sent, work.bytes_received = received.bytes_sent, received.bytes_received
    if wanted:
        _end(bench, work, "exchange")


async def update(bench: Bench, work: RoundWork) -> None:
    """Assemble I own and J external groups into a batch and take the policy-gradient step.

    A node that only generates (method none) shares its groups and trains on nothing.
    """
    if work.stats is not None:
        return
    if bench.host.engine.info.trainable == 0:
        work.stats = NO_UPDATE
        return
    assert work.own is not None
    _begin(bench, work, "update", "Updating the model")
    rng = np.random.default_rng(round_seed(bench.node_key, bench.config.seed, work.round, "assemble"))
    with work.timed("update"):
        batch = assemble(
            work.own,
            work.external or (),
            bench.config.own_groups,
            bench.config.external_groups,
            rng,
            bench.algorithm.advantages,
            bench.config.sampling,
            bench.per_source,
            seen=bench.seen,
        )
        samples: list[TrainSample] = []
        for group in batch.groups:
            found = _samples(bench, work, group)
            correct = bench.correction if group.source == "external" else None
            samples += found if correct is None else await correct(group, found)
        if bench.policy.epochs * bench.policy.minibatches > 1:
            samples = await _with_old_logprobs(bench, samples)
        work.stats = await bench.host.call(
            bench.host.engine.update,
            samples,
            replace(bench.policy, learning_rate=bench.policy.learning_rate * rate_share(bench.config, work.round)),
            round_seed(bench.node_key, bench.config.seed, work.round, "update"),
            bench.host.cancel,
            _from_thread(bench, lambda fraction: (fraction, "Updating the model")),
        )
    work.trained = list(batch.groups)
    observe(bench.seen, (group for group in batch.groups if any(group.advantages)))
    _end(bench, work, "update")


def _samples(bench: Bench, work: RoundWork, group: Group) -> list[TrainSample]:
    """Own rollouts keep the ids they were drawn with; foreign text is encoded without special tokens.

    Texts that do not fit into this model's context are left out, and what others got wrong where only positive advantages
    are learned (docs/decisions/0013-default-strategy.md).
    """
    tokenizer, context = bench.host.engine.tokenizer, bench.host.engine.info.context_length
    only_right = group.source == "external" and bench.config.external_advantages == "positive"
    assert work.questions is not None
    assert work.completions is not None
    if group.source == "own":
        i = next(i for i, q in enumerate(work.questions) if q.ref == group.question.ref)
        prompt, completions = work.prompts[i], [c.tokens for c in work.completions[i]]
    else:
        prompt = tokenizer.encode_chat(messages(group.question.prompt))
        end = tokenizer.eos_ids[:1]
        completions = [(*tokenizer.encode_text(r.text), *(end if r.finish == "stop" else ())) for r in group.rollouts]
    return [
        TrainSample(tuple(prompt), tuple(ids), advantage, external=group.source == "external")
        for ids, advantage in zip(completions, group.advantages, strict=True)
        if ids and len(prompt) + len(ids) <= context and (advantage > 0 or not only_right)
    ]


async def _with_old_logprobs(bench: Bench, samples: Sequence[TrainSample]) -> list[TrainSample]:
    """Old log-probabilities where a correction has not set them."""
    missing = [i for i, s in enumerate(samples) if s.old_logprobs is None]
    sequences = [TokenSequence(samples[i].prompt, samples[i].completion) for i in missing]
    found = await bench.host.call(bench.host.engine.logprobs, sequences, bench.policy.temperature)
    filled = list(samples)
    for i, old in zip(missing, found, strict=True):
        filled[i] = replace(samples[i], old_logprobs=tuple(old))
    return filled


def _begin(bench: Bench, work: RoundWork, phase: PhaseName, detail: str) -> None:
    bench.stream(bench.activity.begin(phase, work.round, detail))


def _end(bench: Bench, work: RoundWork, phase: PhaseName) -> None:
    bench.stream(bench.activity.end(f"{bench.activity.sentence}"))


def _from_thread(bench: Bench, describe: Callable[..., tuple[float, str]]) -> Callable[..., None]:
    """A progress callback for the engine's thread that reaches the event loop at most every _PROGRESS_S seconds."""
    loop, last = asyncio.get_running_loop(), [0.0]

    def report(*numbers: float) -> None:
        now = time.monotonic()
        if now - last[0] >= _PROGRESS_S:
            last[0] = now
            loop.call_soon_threadsafe(lambda: bench.stream(bench.activity.progress(*describe(*numbers))))

    return report
