"""Verifiers of several items: list, set, order."""

from __future__ import annotations

import json
from itertools import combinations

from sapo_swarm.scoring.declared.case import Case, plain, unquoted
from sapo_swarm.scoring.declared.values import loads
from sapo_swarm.tasks.own.verifiers import Items, ItemSet, Order

MOST = 200
"""Items of an answer; one with more is wrong."""


def in_order(part: Items, case: Case) -> float:
    """Share of places that agree, over the longer of both lists."""
    mine, theirs = split(case.answer, part.separator), split(case.truth, part.separator)
    if not theirs or len(mine) > MOST:
        return 0.0
    return sum(a == b for a, b in zip(mine, theirs, strict=False)) / max(len(mine), len(theirs))


def as_set(part: ItemSet, case: Case) -> float:
    """Shared items over all items (Jaccard)."""
    mine, theirs = set(split(case.answer, part.separator)), set(split(case.truth, part.separator))
    if not theirs or len(mine) > MOST:
        return 0.0
    return len(mine & theirs) / len(mine | theirs)


def ranked(part: Order, case: Case) -> float:
    """Share of pairs in the truth's order; 0 where the items are not the truth's, each once."""
    mine, theirs = split(case.answer, part.separator), split(case.truth, part.separator)
    if not theirs or len(mine) > MOST or sorted(mine) != sorted(set(theirs)):
        return 0.0
    place = {item: number for number, item in enumerate(mine)}
    pairs = list(combinations(dict.fromkeys(theirs), 2))
    return sum(place[a] < place[b] for a, b in pairs) / len(pairs) if pairs else 1.0


def split(text: str, separator: str) -> list[str]:
    """Items of a list as people write it, or of a JSON list."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):
        try:
            found = loads(inner)
        except (ValueError, RecursionError):
            found = None
        if isinstance(found, list):
            return [_item(v if isinstance(v, str) else json.dumps(v, sort_keys=True)) for v in found]
        inner = inner[1:-1]
    return [item for part in inner.split(separator) if (item := _item(part))]


def _item(text: str) -> str:
    return unquoted(plain(text)).casefold()
