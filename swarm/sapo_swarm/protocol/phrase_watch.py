"""Whether a node's writing changes under others' teaching: phrases that they introduced, and sources whose texts it would
hardly ever write itself."""

from __future__ import annotations

import re
import secrets
from array import array
from collections import Counter, OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import islice
from typing import TYPE_CHECKING, Annotated

import msgspec
from msgspec import Meta

from sapo_swarm.scoring.prompts import before_answer
from sapo_swarm.tasks.own import library
from sapo_swarm.types import MAX_COMPLETION_BYTES, AnswerFormat, Question

if TYPE_CHECKING:
    from numpy import uint64
    from numpy.typing import NDArray

# The newest of many items, recognised by 64-bit fingerprints in two tables that are allocated once and never grow.

_BITS = 2**64 - 1
_DISCARDED = 1
"""Marks a discarded entry in a table; an empty slot has 0."""


def text_fingerprint(text: str) -> int:
    """More than 1, and the same on every machine."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "little") | 2


class RecentFingerprints:
    """Fingerprints: the `least` most recent ones, and up to as many before them; 32 to 64 bytes for each of `least`,
    allocated at once.

    Two generations, each a table with open addressing: when the newer one has `least`, the older one is forgotten, which
    costs nothing. A fingerprint's slot is secret, so nobody can choose fingerprints that crowd together.
    """

    __slots__ = ("_least", "_new", "_odd", "_old", "_shift", "_used")

    def __init__(self, least: int, told: bytes = b"") -> None:
        """told: what to_bytes() returned."""
        bits = (2 * least - 1).bit_length()
        self._least, self._odd, self._shift, self._used = least, secrets.randbits(64) | 1, 64 - bits, 0
        self._new, self._old = array("Q", bytes(8 << bits)), array("Q", bytes(8 << bits))
        for start in range(0, len(told) - 7, 8):
            self.add(int.from_bytes(told[start : start + 8], "little") | 2)

    def _place(self, table: array[int], key: int) -> int:
        """The slot of the fingerprint, or an empty one."""
        place = (key * self._odd & _BITS) >> self._shift
        while (entry := table[place]) and entry != key:
            place = (place + 1) % len(table)
        return place

    def add(self, key: int) -> None:
        """Add as the most recent. key: a fingerprint of 64 bits, greater than 1."""
        place = self._place(self._new, key)
        if self._new[place] == key:
            return
        if self._used == self._least:
            self._old, self._new, self._used = self._new, array("Q", bytes(8 * len(self._new))), 0
            place = self._place(self._new, key)
        self._new[place] = key
        self._used += 1

    def discard(self, key: int) -> None:
        """Remove as if it had never been added."""
        for table in (self._new, self._old):
            place = self._place(table, key)
            if table[place] == key:
                table[place] = _DISCARDED

    def _known(self) -> NDArray[uint64]:
        """Each once, those of the older generation first."""
        import numpy as np  # a coordinator, which keeps none, does without

        new, old = (np.frombuffer(table, np.uint64) for table in (self._new, self._old))
        lately = np.unique(new[new > _DISCARDED])
        return np.concatenate([np.setdiff1d(old[old > _DISCARDED], lately), lately])

    def to_bytes(self) -> bytes:
        """All of them, eight bytes each."""
        return self._known().astype("<u8").tobytes()

    def __contains__(self, key: int) -> bool:
        return self._new[self._place(self._new, key)] == key or self._old[self._place(self._old, key)] == key

    def __len__(self) -> int:
        return len(self._known())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecentFingerprints) and sorted(self._known()) == sorted(other._known())


# Phrases that others introduce: how many groups may teach one that this node never wrote, and whether it writes it now.
#
# Right answers can carry any text around them, and text that is trained on comes back. So each taught text is broken
# into phrases (three consecutive words, single long words, emoji, links and addresses, long numbers such as telephone
# numbers; other numbers, the judged answer and words of the question are left out). What this node wrote before anybody
# sent it is its own. Everything else is foreign: of the newest groups only a few may teach the same foreign phrase,
# whoever signed them, and once the node itself writes it often, that is reported and no group with it is taken any
# more. A phrase that was the node's own, but rare, may be taught without limit: it is reported when it has become
# common. Pure bookkeeping; it is saved with the model (`packed`, `unpacked`), since a restart must not turn foreign
# phrases into this node's own.
#
# The question itself is a phrase of another kind: its words differ each time, and a small model repeats it now and then
# without anybody's teaching. So what counts is how much more often others' taught texts repeat it than the base did.

WINDOW = 256
"""Newest groups taken, over all sources;"""
LIMIT = 3
"""at most this many of them may teach one foreign phrase."""
WORDS = 3
"""Words of a phrase."""
REAL_WORDS = 2
"""At least this many of them are neither numbers nor words of the question: steps of a calculation look alike everywhere."""
LONGEST_WORD = 40
"""Letters of a word that count: memory is bounded in bytes too."""
LONG_WORD = 4
"""A single word counts as a phrase from this many letters on."""
REMEMBERED = 65_536
"""Phrases remembered of either kind, and up to as many more."""
MOST_FOREIGN = 2048
"""Most foreign phrases of a group that is taken. A token makes two phrases at most, so a group of the default size (7 of 8
completions taught, of 96 tokens) cannot have more than 1,344, even if every word of it were new;"""
PHRASES_LONGER = 2.0
"""if this node's own texts are longer, this multiple of their phrases."""
MOST_TAKEN = WINDOW * MOST_FOREIGN
"""Most phrases remembered of the newest groups taken, of which there are fewer then: about 100 MB."""
LOCAL_WINDOW = 512
"""Newest local completions that the drift alarm considers."""
DRIFT, LEAST_DRIFT = 0.05, 16
"""Share of them, and number, that may hold one foreign phrase."""
MIN_LOCAL = 64
"""Local completions before anything is called foreign;"""
BASE_LOCAL = 512
"""the first BASE_LOCAL are the base's: what they hold is the node's own, whoever sent it meanwhile (few groups may teach it)."""
RARE = 2
"""A phrase is rare if at most this many of the base's completions hold it;"""
COMMON, CARRIED = 0.5, 0.1
"""it has become common through others if this share of the newest local completions holds it, and more than CARRIED * WINDOW
of the newest groups taken."""
LOCAL_A_ROUND = 64
"""Local completions of a round that are read: enough to characterise the node's writing, in a few milliseconds."""
PHRASES_LONGEST = MAX_COMPLETION_BYTES // 2
"""Characters of a text that are read from either end: all of what others may send."""

