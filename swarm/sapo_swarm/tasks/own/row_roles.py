"""What each row of a task is for: held out or trained on, at which level, and shown as a worked example. Pure."""

from __future__ import annotations

import functools
import hashlib
import re
import unicodedata
import zlib
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from sapo_swarm.tasks.own.import_rows import Row
from sapo_swarm.tasks.own.rules import HOLE
from sapo_swarm.tasks.own.spec import BadTask, TaskSpec, right_answer
from sapo_swarm.types import LEVEL_PREFIX

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

# Which rows train and which are held out: decided by content, so that the same rows split the same way everywhere.
#
# Rows that ask the same thing (apart from case, white space, quotes and a full stop), and long texts that are nearly
# the same, stay on one side: a model must not meet a held-out question in disguise.
#
# Two rules, named by `split` in task.toml so that a folder keeps its held-out rows: by content alone (held_out_places),
# and by content within each answer (balanced_places).

if TYPE_CHECKING:  # 0.2 s that the dashboard's first frame and a coordinator do without
    Shingles = NDArray[np.uint32]

LONG = 16
"""Two texts count as near-duplicates only from this many words on: in shorter ones every word may be the question."""
WIDTH = 2
"""Length in words of the pieces by which texts are compared."""
ALIKE = 0.7
"""From this share of common pieces on, two texts count as one."""
FEW_ANSWERS = 24
"""Up to this many different answers, they are treated as classes."""
HASHES = 8
_PRIME = (1 << 31) - 1


def prompt_key(prompt: str) -> str:
    """Equal for two prompts that ask the same."""
    plain = unicodedata.normalize("NFKC", prompt).casefold()
    return " ".join(re.sub(r"[\"'`´‘’“”«»]", "", plain).split()).strip(" .?!")


def cluster_prompts(prompts: Sequence[str]) -> list[int]:
    """A number for each prompt; prompts with the same number are duplicates or nearly so. Linear in their length."""
    clusters = list(range(len(prompts)))
    by_key: dict[str, int] = {}
    buckets: dict[int, int] = {}
    pieces: dict[int, tuple[bytes, Shingles]] = {}
    for place, prompt in enumerate(prompts):
        plain = prompt_key(prompt)
        first = by_key.setdefault(plain, place)
        if first != place:
            clusters[place] = clusters[first]
            continue
        if len(plain.split()) < LONG:
            continue
        shingles = _shingles(plain)
        numbers = _numbers(plain)
        pieces[place] = numbers, shingles
        others = dict.fromkeys(buckets.setdefault(bucket, place) for bucket in _sketch(shingles))
        for other in others:
            if other != place and pieces[other][0] == numbers and _alike_split(shingles, pieces[other][1]):
                clusters[place] = clusters[other]
                break
    return clusters


def held_out_places(prompts: Sequence[str], share: float) -> frozenset[int]:
    """Indices of the prompts that are held out: about `share` of the questions, by the SHA-256 of what they ask.

    At least one question, and never all of them if there are two. share: in (0, 1).
    """
    groups = cluster_prompts(prompts)
    order = {
        group: hashlib.sha256(prompt_key(prompts[group]).encode("utf-8", "replace")).digest() for group in set(groups)
    }
    ranked = sorted(order, key=lambda group: order[group])
    count = min(max(1, round(share * len(ranked))), max(0, len(ranked) - 1))
    chosen = set(ranked[:count])
    return frozenset(place for place, group in enumerate(groups) if group in chosen)


def balanced_places(prompts: Sequence[str], answers: Sequence[str], share: float) -> frozenset[int]:
    """The same within each answer: the held-out rows have the answers of all rows, in their proportions. With more than
    FEW_ANSWERS different answers it equals held_out_places.

    answers: of each prompt. Quotas are by the largest remainder; an answer with two questions or more has one on each side,
    if that many are held out.
    """
    classes = [prompt_key(answer) for answer in answers]
    if len(set(classes)) > FEW_ANSWERS:
        return held_out_places(prompts, share)
    groups = cluster_prompts(prompts)
    members: dict[int, Counter[str]] = defaultdict(Counter)
    for group, answer in zip(groups, classes, strict=True):
        members[group][answer] += 1
    strata: dict[str, list[int]] = defaultdict(list)
    for group, counted in members.items():  # rows of one question with different answers go with the commonest
        strata[min(counted, key=lambda answer: (-counted[answer], answer))].append(group)
    total = min(max(1, round(share * len(members))), max(0, len(members) - 1))
    quotas = _quotas({answer: len(found) for answer, found in strata.items()}, total)
    chosen: set[int] = set()
    for answer, found in strata.items():
        found.sort(key=lambda group: hashlib.sha256(prompt_key(prompts[group]).encode("utf-8", "replace")).digest())
        chosen.update(found[: quotas[answer]])
    return frozenset(place for place, group in enumerate(groups) if group in chosen)


