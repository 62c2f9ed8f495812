"""Completions of prompts, sampled call by call: a table that an interruption loses nothing of.

Ended completions stay, begun ones are continued. Every completion has random numbers of its own (RowSeed), so that it does
not matter when it is sampled, beside which others, or in how many pieces.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Sequence

from sapo_backends.base import Cancelled, Completion, OutOfMemory, RowSeed, Sampling
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.round.context import Portion
from sapo_swarm.node.round.turns import Place, turn_length

NOTHING = Completion((), (), "length")
Table = list[list[Completion]]
"""table[i][j]: completion j of prompt i, as far as it is sampled."""


def ended(completion: Completion, most: int) -> bool:
    """Nothing is to be added to its turn."""
    return completion.finish == "stop" or turn_length(completion) >= most


def next_call(table: Table, most: Sequence[int], portion: Portion) -> list[Place]:
    """The completions to work on next, all of them begun or none, with one limit: those that are furthest first. Empty when all
    are there. most: tokens of a turn of each prompt."""
    open_rows = [(i, j) for i, row in enumerate(table) for j, c in enumerate(row) if not ended(c, most[i])]
    if not open_rows:
        return []

    def far(place: Place) -> tuple[int, bool, int]:
        row = table[place[0]][place[1]]
        return turn_length(row), bool(row.tokens), most[place[0]]

    furthest = max(map(far, open_rows))
    alike = [place for place in open_rows if far(place) == furthest]
    if any(furthest[:2]):
        return alike[: portion.of(len(alike))]
    prompts = list(dict.fromkeys(i for i, _ in alike))
    rows = list(itertools.accumulate(len(table[i]) for i in prompts))
    whole = max(1, bisect.bisect_right(rows, portion.of(rows[-1])))
    return [place for place in alike if place[0] in set(prompts[:whole])]


async def sample(
    host: EngineHost,
    portion: Portion,
    prompts: Sequence[Sequence[int]],
    table: Table,
    call: Sequence[Place],
    sampling: Sampling,
    seeds: Sequence[RowSeed],
    on_tokens: Callable[[int, int], None],
) -> None:
    """Add to these completions; what is there when it is interrupted is added too. sampling: of what is still missing.

    Raises Cancelled, BackendError.
    """
    size = len(table[call[0][0]])
    alike = all(len(table[i]) == size for i, _ in call)
    fresh = not table[call[0][0]][call[0][1]].tokens
    grouped = fresh and alike and all((i, j) in call for i, _ in call for j in range(size))
    if grouped:
        asked = [prompts[i] for i in dict.fromkeys(i for i, _ in call)]
    else:
        asked = [[*prompts[i], *table[i][j].tokens] for i, j in call]
    try:
        found = await host.call(
            host.engine.generate, asked, size if grouped else 1, sampling, seeds, host.cancel, on_tokens
        )
    except Cancelled as stopped:
        _add(table, call, [c for group in stopped.partial for c in group])
        portion.interrupted(len(call))
        raise
    except OutOfMemory:
        portion.refused(len(call))
        raise
    _add(table, call, [c for group in found for c in group])
    portion.completed(len(call))


def _add(table: Table, call: Sequence[Place], more: Sequence[Completion]) -> None:
    for (i, j), new in zip(call, more, strict=False):
        old = table[i][j]
        mask = None if old.loss_mask is None else old.loss_mask + (True,) * len(new.tokens)
        table[i][j] = Completion(old.tokens + new.tokens, old.logprobs + new.logprobs, new.finish, mask)
