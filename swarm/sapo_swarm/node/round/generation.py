"""Sampling the completions of a round. An interruption loses nothing: ended completions stay, begun ones are continued.

Every completion has random numbers of its own (RowSeed), so that it does not matter when it is sampled, beside which others,
or in how many pieces. On an engine whose logits do not depend on the batch (the fake one) an interrupted round is that of an
undisturbed run, bit for bit; on others a token can differ where two computations of the same logits round differently.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from sapo_backends.base import Cancelled, Completion, RowSeed, Sampling
from sapo_swarm.node.round.context import RoundContext, RoundWork
from sapo_swarm.node.round.plan import round_seed

Place = tuple[int, int]
"""(prompt, completion) of a round."""
NOTHING = Completion((), (), "length")


async def generate(context: RoundContext, work: RoundWork) -> None:
    """Sample group_size completions of every prompt in the engine's thread, or what of them is missing. Raises Cancelled."""
    if work.completions is not None:
        return
    context.begin(work, "generate", _detail(context, work))
    with work.timed("generate"):
        if not work.partial:
            work.partial = [[NOTHING] * context.config.group_size for _ in work.prompts]
        while call := _next_call(context, work):
            await _sample(context, work, call)
    work.completions = work.partial
    context.end()


def ended(completion: Completion, most: int) -> bool:
    """Nothing is to be added to it."""
    return completion.finish == "stop" or len(completion.tokens) >= most


def _next_call(context: RoundContext, work: RoundWork) -> list[Place]:
    """The completions to work on next, all of them begun or none: those that are furthest first. Empty when all are there."""
    most, size = context.config.max_new_tokens, context.config.group_size
    open_rows = [(i, j) for i, row in enumerate(work.partial) for j, c in enumerate(row) if not ended(c, most)]
    if not open_rows:
        return []
    furthest = max(len(work.partial[i][j].tokens) for i, j in open_rows)
    alike = [(i, j) for i, j in open_rows if len(work.partial[i][j].tokens) == furthest]
    if furthest:
        return alike[: context.portion.of(len(alike))]
    prompts = list(dict.fromkeys(i for i, _ in alike))
    whole = max(1, context.portion.of(len(prompts) * size) // size)
    return [place for place in alike if place[0] in set(prompts[:whole])]


async def _sample(context: RoundContext, work: RoundWork, call: Sequence[Place]) -> None:
    """Add to these completions; what is there when it is interrupted is added too."""
    used = len(work.partial[call[0][0]][call[0][1]].tokens)
    seed = round_seed(context.node_key, context.config.seed, work.round, "generate")
    size = context.config.group_size
    seeds = [RowSeed(seed + i * size + j, used) for i, j in call]
    sampling = Sampling(context.config.temperature, 1.0, context.config.max_new_tokens - used)
    grouped = not used and all((i, j) in call for i, _ in call for j in range(size))
    if grouped:
        prompts = [work.prompts[i] for i in dict.fromkeys(i for i, _ in call)]
    else:
        prompts = [[*work.prompts[i], *work.partial[i][j].tokens] for i, j in call]
    host = context.host
    progress = context.from_thread(_describe(context, work))
    try:
        found = await host.call(
            host.engine.generate, prompts, size if grouped else 1, sampling, seeds, host.cancel, progress
        )
    except Cancelled as stopped:
        _add(work, call, [c for group in stopped.partial for c in group])
        context.portion.interrupted(len(call))
        raise
    _add(work, call, [c for group in found for c in group])
    context.portion.completed(len(call))


def _add(work: RoundWork, call: Sequence[Place], more: Sequence[Completion]) -> None:
    for (i, j), new in zip(call, more, strict=False):
        old = work.partial[i][j]
        work.partial[i][j] = Completion(old.tokens + new.tokens, old.logprobs + new.logprobs, new.finish)


def _detail(context: RoundContext, work: RoundWork) -> str:
    total = len(work.prompts) * context.config.group_size
    kept = sum(ended(c, context.config.max_new_tokens) for row in work.partial for c in row)
    return (
        f"Generating {total} rollouts"
        if not kept
        else f"Generating {total - kept} rollouts, {kept} of {total} are kept"
    )


def _describe(context: RoundContext, work: RoundWork) -> Callable[[int, int], tuple[float, str]]:
    """Progress of one call as progress of the whole phase."""
    total, most = len(work.prompts) * context.config.group_size, context.config.max_new_tokens
    kept = [c for row in work.partial for c in row]
    before, tokens_before = sum(ended(c, most) for c in kept), sum(len(c.tokens) for c in kept)
    start = time.perf_counter()

    def describe(finished: int, tokens: int) -> tuple[float, str]:
        rate = tokens / max(time.perf_counter() - start, 1e-6)
        done = before + finished
        fraction = max(done / total, (tokens_before + tokens) / (total * most)) if total else 1.0
        return min(fraction, 0.99), f"Generating {total} rollouts · {done} done · {rate:,.0f} tok/s"

    return describe
