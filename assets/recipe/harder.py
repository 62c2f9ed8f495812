"""The questions of a task that a starter hardly ever answers, as a pool of their own: a polish can be spent on them.

A group of answers teaches something only when some are right and some wrong. Questions that a model always or never answers stay
so at any temperature; training on the second kind alone brings them into between.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from recipe.data import Example
from recipe.mixture import HARDER

_WITHIN: dict[str, tuple[str, str]] = {
    "basic_arithmetic": ("prompt", r"\d\d"),
    "binary_matrix": ("completion", r"[4-8]"),
    "decimal_arithmetic": ("prompt", r"\d[*/]"),
    "arc_1d": ("completion", r"wrapped|reflect|right|own size|mark size|one step"),
}
"""Where to look, and for what: two digits; a cell four steps from the nearest 0; products and quotients; some rules."""


def is_harder(example: Example) -> bool:
    where, what = _WITHIN.get(example.dataset, ("prompt", r"(?!)"))
    return re.search(what, str(getattr(example, where))) is not None


def pools(examples: Iterable[Example], further: Iterable[Example] = ()) -> dict[str, list[Example]]:
    """Every task's examples by its name, and the harder ones of `examples` and of `further` by `mixture.HARDER` as well."""
    found: dict[str, list[Example]] = {}
    for example in examples:
        found.setdefault(example.dataset, []).append(example)
        if is_harder(example):
            found.setdefault(example.dataset + HARDER, []).append(example)
    for example in filter(is_harder, further):
        found.setdefault(example.dataset + HARDER, []).append(example)
    return found
