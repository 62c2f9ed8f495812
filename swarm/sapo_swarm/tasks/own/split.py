"""Which rows train and which are held out: decided by content, so that the same rows split the same way everywhere.

Rows that ask the same thing (apart from case, white space, quotes and a full stop), and long texts that are nearly the same,
stay on one side: a model must not meet a held-out question in other clothes.
"""

from __future__ import annotations

import hashlib
import re
import unicodedata
import zlib
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

LONG = 16
"""Words from which on two texts can be nearly the same: in shorter ones every word may be the question."""
WIDTH = 2
"""Words that a text is compared by, in a row."""
ALIKE = 0.7
"""Share of those that two texts have in common from which on they count as one."""
HASHES = 8
_PRIME = (1 << 31) - 1
_FACTORS: NDArray[np.uint64] = np.random.default_rng(8).integers(1, _PRIME, size=(2, HASHES, 1), dtype=np.uint64)


def key(prompt: str) -> str:
    """What two prompts share when they ask the same."""
    plain = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.sub(r"[\"'`´‘’“”«»]", "", plain).split()).strip(" .?!")


def clusters(prompts: Sequence[str]) -> list[int]:
    """A number for each prompt; prompts with the same number are duplicates or nearly so. Linear in their length."""
    found = list(range(len(prompts)))
    by_key: dict[str, int] = {}
    buckets: dict[tuple[int, int], int] = {}
    pieces: dict[int, frozenset[int]] = {}
    for place, prompt in enumerate(prompts):
        plain = key(prompt)
        first = by_key.setdefault(plain, place)
        if first != place:
            found[place] = found[first]
            continue
        shingles = _shingles(plain)
        if not shingles:
            continue
        pieces[place] = shingles
        for bucket in _sketch(shingles):
            other = buckets.setdefault(bucket, place)
            if other != place and _alike(shingles, pieces[other]) and _numbers(plain) == _numbers(key(prompts[other])):
                found[place] = found[other]
                break
    return found


def held_out_places(prompts: Sequence[str], share: float) -> frozenset[int]:
    """Places of the prompts that are held out: about `share` of the questions, by the SHA-256 of what they ask.

    At least one question and never all of them where there are two. share: in (0, 1).
    """
    groups = clusters(prompts)
    order = {group: hashlib.sha256(key(prompts[group]).encode("utf-8", "replace")).digest() for group in set(groups)}
    ranked = sorted(order, key=lambda group: order[group])
    count = min(max(1, round(share * len(ranked))), max(0, len(ranked) - 1))
    chosen = set(ranked[:count])
    return frozenset(place for place, group in enumerate(groups) if group in chosen)


def _shingles(plain: str) -> frozenset[int]:
    words = plain.split()
    if len(words) < LONG:
        return frozenset()
    return frozenset(
        zlib.crc32(" ".join(words[i : i + WIDTH]).encode("utf-8", "replace")) for i in range(len(words) - WIDTH + 1)
    )


def _sketch(shingles: frozenset[int]) -> list[tuple[int, int]]:
    """MinHash: texts that share most of their pieces share some of these (Broder 1997)."""
    values = np.fromiter(shingles, dtype=np.uint64) % _PRIME  # (S,)
    hashed = (values * _FACTORS[0] + _FACTORS[1]) % _PRIME  # (HASHES, S)
    return [(number, int(least)) for number, least in enumerate(hashed.min(axis=1))]


def _alike(one: frozenset[int], other: frozenset[int]) -> bool:
    return len(one & other) >= ALIKE * len(one | other)


def _numbers(plain: str) -> list[str]:
    """Two texts that differ in a number ask different things, however much else they share."""
    return re.findall(r"\d+", plain)
