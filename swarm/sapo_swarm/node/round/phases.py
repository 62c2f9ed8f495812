"""The phases of one round (SAPO, Algorithm 1) up to its update, which is in training.py: plan, generate, score, exchange.

Each looks at the work so far and does only what is missing. What a round works on is a pure function of who and when. An
interruption loses nothing: ended completions stay, begun ones are continued. Every completion has random numbers of its
own (RowSeed), so that it does not matter when it is sampled, beside which others, or in how many pieces. On an engine
whose logits do not depend on the batch (the fake one) an interrupted round is that of an undisturbed run, bit for bit; on
others a token can differ where two computations of the same logits round differently.
"""

from __future__ import annotations

import hashlib
import itertools
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence

from sapo_backends.base import RowSeed, Sampling
from sapo_swarm.config import RunConfig
from sapo_swarm.node.round.context import RoundContext, RoundWork
from sapo_swarm.node.round.rows import NOTHING, ended, next_call, sample
from sapo_swarm.node.round.turns import Place, answer_turns, judged, prompt_ids, turn_length
from sapo_swarm.sapo import adaptive_sampling
from sapo_swarm.sapo.adaptive_sampling import Posterior
from sapo_swarm.tasks.catalogue import (
    CATALOGUE,
    LIBRARY_PRESET,
    generator_of,
    is_own,
    new_tokens,
    preset_of,
    train_seed,
)
from sapo_swarm.tasks.own import library
from sapo_swarm.types import Question, TaskRef


def round_seed(node_key: str, seed: int, round_number: int, purpose: str) -> int:
    """A 63-bit seed for one use in one round, the same after a resume."""
    text = f"sapo-round-v1|{node_key}|{seed}|{round_number}|{purpose}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") >> 1


NO_EVIDENCE: Mapping[str, Posterior] = {}


def candidate_refs(
    config: RunConfig,
    node_key: str,
    swarm: str,
    round_number: int,
    posteriors: Mapping[str, Posterior] = NO_EVIDENCE,
) -> Iterator[TaskRef]:
    """Endless fresh questions of a round: tasks sampled uniformly with replacement (SAPO, section 5), or by the posteriors
    of their success rates where config.curriculum says so.

    More than local_groups are available because some coordinates regenerate nothing.
    """
    rng = random.Random(round_seed(node_key, config.seed, round_number, "tasks"))
    choices = difficulties(config)
    weights = None
    if config.curriculum != "uniform":
        weights = adaptive_sampling.weights(posteriors, [adaptive_sampling.key(*choice) for choice in choices]).tolist()
    slot = 0
    while True:
        dataset, preset = rng.choice(choices) if weights is None else rng.choices(choices, weights)[0]
        seed = train_seed(node_key, swarm, round_number, slot, config.seed)
        yield TaskRef(dataset, preset, seed, generator=generator_of(dataset, swarm))
        slot += 1


def difficulties(config: RunConfig) -> list[tuple[str, str]]:
    """(task, preset) pairs that questions are sampled from. A swarm agrees on one preset. Raises UnknownTask."""
    if config.curriculum == "presets" and not config.external_groups:
        return [
            (task, preset)
            for task in config.tasks
            for preset in (library.presets(task) if is_own(task) else CATALOGUE[task])
            if preset != LIBRARY_PRESET or is_own(task)
        ]
    return [(task, preset_of(task, config.preset)) for task in config.tasks]


async def generate(context: RoundContext, work: RoundWork) -> None:
    """Sample the completions of every prompt in the engine's thread, or what of them is missing. Raises Cancelled.

    Those of an environment are continued turn by turn: all rows of a turn generate together, then the environment answers each.
    """
    if work.completions is not None:
        return
    assert work.questions is not None
    context.begin(work, "generate", _detail(context, work))
    with work.timed("generate"):
        if not work.partial:
            work.partial = [[NOTHING] * size for size in context.group_sizes(work)]
        most = limits(context, work)
        while True:
            while call := next_call(work.partial, most, context.portion):
                await _sample(context, work, call)
            if not await answer_turns(
                context.host.engine, context.scorer, work.questions, work.prompts, work.partial, work.over, most
            ):
                break
    work.completions = work.partial
    context.end()


def limits(context: RoundContext, work: RoundWork) -> list[int]:
    """The most tokens of a completion of each prompt."""
    assert work.questions is not None
    by_task = {task: new_tokens(context.config, task) for task in {q.ref.dataset for q in work.questions}}
    return [by_task[q.ref.dataset] for q in work.questions]


async def _sample(context: RoundContext, work: RoundWork, call: Sequence[Place]) -> None:
    """Add to these completions; what is there when it is interrupted is added too."""
    i, j = call[0]
    seed = round_seed(context.node_key, context.config.seed, work.round, "generate")
    first = [0, *itertools.accumulate(len(row) for row in work.partial)]
    seeds = [RowSeed(seed + first[i] + j, work.partial[i][j].sampled) for i, j in call]
    left = limits(context, work)[i] - turn_length(work.partial[i][j])
    sampling = Sampling(context.config.temperature, 1.0, left)
    progress = context.from_thread(_describe(context, work))
    await sample(context.host, context.portion, work.prompts, work.partial, call, sampling, seeds, progress)