def _quotas(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """How many of each are held out, by the largest remainder: `total` in all, a few less if an answer has too few."""
    exact = {name: total * size / sum(sizes.values()) for name, size in sizes.items()}
    quotas = {name: int(part) for name, part in exact.items()}
    by_rest = sorted(exact, key=lambda name: (quotas[name] - exact[name], name))
    for name in by_rest[: total - sum(quotas.values())]:
        quotas[name] += 1
    for name in sorted(sizes):
        largest = max(sorted(quotas), key=lambda other: quotas[other])
        if not quotas[name] and sizes[name] > 1 and quotas[largest] > 1:
            quotas[largest] -= 1
            quotas[name] = 1
        elif (
            quotas[name] == sizes[name] and sum(quotas.values()) > 1
        ):  # the last one of its answer is better trained on
            quotas[name] -= 1
    return quotas


def _shingles(plain: str) -> Shingles:
    """(S,) hashes of WIDTH consecutive words, each once, in order: four bytes each, so that 100,000 texts fit into memory."""
    import numpy as np

    words = plain.split()
    hashed = [
        zlib.crc32(" ".join(words[i : i + WIDTH]).encode("utf-8", "replace")) for i in range(len(words) - WIDTH + 1)
    ]
    return np.unique(np.array(hashed, dtype=np.uint32))


def _sketch(shingles: Shingles) -> list[int]:
    """MinHash: texts that share most of their pieces share some of these (Broder 1997)."""
    import numpy as np

    values = shingles.astype(np.uint64) % _PRIME  # (S,)
    factors = _factors()
    hashed = (values * factors[0] + factors[1]) % _PRIME  # (HASHES, S)
    return [number << 32 | minimum for number, minimum in enumerate(hashed.min(axis=1).tolist())]


@functools.cache
def _factors() -> NDArray[np.uint64]:
    """(2, HASHES, 1) factors of the hash functions, the same on every machine."""
    import numpy as np

    return np.random.default_rng(8).integers(1, _PRIME, size=(2, HASHES, 1), dtype=np.uint64)


def _alike_split(one: Shingles, other: Shingles) -> bool:
    import numpy as np

    shared = len(np.intersect1d(one, other, assume_unique=True))
    return shared >= ALIKE * (len(one) + len(other) - shared)


def _numbers(plain: str) -> bytes:
    """A key for the numbers in a text: two texts that differ in one ask different things, however much else they share."""
    return hashlib.sha256(" ".join(re.findall(r"\d+", plain)).encode()).digest()[:16]


# How hard the rows of a task are: levels that a node can choose between as it learns (run.curriculum = "presets").

MAX_LEVELS = 8
"""Most different values of the column; if there are more, they are cut into quarters, provided they are numbers."""
QUARTERS = 4


def rows_by_level(column: str, rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
    """Name of a level -> indices of its rows, the easiest first if the column holds numbers; {} without a column.

    Raises BadTask if the column holds more words than there can be levels.
    """
    if not column:
        return {}
    values = [row[column].strip() for row in rows]
    distinct = sorted(set(values))
    numbers = {value: number for value in distinct if (number := _number(value)) is not None}
    if len(numbers) == len(distinct):
        distinct.sort(key=lambda value: numbers[value])
        if len(distinct) > MAX_LEVELS:
            return _quarters([numbers[value] for value in values])
    if len(distinct) > MAX_LEVELS:
        raise BadTask(
            f"Column {column} has {len(distinct)} different words, and there are {MAX_LEVELS} levels of difficulty at most. "
            "Use fewer words, or numbers."
        )
    levels: dict[str, list[int]] = {}
    names = {value: _name(value, place) for place, value in enumerate(distinct, 1)}
    for value in distinct:
        levels[names[value]] = []
    for place, value in enumerate(values):
        levels[names[value]].append(place)
    return {name: tuple(places) for name, places in levels.items()}


def _quarters(values: list[float]) -> dict[str, tuple[int, ...]]:
    """The easiest quarter of the rows, the next one, and so on; rows of one value stay together."""
    ranked = sorted(values)
    edges = [ranked[(number * len(ranked)) // QUARTERS] for number in range(1, QUARTERS)]
    places: dict[int, list[int]] = {number: [] for number in range(QUARTERS)}
    for place, value in enumerate(values):
        places[sum(value >= edge for edge in edges)].append(place)
    return {f"{LEVEL_PREFIX}{number + 1}": tuple(found) for number, found in places.items() if found}


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?", text):
        return None
    return float(text)


def _name(value: str, place: int) -> str:
    """A name for use in a reference: letters, digits and underscores."""
    plain = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")[:20]
    return (
        f"{LEVEL_PREFIX}{place}" if not plain or plain.isdigit() or plain != value.lower() else f"{LEVEL_PREFIX}{plain}"
    )


# Worked examples in a question (few-shot prompting): which training rows are shown with their answers, and how they
# read.
#
# They are chosen by content alone, so that every node of a swarm that has the task asks the same. A held-out row is
# never an example, and no row is an example in its own question or in that of a near-duplicate.

SPARE = 3
"""Spare examples besides those shown: for the questions of rows that are examples themselves."""


def choose_examples(spec: TaskSpec, train: Sequence[Row]) -> tuple[Row, ...]:
    """The rows to show, and some spare ones, in order: short ones, each with a different answer as long as there are any."""
    if not spec.shots:
        return ()
    by_size = sorted(train, key=lambda row: (len(spec.cells(row)) + len(right_answer(spec, row)), _place(spec, row)))
    short = sorted(by_size[: max(len(by_size) // 2, spec.shots + SPARE)], key=lambda row: _place(spec, row))
    first: dict[str, Row] = {}
    for row in short:
        first.setdefault(right_answer(spec, row).strip().casefold(), row)
    chosen = list(first.values())
    questions = {spec.cells(row) for row in chosen}
    chosen += [row for row in short if spec.cells(row) not in questions]
    return tuple(chosen[: spec.shots + SPARE])


def ask_with_examples(spec: TaskSpec, examples: Sequence[Row], row: Row) -> str:
    """The row's question after `spec.shots` worked examples: the instruction once, then the lines with cells for each."""
    shown = [example for example in examples if not _alike_worked_examples(spec, example, row)][: spec.shots]
    before, cells, after = _parts(spec.prompt)
    name = spec.answer.replace("_", " ").strip().capitalize()

    def filled(lines: Sequence[str], of: Row) -> str:
        return spec.fill(of, "\n".join(lines)).strip()

    blocks = [filled(before, row)]
    blocks += [f"Example:\n{filled(cells, each)}\n{name}: {right_answer(spec, each).strip()}" for each in shown]
    now = filled(cells, row)
    blocks += [f"Now:\n{now}" if shown else now, filled(after, row)]
    return "\n\n".join(filter(None, blocks))


def _parts(prompt: str) -> tuple[list[str], list[str], list[str]]:
    """The prompt's lines before the first with a cell in it, from there to the last one with a cell, and the rest."""
    lines = prompt.split("\n")
    places = [place for place, line in enumerate(lines) if HOLE.search(line)]
    first, last = places[0], places[-1] + 1
    return lines[:first], lines[first:last], lines[last:]


def _place(spec: TaskSpec, row: Row) -> bytes:
    return hashlib.sha256(f"{spec.cells(row)}\0{right_answer(spec, row)}".encode("utf-8", "replace")).digest()


def _alike_worked_examples(spec: TaskSpec, one: Row, other: Row) -> bool:
    """They ask the same, or nearly so: the answer of one would reveal the other's."""

    return len(set(cluster_prompts([spec.cells(one), spec.cells(other)]))) == 1
