"""How far a judge agrees with a person: accuracy and Cohen's kappa (Cohen 1960), each with a 95 % interval."""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

LEAST = 20
"""Ratings below which nothing is said of a judge."""
LEAST_EACH = 5
"""Good ones, and bad ones: a judge that always says yes agrees with a person who rated nothing bad."""
Z95 = 1.959963984540054


class Agreement(msgspec.Struct, frozen=True):
    """Over `items` answers that a person rated, `good` of them good. unreadable: the judge gave no verdict; they count as bad.

    tokens: that the judge read and wrote for all of them, as it says. Intervals are of 95 %: Wilson's for the accuracy, for
    kappa that of its asymptotic standard error (Fleiss, Cohen and Everitt 1969, at the observed table), cut to [-1, 1].
    """

    items: int
    good: int
    accuracy: float
    accuracy_low: float
    accuracy_high: float
    kappa: float
    kappa_low: float
    kappa_high: float
    unreadable: int = 0
    tokens: int = 0

    @property
    def enough(self) -> bool:
        """There are ratings of both kinds to say something."""
        return self.items >= LEAST and min(self.good, self.items - self.good) >= LEAST_EACH


def agreement(
    person: Sequence[bool], judge: Sequence[bool | None], wilson: tuple[float, float] = (0, 1), tokens: int = 0
) -> Agreement:
    """person, judge: (N,) good or not, N > 0; None where the judge gave no verdict. wilson: the accuracy's interval."""
    n = len(person)
    said = [verdict is True for verdict in judge]
    table = [[0.0, 0.0], [0.0, 0.0]]  # [person][judge], shares
    for one, other in zip(person, said, strict=True):
        table[one][other] += 1 / n
    observed = table[0][0] + table[1][1]
    rows = [sum(table[i]) for i in (0, 1)]
    columns = [table[0][i] + table[1][i] for i in (0, 1)]
    by_chance = sum(rows[i] * columns[i] for i in (0, 1))
    kappa = (observed - by_chance) / (1 - by_chance) if by_chance < 1 else 0.0
    half = Z95 * _error(table, rows, columns, observed, by_chance, n) if by_chance < 1 else 1.0
    return Agreement(
        items=n,
        good=sum(person),
        accuracy=observed,
        accuracy_low=wilson[0],
        accuracy_high=wilson[1],
        kappa=kappa,
        kappa_low=max(-1.0, kappa - half),
        kappa_high=min(1.0, kappa + half),
        unreadable=sum(verdict is None for verdict in judge),
        tokens=tokens,
    )


def _error(
    table: Sequence[Sequence[float]],
    rows: Sequence[float],
    columns: Sequence[float],
    observed: float,
    by_chance: float,
    n: int,
) -> float:
    """The standard error of kappa. A table without a disagreement has none; then it is what one of them moves kappa by."""
    if observed >= 1.0:
        return math.sqrt(1.0 / n / n) / (1 - by_chance)
    scale = 1 - by_chance
    agreed = sum(table[i][i] * (scale - (rows[i] + columns[i]) * (1 - observed)) ** 2 for i in (0, 1))
    apart = (1 - observed) ** 2 * sum(table[i][1 - i] * (columns[i] + rows[1 - i]) ** 2 for i in (0, 1))
    rest = (observed * by_chance - 2 * by_chance + observed) ** 2
    return math.sqrt(max(0.0, agreed + apart - rest) / n) / scale**2
