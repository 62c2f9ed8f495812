"""How every trainer cuts sequences into micro-batches in which completions share their prompt."""

from __future__ import annotations

import math
from collections.abc import Sequence

Pair = tuple[tuple[int, ...], tuple[int, ...]]
"""(prompt, completion)"""


def plan_micro_batches(
    pairs: Sequence[Pair], budget: int, workers: int = 1, step: int = 1, *, flat: bool = False
) -> list[list[int]]:
    """Indices of non-empty completions in micro-batches of at most `budget` tokens with padding, at least one sequence
    each.

    Sequences of one prompt stay together and lengths are sorted, so that little padding is computed. The budget
    shrinks so that micro-batches are about equal and their number about a multiple of the workers. step: lengths are
    padded to multiples of it. flat: nothing is padded, because sequences lie behind one another.
    """
    texts = [completion for _, completion in pairs] + list({prompt for prompt, _ in pairs})
    total = sum(_rounded(len(text), step) for text in texts)
    rounds = max(1, math.ceil(total / (budget * workers)))
    budget = min(budget, math.ceil(1.1 * total / (rounds * workers)))
    groups: dict[tuple[int, ...], list[int]] = {}
    for index, (prompt, completion) in enumerate(pairs):
        if completion:
            groups.setdefault(prompt, []).append(index)
    for members in groups.values():
        members.sort(key=lambda i: len(pairs[i][1]))
    order = sorted(groups.values(), key=lambda members: (len(pairs[members[-1]][1]), members))

    def tokens(members: Sequence[int]) -> int:
        return flat_tokens(pairs, members) if flat else padded_tokens(pairs, members, step)

    batches: list[list[int]] = []
    for index in (i for members in order for i in members):
        if batches and tokens([*batches[-1], index]) <= budget:
            batches[-1].append(index)
        else:
            batches.append([index])
    return batches


def padded_tokens(pairs: Sequence[Pair], members: Sequence[int], step: int = 1) -> int:
    """Tokens of a micro-batch with its padding."""
    prompts = {pairs[i][0] for i in members}
    widest = max(map(len, prompts)), max(len(pairs[i][1]) for i in members)
    prompt, completion = (_rounded(width, step) for width in widest)
    return len(prompts) * prompt + len(members) * completion


def flat_tokens(pairs: Sequence[Pair], members: Sequence[int]) -> int:
    """Tokens of a micro-batch: each prompt once, and completions without each last token, which predicts nothing."""
    return sum(len(prompt) for prompt in {pairs[i][0] for i in members}) + sum(len(pairs[i][1]) - 1 for i in members)


def _rounded(length: int, step: int) -> int:
    """The next multiple of step, at least one."""
    return max(1, math.ceil(length / step)) * step