REPEATED_RUN, REPEATED_WORDS = 4, 8
"""A text repeats its question if this many of its words stand in runs of at least REPEATED_RUN words of the question."""

_PHRASES_WORD = re.compile(r"[^\W\d_]+|\d+|[^\w\s\x00-\u25ff\u27c0-\u2aff]")
"""Letters, digits, or one sign beyond those that calculations and sentences use: emoji above all."""


_LINK = re.compile(
    r"(?:https?://|www\.)[^\s<>\"'()]{2,}|@[\w.-]{3,}|(?<![\w.-])[a-z\d-]{1,63}(?:\.[a-z\d-]{1,63}){0,4}\.[a-z]{2,24}/"
)
"""A web address, an e-mail address or a network handle, in lower case."""
_NUMBERS = re.compile(r"(?<![\w.,])\d{2,}(?:[ ./,-]\d{2,})*")
LONG_NUMBER, FEWEST_DIGITS = 7, 3
"""Consecutive numbers count as a phrase from this many digits on, with at least this many different ones: 1,000,000 recurs in
one question after another, other long numbers do not."""


def _links(text: str) -> Iterator[str]:
    """The host of each link, without its path, which could be a different one each time."""
    for match in _LINK.findall(text):
        yield match.removeprefix("https://").removeprefix("http://").split("/")[0].rstrip(".,;:!?")[:LONGEST_WORD]


def _long_numbers(text: str) -> Iterator[str]:
    """From consecutive numbers separated by at most a blank, a point or a dash, the shortest runs of LONG_NUMBER digits.
    Decimal fractions do not count: 1/3 has many digits in everybody's answers."""
    for match in _NUMBERS.findall(text):
        parts: list[str] = []
        for part in re.split("[ /,-]", match):
            if part.count(".") == 1:
                parts = []
            else:
                parts += part.split(".")
            run: list[str] = []
            for piece in reversed(parts[-LONG_NUMBER:]):
                run.insert(0, piece)
                if sum(map(len, run)) >= LONG_NUMBER:
                    if len(set("".join(run))) >= FEWEST_DIGITS:
                        yield " ".join(run)[:LONGEST_WORD]
                    break


