"""Answers a little beside the truth, and which of them a task's verifier takes for right.

`tests/benchmarks/near_misses.py` prints the list that `tasks NAME` shows.
"""

from __future__ import annotations

import decimal
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from sapo_swarm.scoring.verify import fresh_context, raw_score
from sapo_swarm.tasks.questions import NoSuchQuestion, generate_entry
from sapo_swarm.types import TaskRef

FIRST_SEED, STEP = 1000, 7


def _character(text: str, rng: random.Random, kind: Callable[[str], bool], others: str) -> str | None:
    places = [place for place, char in enumerate(text) if kind(char)]
    if not places:
        return None
    place = rng.choice(places)
    return text[:place] + rng.choice([char for char in others if char != text[place]]) + text[place + 1 :]


def _left_out(text: str, rng: random.Random) -> str:
    place = rng.choice([place for place, char in enumerate(text) if not char.isspace()])
    return text[:place] + text[place + 1 :]


def _exchanged(text: str, rng: random.Random) -> str | None:
    words = re.split(r"(\s+)", text)
    if len(words) < 3:
        return None
    first, second = rng.sample(range(0, len(words), 2), 2)
    words[first], words[second] = words[second], words[first]
    return "".join(words)


LETTERS = "abcdefghijklmnopqrstuvwxyz"
KINDS: dict[str, Callable[[str, random.Random], str | None]] = {
    "another digit": lambda t, r: _character(t, r, str.isdigit, "0123456789"),
    "another letter": lambda t, r: (
        _character(t, r, str.islower, LETTERS) or _character(t, r, str.isupper, LETTERS.upper())
    ),
    "a character left out": _left_out,
    "two words exchanged": _exchanged,
    "other capitals": lambda t, _: t.swapcase(),
    "other spaces": lambda t, _: t.replace(" ", "  "),
    "no spaces": lambda t, _: t.replace(" ", ""),
    "words before it": lambda t, _: f"It is {t}",
    "words behind it": lambda t, _: f"{t} in all",
    "the answer twice": lambda t, _: f"{t} {t}",
    "quotation marks": lambda t, _: f'"{t}"',
    "brackets": lambda t, _: f"[{t}]",
    "a full stop": lambda t, _: f"{t}.",
    "a leading zero or plus sign": lambda t, _: f"+{t}" if t[:1].isdigit() else None,
    "zeros behind the point": lambda t, _: (
        f"{t}0" if re.fullmatch(r"-?\d+\.\d+", t) else f"{t}.0" if re.fullmatch(r"-?\d+", t) else None
    ),
}
"""What is done to the true answer; None where it cannot be done."""


def truth(entry: dict[str, Any]) -> str:
    """The answer that the generator names, or its example."""
    return str(entry["answer"] or entry["metadata"].get("example_answer") or "")


def tried(task: str, preset: str, seeds: int) -> Iterator[tuple[str, str, str, bool]]:
    """Kind, truth, text, and whether it has full marks, over so many questions; questions without a truth are left out."""
    for number in range(seeds):
        decimal.setcontext(fresh_context())
        try:
            dataset, entry = generate_entry(TaskRef(task, preset, FIRST_SEED + STEP * number))
        except NoSuchQuestion:
            continue
        right, rng = truth(entry), random.Random(number)
        for kind, change in KINDS.items():
            text = change(right, rng) if right.strip() else None
            if text is None or not text.strip() or text.strip() == right.strip():
                continue
            decimal.setcontext(fresh_context())
            try:
                found = raw_score(text.strip(), task, dataset, entry, preset) == 1.0
            except Exception:  # as in score_text: a verifier may raise anything
                found = False
            yield kind, right, text, found


def shares(task: str, preset: str, seeds: int) -> dict[str, float]:
    """Kind -> share of such texts with full marks, only the kinds that have any."""
    rows = list(tried(task, preset, seeds))
    total, right = Counter(row[0] for row in rows), Counter(row[0] for row in rows if row[3])
    return {kind: right[kind] / total[kind] for kind in KINDS if right[kind]}
