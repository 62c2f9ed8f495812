"""The verifier of numbers."""

from __future__ import annotations

import re
from fractions import Fraction

from sapo_swarm.scoring.declared.case import Case, plain
from sapo_swarm.tasks.own.verifiers import Number

MAX_DIGITS = 60
MAX_EXPONENT = 300
MINUS = str.maketrans({"−": "-", "–": "-", "﹣": "-", "\u202f": " ", "\u00a0": " "})
"""What typesetting makes of a minus and of a blank between thousands."""
_RAISED = re.compile(r"(?<![^\W\d_])(?<!⁻)[⁰¹²³⁴-⁹₀-₉]")
"""A power or an index that is no part of a unit: NFKC would make 102 of 10²."""
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:[, ]\d{3})+(?:\.\d+)?\Z")
_PLAIN = re.compile(r"([-+]?(?:\d+\.?\d*|\.\d+))(?:[eE]([-+]?\d{1,4}))?\Z")
_FRACTION = re.compile(r"([-+]?\d+) ?/ ?(\d+)\Z")


def number(part: Number, case: Case) -> float:
    """1.0 within the tolerance. Computed exactly: 0.1 + 0.2 is 0.3 here. Junk, NaN and infinity are no numbers."""
    answer, unit = measure(case.answer, part)
    truth, wanted = measure(case.truth, part)
    if answer is None or truth is None or (wanted and unit != wanted and (unit or part.need_unit)):
        return 0.0
    allowed = max(Fraction(str(part.abs)), Fraction(str(part.rel)) * abs(truth))
    return float(abs(answer - truth) <= allowed)


def measure(text: str, part: Number) -> tuple[Fraction | None, str]:
    """A number (None where the text is none) and the unit behind or before it, "" for none."""
    if _RAISED.search(text):
        return None, ""
    names = sorted(filter(None, map(plain, part.units)), key=len, reverse=True)
    left, unit = plain(text.translate(MINUS)), ""
    if part.need_unit:
        left = _in_case(left, names)
    if not left.endswith(tuple(names)):
        left = left.rstrip(".")
    for name in names:
        if left.endswith(name) and len(left) > len(name):
            left, unit = left[: -len(name)].rstrip(), name
            break
        if left.startswith(name) and len(left) > len(name):
            left, unit = left[len(name) :].lstrip(), name
            break
    if part.decimal == ",":
        left = left.replace(".", " ").replace(",", ".") if "," in left else left.replace(".", ",")
    return _value(left), unit


def _in_case(text: str, names: list[str]) -> str:
    """The text with the unit at its end as the task writes it: 2 KM is 2 km, unless the task knows both."""
    folded = [name.casefold() for name in names]
    for name, fold in zip(names, folded, strict=True):
        end = text.rstrip(".")
        if end.casefold().endswith(fold) and len(end) > len(name) and not end[: -len(name)][-1:].isalpha():
            return text if end.endswith(name) or folded.count(fold) > 1 else f"{end[: -len(name)]}{name}"
    return text


def _value(text: str) -> Fraction | None:
    if sum(char.isdigit() for char in text) > MAX_DIGITS or not text.isascii():
        return None
    if _GROUPED.match(text):
        text = text.replace(",", "").replace(" ", "")
    if found := _FRACTION.match(text):
        return Fraction(int(found[1]), int(found[2])) if int(found[2]) else None
    found = _PLAIN.match(text)
    if found is None or abs(int(found[2] or 0)) > MAX_EXPONENT:
        return None
    return Fraction(text)