def _detail(context: RoundContext, work: RoundWork) -> str:
    total = sum(map(len, work.partial)) or len(work.prompts) * context.config.group_size
    kept = _ended(work, limits(context, work))
    return (
        f"Generating {total} rollouts"
        if not kept
        else f"Generating {total - kept} rollouts, {kept} of {total} are kept"
    )


def _ended(work: RoundWork, most: Sequence[int]) -> int:
    """Completions that are ended; none before the first call."""
    return sum(ended(c, limit) for row, limit in zip(work.partial, most, strict=False) for c in row)


def _describe(context: RoundContext, work: RoundWork) -> Callable[[int, int], tuple[float, str]]:
    """Progress of one call as progress of the whole phase."""
    total, most = sum(map(len, work.partial)), limits(context, work)
    kept = [c for row in work.partial for c in row]
    before, tokens_before = _ended(work, most), sum(turn_length(c) for c in kept)
    whole = sum(limit * len(row) for limit, row in zip(most, work.partial, strict=True))
    start = time.perf_counter()

    def describe(finished: int, tokens: int) -> tuple[float, str]:
        rate = tokens / max(time.perf_counter() - start, 1e-6)
        done = before + finished
        fraction = max(done / total, (tokens_before + tokens) / whole) if total else 1.0
        return min(fraction, 0.99), f"Generating {total} rollouts · {done} done · {rate:,.0f} tok/s"

    return describe


TRIES = 64
"""References tried for a question of a round, on average: more than that, and the round is given up;"""
HOPELESS = 8
"""so it is after these where none was of use (but not before TRIES), so that nobody waits for minutes to be told."""


class NoQuestions(Exception):
    """The task settings regenerate too few questions to work with."""


async def sample_questions(context: RoundContext, work: RoundWork) -> None:
    """Sample this round's questions and turn them into prompts. Raises NoQuestions."""
    if work.questions is not None:
        return
    config = context.config
    wanted = context.exchange.prompts_to_sample(config.local_groups, config.external_groups)
    context.begin(work, "questions", f"Sampling {wanted} questions")
    found: list[tuple[Question, list[int]]] = []
    left_out, reason = Counter[str](), ""
    room, tokenizer = context.host.engine.info.context_length, context.host.engine.tokenizer
    with work.timed("questions"):
        refs = candidate_refs(config, context.node_key, context.swarm, work.round, context.memory.difficulty)
        while len(found) < wanted:
            tried = len(found) + left_out.total()
            if tried >= (TRIES * wanted if found else max(HOPELESS * wanted, TRIES)):
                raise NoQuestions(
                    f"Only {len(found)} of {wanted} questions could be sampled from tasks {', '.join(config.tasks)} with preset "
                    f"{config.preset!r}. Of {tried} that were tried "
                    f"{', '.join(f'{count} {why}' for why, count in left_out.items())}. {reason}"
                    "Choose other tasks, another preset or a smaller max_new_tokens."
                )
            for question in await context.scorer.questions(list(itertools.islice(refs, wanted - len(found)))):
                if not isinstance(question, Question):
                    left_out["could not be made"] += 1
                    reason = f"The last that could not: {question.reason} "
                elif question.prompt_sha256 in context.excluded:
                    left_out["are held out"] += 1
                elif len(ids := prompt_ids(tokenizer, context.scorer, question)) + config.max_new_tokens > room:
                    left_out[f"do not fit into {room} tokens beside an answer of {config.max_new_tokens}"] += 1
                else:
                    found.append((question, ids))
    work.prompts = [ids for _, ids in found]
    work.questions = [q for q, _ in found]
    context.end()


async def score(context: RoundContext, work: RoundWork) -> None:
    """Reward every local completion with this node's own verifier."""
    if work.local is not None:
        return
    assert work.questions is not None
    assert work.completions is not None
    context.begin(work, "score", "Scoring")
    rule, label = context.config.reward_rule, context.model_label
    with work.timed("score"), work.judging(context.scorer.judge):
        found = await judged(
            context.host.engine.tokenizer, context.scorer, work.questions, work.completions, rule, label
        )
    work.local = [group for group, _ in found]
    work.well_formed = sum(formed for _, formed in found)
    context.memory.observe(context.config, work.round, work.local)
    context.end()


async def share(context: RoundContext, work: RoundWork) -> None:
    """Share local groups and fetch external ones (nothing in silo)."""
    if work.external is not None:
        return
    assert work.local is not None
    wanted = context.config.external_groups
    if wanted:
        context.begin(work, "exchange", f"Sharing {len(work.local)} groups, asking for {wanted}")
    with work.timed("exchange"):
        received = await context.exchange.exchange(work.round, work.local, wanted)
    work.external, work.taken = received.groups, time.time()
    work.bytes_sent, work.bytes_received = received.bytes_sent, received.bytes_received
    if wanted:
        context.end()