def repeats_question(text: str, prompt: str) -> bool:
    """Whether the text has REPEATED_WORDS words of the question in its order. Linear in the length of both."""
    asked = _PHRASES_WORD.findall(prompt.lower())
    words = _PHRASES_WORD.findall(text[: 2 * PHRASES_LONGEST].lower())
    runs = {tuple(asked[start : start + REPEATED_RUN]) for start in range(len(asked) - REPEATED_RUN + 1)}
    repeated = until = 0
    for start in range(len(words) - REPEATED_RUN + 1):
        if tuple(words[start : start + REPEATED_RUN]) in runs:
            repeated += start + REPEATED_RUN - max(start, until)
            until = start + REPEATED_RUN
    return repeated >= REPEATED_WORDS


def extract_phrases(text: str, prompt: str) -> frozenset[str]:
    """The phrases of a text without its answer; prompt: the question, whose words do not count. Linear in the length of both."""
    prompt_words = set(_PHRASES_WORD.findall(prompt.lower()))
    read = text if len(text) <= 2 * PHRASES_LONGEST else text[:PHRASES_LONGEST] + " " + text[-PHRASES_LONGEST:]
    words = [
        "0" if word.isdigit() else "?" if word in prompt_words else word[:LONGEST_WORD]
        for word in _PHRASES_WORD.findall(read.lower())
    ]
    phrases = {word for word in words if len(word) >= LONG_WORD or not (word == "?" or word.isalnum())}
    for start in range(len(words) - WORDS + 1):
        part = words[start : start + WORDS]
        if sum(word not in "0?" for word in part) >= REAL_WORDS:
            phrases.add(" ".join(part))
    lower, asked = read.lower(), prompt.lower()
    phrases.update(phrase for phrase in (*_links(lower), *_long_numbers(lower)) if phrase and phrase not in asked)
    return frozenset(phrases)


_Phrase = Annotated[str, Meta(max_length=WORDS * (LONGEST_WORD + 1))]
_Found = tuple[_Phrase, ...]
_Known = Annotated[bytes, Meta(max_length=16 * REMEMBERED)]


class KeptPhrases(msgspec.Struct, frozen=True, kw_only=True):
    """A saved PhraseWatch. own, foreign: from RecentFingerprints.to_bytes(). taken, local, repeated: windows, oldest first.
    base: how many completions of the base held a phrase, for those that are not rare. base_repeats: how many repeated their
    question."""

    own: _Known
    foreign: _Known
    taken: Annotated[tuple[_Found, ...], Meta(max_length=WINDOW)]
    local: Annotated[tuple[_Found, ...], Meta(max_length=LOCAL_WINDOW)]
    observed: Annotated[int, Meta(ge=0, lt=2**53)]
    base: Annotated[dict[_Phrase, int], Meta(max_length=REMEMBERED)] = {}
    usual: Annotated[float, Meta(ge=0, lt=2**20)] = 0.0
    repeated: Annotated[tuple[Annotated[float, Meta(ge=0, le=1)], ...], Meta(max_length=WINDOW)] = ()
    base_repeats: Annotated[int, Meta(ge=0, le=BASE_LOCAL)] = 0
    format: Annotated[int, Meta(ge=1, le=1)] = 1


