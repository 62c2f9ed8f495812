"""How long and how varied a node's texts are now, beside what it wrote first: what a drift shows that has no phrase of its own.

The length is the mean number of words; the variety is the entropy of all words together, numbers counted as one word. Training
moves both a little; a model that copies a style, repeats itself or forgets how to reason moves them far. It is said, and
refuses nothing. Pure bookkeeping in bounded memory.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Iterable, Sequence
from typing import Annotated

import msgspec
from msgspec import Meta

TEXTS = 512
"""Texts that are compared: the first so many with the newest so many."""
BUCKETS = 1024
"""Counters that words share by their checksum."""
LONGEST = 8192
"""Characters of a text that are read."""
LONGER, POORER = 2.0, 0.6
"""Said from this ratio of lengths on, either way, and from this one of entropies down."""
LEAST_WORDS, LEAST_BITS = 3.0, 2.0
"""A first length and entropy below which a ratio says nothing."""

_WORD = re.compile(r"[^\W\d_]+|\d+")
_Count = Annotated[int, Meta(ge=0, lt=2**40)]


class Texts(msgspec.Struct, frozen=True):
    """Counts over texts. words: in all; buckets: by the word's checksum."""

    texts: _Count = 0
    words: _Count = 0
    buckets: Annotated[tuple[_Count, ...], Meta(min_length=BUCKETS, max_length=BUCKETS)] = (0,) * BUCKETS

    @property
    def length(self) -> float:
        """Words a text."""
        return self.words / max(self.texts, 1)

    @property
    def entropy(self) -> float:
        """Bits a word."""
        return -sum(count / self.words * math.log2(count / self.words) for count in self.buckets if count)


def counted(texts: Iterable[str]) -> Texts:
    """The counts of these texts."""
    number, words, buckets = 0, 0, [0] * BUCKETS
    for text in texts:
        found = _WORD.findall(text[:LONGEST].lower())
        for word in found:
            buckets[zlib.crc32(b"0" if word.isdigit() else word.encode()) % BUCKETS] += 1
        number, words = number + 1, words + len(found)
    return Texts(number, words, tuple(buckets))


def together(parts: Sequence[Texts]) -> Texts:
    """Their sum."""
    return Texts(
        sum(part.texts for part in parts),
        sum(part.words for part in parts),
        tuple(map(sum, zip(*(part.buckets for part in parts), strict=True))) if parts else (0,) * BUCKETS,
    )


class TextDrift(msgspec.Struct):
    """Mutable. first: of the first TEXTS texts; newest: parts of the newest ones after these, oldest first."""

    first: Texts = Texts()
    newest: Annotated[list[Texts], Meta(max_length=TEXTS + 1)] = []

    def observe(self, texts: Iterable[str]) -> None:
        """The node wrote these."""
        part = counted(texts)
        if not part.texts:
            return
        if self.first.texts < TEXTS:
            self.first = together((self.first, part))
            return
        self.newest.append(part)
        while sum(p.texts for p in self.newest[1:]) >= TEXTS:
            self.newest.pop(0)

    def copy(self) -> TextDrift:
        """One that goes its own way from here on."""
        return TextDrift(self.first, list(self.newest))

    @property
    def alarm(self) -> str:
        """What has changed far, in a sentence; "" while nothing has."""
        now, first = together(self.newest), self.first
        if now.texts < TEXTS or first.length < LEAST_WORDS:
            return ""
        ratio = now.length / first.length
        if not 1 / LONGER < ratio < LONGER:
            return f"This model's answers have {now.length:.0f} words now and had {first.length:.0f} at first."
        if first.entropy >= LEAST_BITS and now.entropy < POORER * first.entropy:
            return (
                "This model's answers say less and less different things: "
                f"{now.entropy:.1f} bits a word now, {first.entropy:.1f} at first."
            )
        return ""
