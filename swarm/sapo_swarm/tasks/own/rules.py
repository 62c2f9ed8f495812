"""Rules that an answer keeps, in words, for a task whose rows hold questions and no answers.

`3 to 8 words; contains {word}; ends with !` are three rules. An answer earns the share of them that it keeps, and is right
when it keeps all: a model that keeps two of three is shown the way to the third.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

MOST_RULES = 12
HOLE = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]{0,39})\}")
"""The place of a row's cell in a rule or a prompt."""
GRAMMAR = (
    "Write rules with a semicolon between them: 3 to 8 words; at most 60 characters; at least 2 lines; exactly 1 line; "
    "contains TEXT; without TEXT; starts with TEXT; ends with TEXT. TEXT may be a {column}, and stands in double quotes "
    "if it holds a semicolon"
)
_CLAUSE = re.compile(r'(?:"[^"]*"|[^;"]|"(?=[^"]*\Z))+')
_COUNT = re.compile(
    r"(?:at most (?P<most>\d{1,6})|at least (?P<least>\d{1,6})|(?P<low>\d{1,6}) (?:to|-|–) (?P<high>\d{1,6})|"
    r"(?:exactly )?(?P<exact>\d{1,6})) (?P<unit>word|character|line)s?",
    re.IGNORECASE,
)
_TEXT = re.compile(r"(?P<verb>contains|without|starts with|ends with) (?P<text>.+)", re.IGNORECASE)
_UNBOUNDED = 1_000_000


@dataclass(frozen=True)
class Rule:
    """One rule. what: word, character or line, whose number lies within least and most; or a verb, and the text it is about."""

    what: str
    least: int = 0
    most: int = _UNBOUNDED
    text: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that the text names."""
        return tuple(HOLE.findall(self.text))

    def kept(self, answer: str, row: Mapping[str, str]) -> bool:
        """Whether the answer keeps it. Texts are compared whatever their case, spacing and Unicode form, and as whole words."""
        if not self.text:
            return self.least <= _COUNTED[self.what](answer) <= self.most
        plain = _plain(answer)
        text = _plain(HOLE.sub(lambda hole: row.get(hole[1], ""), self.text))
        if self.what == "starts with":
            return plain.startswith(text)
        if self.what == "ends with":
            return plain.endswith(text)
        before, after = (r"(?<!\w)" if text[:1].isalnum() else "", r"(?!\w)" if text[-1:].isalnum() else "")
        stands = re.search(before + re.escape(text) + after, plain) is not None
        return stands is (self.what == "contains")


_COUNTED: dict[str, Callable[[str], int]] = {
    "word": lambda answer: len(answer.split()),  # a lone ! counts: what does not is written without end
    "character": len,
    "line": lambda answer: sum(line.strip() != "" for line in answer.splitlines()),
}


@lru_cache(maxsize=256)
def parse_rules(text: str) -> tuple[Rule, ...]:
    """The rules in a text. Raises ValueError that names the one which cannot be read."""
    clauses = [" ".join(clause.split()) for clause in _CLAUSE.findall(text.replace("\n", ";"))]
    rules = tuple(_rule(clause) for clause in clauses if clause)
    if not 1 <= len(rules) <= MOST_RULES:
        raise ValueError(f"{len(rules)} rules; a task has 1 to {MOST_RULES}. {GRAMMAR}.")
    return rules


def _rule(clause: str) -> Rule:
    if match := _COUNT.fullmatch(clause):
        most, least, low, high, exact = (match[name] for name in ("most", "least", "low", "high", "exact"))
        first, last = int(exact or low or least or 0), int(exact or high or most or _UNBOUNDED)
        if first > last or last == 0:
            raise ValueError(f"No answer can keep the rule {clause!r}.")
        return Rule(match["unit"].lower(), first, last)
    if match := _TEXT.fullmatch(clause):
        told = match["text"].strip()
        quoted = len(told) > 2 and told[0] == told[-1] == '"'
        return Rule(match["verb"].lower(), text=told[1:-1] if quoted else told)
    raise ValueError(f"{clause[:80]!r} is no rule. {GRAMMAR}.")


def share_kept(rules: str, answer: str, row: Mapping[str, str]) -> float:
    """The share of the rules that an answer to this row's question keeps, 1.0 for all. row: its cells by column."""
    each = parse_rules(rules)
    return sum(rule.kept(answer, row) for rule in each) / len(each)


def longest_answer(rules: str) -> int:
    """Characters that an answer may have, 0 where no rule limits them; a word counts as ten."""
    limits = [
        rule.most * {"word": 10, "character": 1}[rule.what]
        for rule in parse_rules(rules)
        if rule.what in ("word", "character")
    ]
    return min((limit for limit in limits if limit < _UNBOUNDED), default=0)


def _plain(text: str) -> str:
    return " ".join(unicodedata.normalize("NFKC", text).split()).casefold()