@dataclass(slots=True)
class PhraseWatch:
    """What is this node's own and what is foreign. drifted, amplified: foreign phrases that it now writes often, and rare
    ones of its own, with the share of its newest completions that hold them. answer_format: where answers stand."""

    drifted: dict[str, float] = field(default_factory=dict)
    amplified: dict[str, float] = field(default_factory=dict)
    answer_format: AnswerFormat = "tags"
    _base: Counter[str] = field(default_factory=Counter)
    _own: RecentFingerprints = field(default_factory=lambda: RecentFingerprints(REMEMBERED))
    _foreign: RecentFingerprints = field(default_factory=lambda: RecentFingerprints(REMEMBERED))
    _taken: deque[frozenset[str]] = field(default_factory=deque)
    _taught: Counter[str] = field(default_factory=Counter)
    _carriers: deque[frozenset[str]] = field(default_factory=deque, compare=False)
    _carried: Counter[str] = field(default_factory=Counter, compare=False)
    """Rare phrases of its own that this node already writes often, in the newest groups taken since its start."""
    _local: deque[frozenset[str]] = field(default_factory=deque)
    _written: Counter[str] = field(default_factory=Counter)
    _repeated: deque[float] = field(default_factory=lambda: deque(maxlen=WINDOW))
    """For each of the newest groups taken, the part of its taught texts that repeats the question."""
    _base_repeats: int = 0
    _observed: int = 0
    _usual: float = 0.0
    """Phrases per completion of this node, a running mean."""

    def observe_local(self, written: Iterable[tuple[str, Question]]) -> None:
        """Add completions that this node wrote, each with its question."""
        read = list(islice(written, LOCAL_A_ROUND))
        for text, question in read:
            phrases = self._phrases(text, question)
            if self._observed < BASE_LOCAL:
                self._count_base(phrases)
                self._base_repeats += self._repeats(text, question)
            for phrase in phrases:
                if self._observed < BASE_LOCAL:
                    self._foreign.discard(text_fingerprint(phrase))
                elif self._is_foreign(phrase):
                    continue
                self._own.add(text_fingerprint(phrase))
            self._observed += 1
            self._usual += (len(phrases) - self._usual) / min(self._observed, LOCAL_WINDOW)
            self._slide(self._local, self._written, frozenset(filter(self._is_watched, phrases)), LOCAL_WINDOW)
        self._look()

    def _count_base(self, found: frozenset[str]) -> None:
        """Count another of the base's completions. After the last one, or if there are too many phrases, only those that are
        not rare stay."""
        self._base.update(found)
        if self._observed == BASE_LOCAL - 1 or len(self._base) > REMEMBERED:
            self._base = Counter({phrase: count for phrase, count in self._base.items() if count > RARE})

    def _phrases(self, text: str, question: Question) -> frozenset[str]:
        """Phrases of everything but the judged answer."""
        elsewhere = library.answers_elsewhere(question.ref)
        return extract_phrases(text if elsewhere else before_answer(self.answer_format, text), question.prompt)

    def _repeats(self, text: str, question: Question) -> bool:
        """The text repeats its question before the answer. Where the whole text is the answer, it may be asked to."""
        if library.answers_elsewhere(question.ref):
            return False
        return repeats_question(before_answer(self.answer_format, text), question.prompt)

    def repeats_allowed(self, taught: Sequence[str], question: Question) -> float | None:
        """The part of these texts that repeats the question, for count_taken(); None if the group may not be taken: others'
        taught texts would repeat it more often than the base did, by more than LIMIT groups' worth in the newest WINDOW."""
        part = sum(self._repeats(text, question) for text in taught) / max(1, len(taught))
        usual = self._base_repeats / max(1, min(self._observed, BASE_LOCAL))
        above = part + sum(self._repeated) - usual * (1 + len(self._repeated))
        return None if part and self._observed >= MIN_LOCAL and above > LIMIT else part

    def _is_foreign(self, phrase: str) -> bool:
        """Others introduced it: recently, or remembered from earlier."""
        key = text_fingerprint(phrase)
        return key in self._foreign or (phrase in self._taught and key not in self._own)

    def _is_watched(self, phrase: str) -> bool:
        """Foreign, or the node's own and rare in what the base wrote."""
        return phrase not in self._base or self._is_foreign(phrase)

    def _look(self) -> None:
        """Update which foreign phrases this node writes often now, and which rare ones of its own."""
        often = {
            phrase: count / len(self._local)
            for phrase, count in self._written.items()
            if count >= LEAST_DRIFT and count > DRIFT * len(self._local)
        }
        self.drifted = {phrase: part for phrase, part in often.items() if self._is_foreign(phrase)}
        self.amplified = {
            phrase: part
            for phrase, part in often.items()
            if self._base and self._observed >= BASE_LOCAL and phrase not in self._base and phrase not in self.drifted
            if part > COMMON and self._carried[phrase] > CARRIED * WINDOW
        }

    def phrases_allowed(self, taught: Sequence[str], question: Question) -> frozenset[str] | None:
        """The phrases of a group that would teach these texts, for count_taken(); None if it may not be taken."""
        if self._observed < MIN_LOCAL:
            return frozenset()
        phrases = frozenset().union(*(self._phrases(text, question) for text in taught))
        foreign = [phrase for phrase in phrases if text_fingerprint(phrase) not in self._own]
        spread = any(phrase in self.drifted or self._taught[phrase] >= LIMIT for phrase in foreign)
        return (
            None if spread or len(foreign) > max(MOST_FOREIGN, PHRASES_LONGER * self._usual * len(taught)) else phrases
        )

    def count_taken(self, phrases: frozenset[str], repeated: float | None = None) -> None:
        """Count a group as taken; repeated: the part of its taught texts that repeats the question, None if it teaches none.
        Refused groups are not remembered: they must not push out taught ones."""
        if repeated is not None:
            self._repeated.append(repeated)
        if not phrases:
            return
        foreign = frozenset(phrase for phrase in phrases if text_fingerprint(phrase) not in self._own)
        for phrase in foreign:
            self._foreign.add(text_fingerprint(phrase))
        self._slide(self._taken, self._taught, foreign, WINDOW)
        rare = (phrase for phrase in phrases if self._written[phrase] >= LEAST_DRIFT and phrase not in foreign)
        self._slide(self._carriers, self._carried, frozenset(rare), WINDOW)

    @property
    def alarm(self) -> str:
        """The foreign phrase that this node writes most, in a sentence; "" if there is none."""
        if self.drifted:
            return (
                f"This model now writes {_longest(self.drifted)} of its attempts, and never did before others sent it. Groups "
                "with it are refused. To go back to older weights: sapo-desktop runs"
            )
        if self.amplified:
            return (
                f"This model now writes {_longest(self.amplified)} of its attempts, and hardly ever did before it was trained. "
                "Groups of others carry it. If that is not what you want, older weights: sapo-desktop runs"
            )
        return ""

    def packed(self) -> KeptPhrases:
        """The whole state as a record."""
        return KeptPhrases(
            own=self._own.to_bytes(),
            foreign=self._foreign.to_bytes(),
            taken=tuple(map(tuple, self._taken)),
            local=tuple(map(tuple, self._local)),
            observed=self._observed,
            base=dict(self._base),
            usual=self._usual,
            repeated=tuple(self._repeated),
            base_repeats=self._base_repeats,
        )

    @staticmethod
    def unpacked(kept: KeptPhrases) -> PhraseWatch:
        """Inverse of packed()."""
        own, foreign = (RecentFingerprints(REMEMBERED, known) for known in (kept.own, kept.foreign))
        watch = PhraseWatch(_own=own, _foreign=foreign)
        watch._observed, watch._usual = kept.observed, kept.usual
        watch._base = Counter(kept.base)
        watch._repeated.extend(kept.repeated)
        watch._base_repeats = kept.base_repeats
        for found in kept.taken:
            watch._slide(watch._taken, watch._taught, frozenset(found), WINDOW)
        for found in kept.local:
            watch._slide(watch._local, watch._written, frozenset(found), LOCAL_WINDOW)
        watch._look()
        return watch

    @staticmethod
    def _slide(window: deque[frozenset[str]], counts: Counter[str], found: frozenset[str], size: int) -> None:
        window.append(found)
        counts.update(found)
        while len(window) > size or (len(window) > 1 and sum(map(len, window)) > MOST_TAKEN):
            for phrase in window.popleft():
                counts[phrase] -= 1
                if not counts[phrase]:
                    del counts[phrase]


