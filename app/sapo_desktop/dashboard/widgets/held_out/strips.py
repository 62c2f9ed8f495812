"""Held-out pass@1 of every task over time: a strip of cells each, whose height and colour say how much, and figures beside it."""

from __future__ import annotations

from collections.abc import Iterable

from textual.content import Content

from sapo_desktop.dashboard.history.figures import HeldOut
from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import fit, plain
from sapo_desktop.dashboard.state import DashboardState
from sapo_desktop.services.against_base import base_scores
from sapo_swarm.events import TaskScore

MUTED = "$muted"
SHORTCUT = "shortcut: "
"""Before a task with an answer-only shortcut: most of its score can be had with the answers to other questions."""
FIGURES = 80
"""Columns from which every cell holds its figure."""
_HEAD = "after round"
_CELL = 5
"""Columns of such a cell."""
_FIGURE = 10
"""Columns of a task's first and newest figure."""
_STYLES = ("$muted", "$chart-local", "bold $chart-local")
"""Of the lowest, middle and highest third."""

Columns = list[tuple[float, float]]
"""First and last round of every column."""


def strips(state: DashboardState, width: int, height: int, glyphs: Glyphs) -> list[Content]:
    """A line a task, the largest gain over the base first, as many as fit; from FIGURES columns on with the rounds above.

    All cells are on one scale, from 0 to the largest of them.
    """
    latest, held = state.latest, state.figures.held_out
    if latest is None or not latest.tasks or height <= 0:
        return []
    before = base_scores(latest, state.base)
    scores = sorted(latest.tasks, key=lambda score: before.get(score.task, 0.0) - score.pass_at_1)
    wide, cell = width >= FIGURES, _CELL if width >= FIGURES else 1
    name = _name_room(scores, width, wide)
    columns = columns_of(held, max((width - name - _FIGURE) // cell, 0))
    shown = scores if len(scores) <= height - wide else scores[: max(height - wide - 1, 1)]
    values = {score.task: cells(held.tasks.get(score.task, Series()), columns) for score in scores}
    top = max((value for row in values.values() for value in row if value is not None), default=0.0) or 1.0
    rows = [_rounds(columns, name)] if wide else []
    stretch = 1 if wide else max((width - name - _FIGURE) // max(len(columns), 1), 1)
    for score in shown:
        strip = Content("").join(_cell(value, top, wide, stretch, glyphs) for value in values[score.task])
        label = fit((SHORTCUT if score.shortcut else "") + plain(score.task, 60), name - 1) + " "
        figure = _change(before.get(score.task), score.pass_at_1, glyphs)
        gap = width - name - strip.cell_length - len(figure)
        rows.append(Content.assemble(label, strip, " " * max(min(gap, 2) if wide else gap, 0), (figure, MUTED)))
    if len(shown) < len(scores) and len(rows) < height:
        rows.append(Content.styled(f"{len(scores) - len(shown)} more: e 3 times", MUTED))
    return rows[:height]


def columns_of(held: HeldOut, room: int) -> Columns:
    """A column a result; where they are more than there is room for, equal stretches of rounds."""
    ends = [(first, last) for first, last, _ in held.mean.buckets()]
    if len(ends) <= room or room < 1:
        return ends[-room:] if room >= 1 else []
    begin, end = ends[0][0], ends[-1][1]
    step = (end - begin) / room
    edges = [begin + place * step for place in range(room)]
    return [(edge + (step * 1e-6 if place else 0.0), edge + step) for place, edge in enumerate(edges)]


def cells(series: Series, columns: Columns) -> list[float | None]:
    """The mean of the results in each column; where there is none, the one before."""
    found: list[float | None] = []
    for first, last in columns:
        spread = series.spread(first, last)
        found.append(spread.mean if spread else found[-1] if found else None)
    return found


def _name_room(scores: Iterable[TaskScore], width: int, wide: bool) -> int:
    longest = max(len(score.task) + (len(SHORTCUT) if score.shortcut else 0) for score in scores) + 1
    return min(max(longest, len(_HEAD) + 1), 32) if wide else min(longest, max(width - _FIGURE - 6, 6))


def _cell(value: float | None, top: float, wide: bool, stretch: int, glyphs: Glyphs) -> Content:
    if value is None:
        return Content(" " * (_CELL if wide else stretch))
    share = min(max(value / top, 0.0), 1.0)
    bar = glyphs.bars[round(share * (len(glyphs.bars) - 1))]
    style = _STYLES[min(int(share * len(_STYLES)), len(_STYLES) - 1)]
    return Content.styled(f"{bar}{100 * value:3.0f} " if wide else bar * stretch, style)


def _rounds(columns: Columns, name: int) -> Content:
    """The last round of every column, where it fits."""
    return Content.styled(_HEAD.ljust(name) + "".join(f"{_short(last):>4} " for _, last in columns), MUTED)


def _short(rounds: float) -> str:
    """At most four characters: 9999, 400k, 1.2M."""
    if rounds < 9_999.5:
        return f"{rounds:.0f}"
    return f"{rounds / 1e3:.0f}k" if rounds < 999_500 else f"{rounds / 1e6:.{int(rounds < 9.95e6)}f}M"


def _change(before: float | None, now: float, glyphs: Glyphs) -> str:
    old = "" if before is None else f"{100 * before:.0f}{glyphs.arrow}"
    return f"{old}{100 * now:.0f} %".rjust(_FIGURE)
