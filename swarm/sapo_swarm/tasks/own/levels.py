"""How hard the rows of a task are: levels, which a node can choose between as it learns (run.curriculum = "presets")."""

from __future__ import annotations

import re
from collections.abc import Sequence

from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.tasks.own.rows import Row

MAX_LEVELS = 8
"""Different values of the column; more of them are cut into QUARTERS where they are numbers."""
QUARTERS = 4
PREFIX = "level_"


def levels(column: str, rows: Sequence[Row]) -> dict[str, tuple[int, ...]]:
    """Name of a level -> places of its rows, the easiest first where the column holds numbers; {} without a column.

    Raises BadTask where the column holds more words than there can be levels.
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
    found: dict[str, list[int]] = {}
    names = {value: _name(value, place) for place, value in enumerate(distinct, 1)}
    for value in distinct:
        found[names[value]] = []
    for place, value in enumerate(values):
        found[names[value]].append(place)
    return {name: tuple(places) for name, places in found.items()}


def _quarters(values: list[float]) -> dict[str, tuple[int, ...]]:
    """The easiest quarter of the rows, the next one, and so on; rows of one value stay together."""
    ranked = sorted(values)
    edges = [ranked[(number * len(ranked)) // QUARTERS] for number in range(1, QUARTERS)]
    places: dict[int, list[int]] = {number: [] for number in range(QUARTERS)}
    for place, value in enumerate(values):
        places[sum(value >= edge for edge in edges)].append(place)
    return {f"{PREFIX}{number + 1}": tuple(found) for number, found in places.items() if found}


def _number(text: str) -> float | None:
    if not re.fullmatch(r"[-+]?[0-9]{1,15}(\.[0-9]{1,15})?", text):
        return None
    return float(text)


def _name(value: str, place: int) -> str:
    """A name for a reference: letters, digits and underscores."""
    plain = re.sub(r"[^a-z0-9]+", "_", value.lower()).strip("_")[:20]
    return f"{PREFIX}{place}" if not plain or plain.isdigit() or plain != value.lower() else f"{PREFIX}{plain}"