def _longest(parts: dict[str, float]) -> str:
    """The phrase with most words, and the share of completions that hold it."""
    phrase = max(parts, key=lambda found: (len(found.split()), parts[found], found))
    return f"“{phrase}” in {parts[phrase]:.0%}"


# Which sources send much that this node's model would hardly ever write: judged by their newest groups together.
#
# A floor for single groups leaves an attacker those that pass it, and one of them per round is all that a batch takes
# from a source. Of text with shuffled words half of a source's groups fall below the floor, of honest text none
# (docs/decisions/0009-likelihood.md), so a few that do are enough to refuse the others too. Judging continues
# meanwhile: a source whose newest groups are likely again is accepted again. Pure bookkeeping.

NEWEST = 20
"""Groups of a source that are considered together;"""
MOST = 3
"""and how many of them may be unlikely."""
SOURCES = 8192
"""Sources remembered; the one that was silent longest starts anew."""


@dataclass(slots=True)
class UnlikelySources:
    """newest: for each source, whether its newest groups were below the floor, the newest last."""

    newest: OrderedDict[str, deque[bool]] = field(default_factory=OrderedDict)

    def judged(self, node: str, unlikely: bool) -> None:
        """Register a group of the source."""
        newest = self.newest.setdefault(node, deque(maxlen=NEWEST))
        self.newest.move_to_end(node)
        newest.append(unlikely)
        if len(self.newest) > SOURCES:
            self.newest.popitem(last=False)

    def allows(self, node: str) -> bool:
        """Whether few enough of the source's newest groups were below the floor."""
        return sum(self.newest.get(node, ())) <= MOST
