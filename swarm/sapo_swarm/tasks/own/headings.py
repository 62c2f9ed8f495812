"""Names of columns: what stands above them in the file, as a prompt can hold it."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from itertools import count


def slug(name: str) -> str:
    """A heading in letters without accents, digits and underscores; "" where it has none of them, as in Chinese."""
    bare = unicodedata.normalize("NFKD", name.strip().replace("ß", "ss"))
    plain = re.sub(r"\W+", "_", re.sub(r"[\u0300-\u036f]", "", bare), flags=re.ASCII).strip("_").lower()
    return (f"column_{plain}" if plain[:1].isdigit() else plain)[:40].rstrip("_")


def columns(heads: Sequence[str], names: dict[str, str]) -> list[str]:
    """A name for each heading of a row, each once; one without a slug is called by its place.

    names: heading -> column, of the file so far; what is new is added. Headings that differ in case or accents alone are one
    column of different rows, and two where one row holds both.
    """
    cleaned = [head.strip() for head in heads]
    found: dict[int, str] = {}
    for place, head in sorted(enumerate(cleaned), key=lambda item: (item[1] not in names, item[1] != slug(item[1]))):
        plain = slug(head)
        name = names.get(head, plain)
        if not name or name in found.values():
            name = _free(plain, place + 1, {*found.values(), *names.values()})
        names.setdefault(head, name)
        found[place] = name
    return [found[place] for place in range(len(heads))]


def by_place(names: Mapping[str, str]) -> dict[str, str]:
    """Those whose column has its name from its place: where another file of the same task has them, they are the same."""
    return {head: name for head, name in names.items() if head and not slug(head)}


def _free(plain: str, place: int, taken: set[str]) -> str:
    begin = plain[:36] or "column"
    return next(name for number in count(place) if (name := f"{begin}_{number}") not in taken)
