"""Held-out results on screen 1: the panel, a strip per task over time, and the adaptive sampler's levels."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

from rich.cells import cell_len
from textual.content import Content

from sapo_desktop.dashboard.history.run import HeldOut
from sapo_desktop.dashboard.history.series import Series
from sapo_desktop.dashboard.look import GlyphSet, draw_bar, fit_width, plain_text, wrap_text
from sapo_desktop.dashboard.state import DashboardState, before_measurement
from sapo_desktop.services.against_base import (
    base_difference,
    base_scores,
    format_interval,
    questions_so_far,
    unpaired_reason,
)
from sapo_swarm.events import Evaluated, GreedyScore
from sapo_swarm.node.training_count import TrainingCounts, count_of
from sapo_swarm.tasks.own.library import PRESET
from sapo_swarm.types import LEVEL_PREFIX

# The difficulty-adaptive sampler: how often each level of a task was sampled lately, and how often it was solved.

LATELY = 256
"""How many of the newest groups are counted."""


def difficulty_rows(state: DashboardState, width: int) -> list[Content]:
    """One line per level of each custom task, sorted by task; before them one line per preset of the built-in tasks
    together, if they are sampled at several. Empty with a single difficulty."""
    usual: dict[tuple[str, str], list[float]] = defaultdict(list)
    own: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in state.groups.newest(LATELY):
        ref, rewards = event.group.question.ref, event.group.rewards
        if event.group.source == "own" and rewards:
            mean = sum(rewards) / len(rewards)
            if ref.preset.startswith(LEVEL_PREFIX):
                own[ref.dataset, ref.preset.removeprefix(LEVEL_PREFIX)].append(mean)
            elif ref.preset != PRESET:
                usual["", ref.preset].append(mean)
    by_level = {**(usual if len(usual) > 1 else {}), **own}
    total = sum(map(len, by_level.values()))
    rows = []
    for (task, level), rates in sorted(by_level.items()):
        name = fit_width(plain_text(f"{task} {level}".strip(), 60), max(width - 26, 8))
        figures = f" asked {100 * len(rates) / total:3.0f} %  right {100 * sum(rates) / len(rates):3.0f} %"
        rows.append(Content.assemble(name, (figures, "$muted")))
    return [Content.styled("Difficulty, lately", "bold"), *rows] if rows else []


# Held-out pass@1 of every task over time: a strip of cells per task, whose height and colour show the value, with figures.

MUTED = "$muted"
SHORTCUT = "shortcut: "
"""Prefix of a task with an answer-only shortcut: answers to other questions would earn most of its score."""
FIGURES = 80
"""Columns from which every cell includes its figure."""
_HEAD, _HEAD_STEPS = "after round", "after round (s: step)"
_CELL = 5
"""Columns of a cell with its figure."""
_FIGURE = 10
"""Columns of a task's first and newest figure."""
_STYLES = ("$muted", "$chart-local", "bold $chart-local")
"""Styles of the lowest, middle and highest third."""

Columns = list[tuple[float, float]]
"""First and last round of every column."""


def task_strips(state: DashboardState, width: int, height: int, glyphs: GlyphSet) -> list[Content]:
    """One line per task, largest gain over the base first, as many as fit; from FIGURES columns on with the rounds above.

    All cells share one scale, from 0 to the largest value.
    """
    latest, held = state.latest, state.figures.held_out
    if latest is None or not latest.tasks or height <= 0:
        return []
    before = base_scores(latest)
    scores = sorted(latest.tasks, key=lambda score: before.get(score.task, 0.0) - score.pass_at_1)
    wide, cell = width >= FIGURES, _CELL if width >= FIGURES else 1
    steps = state.examples_rounds > 0
    trained = latest.round > 0  # a base that guesses one answer has learnt no shortcut
    names = {s.task: (SHORTCUT if s.shortcut and trained else "") + plain_text(s.task, 60) for s in scores}
    name = _name_room(names.values(), width, wide, steps)
    columns = columns_of(held, max((width - name - _FIGURE) // cell, 0))
    shown = scores if len(scores) <= height - wide else scores[: max(height - wide - 1, 1)]
    values = {score.task: column_means(held.tasks.get(score.task, Series()), columns) for score in scores}
    top = max((value for row in values.values() for value in row if value is not None), default=0.0) or 1.0
    rows = [_rounds(columns, state.counts, name)] if wide else []
    stretch = 1 if wide else max((width - name - _FIGURE) // max(len(columns), 1), 1)
    for score in shown:
        strip = Content("").join(_cell(value, top, wide, stretch, glyphs) for value in values[score.task])
        label = fit_width(names[score.task], name - 1) + " "
        figure = _change(before.get(score.task), score.pass_at_1, glyphs)
        gap = width - name - strip.cell_length - len(figure)
        rows.append(Content.assemble(label, strip, " " * max(min(gap, 2) if wide else gap, 0), (figure, MUTED)))
    if len(shown) < len(scores) and len(rows) < height:
        rows.append(Content.styled(f"{len(scores) - len(shown)} more: e 3 times", MUTED))
    return rows[:height]


def columns_of(held: HeldOut, room: int) -> Columns:
    """One column per result; if they do not fit, equal ranges of rounds."""
    ends = [(first, last) for first, last, _ in held.mean.buckets()]
    if len(ends) <= room or room < 1:
        return ends[-room:] if room >= 1 else []
    begin, end = ends[0][0], ends[-1][1]
    step = (end - begin) / room
    edges = [begin + place * step for place in range(room)]
    return [(edge + (step * 1e-6 if place else 0.0), edge + step) for place, edge in enumerate(edges)]


def column_means(series: Series, columns: Columns) -> list[float | None]:
    """The mean of the results in each column; an empty column repeats the one before."""
    means: list[float | None] = []
    for first, last in columns:
        spread = series.spread(first, last)
        means.append(spread.mean if spread else means[-1] if means else None)
    return means


def _name_room(names: Iterable[str], width: int, wide: bool, steps: bool) -> int:
    longest = max(map(len, names)) + 1
    return (
        min(max(longest, len(_HEAD_STEPS if steps else _HEAD) + 1), 32)
        if wide
        else min(longest, max(width - _FIGURE - 6, 6))
    )


def _cell(value: float | None, top: float, wide: bool, stretch: int, glyphs: GlyphSet) -> Content:
    if value is None:
        return Content(" " * (_CELL if wide else stretch))
    share = min(max(value / top, 0.0), 1.0)
    bar = glyphs.bars[round(share * (len(glyphs.bars) - 1))]
    style = _STYLES[min(int(share * len(_STYLES)), len(_STYLES) - 1)]
    return Content.styled(f"{bar}{100 * value:3.0f} " if wide else bar * stretch, style)


def _rounds(columns: Columns, counts: TrainingCounts, name: int) -> Content:
    """The last round of every column, or step of examples."""
    ends = [counts.at(round(last)) for _, last in columns]
    head = _HEAD_STEPS if counts.now.steps else _HEAD
    shown = [_short(end.rounds) if end.rounds or not end.steps else f"s{_short(end.steps)}" for end in ends]
    return Content.styled(head.ljust(name) + "".join(f"{text:>4} " for text in shown), MUTED)


def _short(rounds: float) -> str:
    """At most four characters: 9999, 400k, 1.2M."""
    if rounds < 9_999.5:
        return f"{rounds:.0f}"
    return f"{rounds / 1e3:.0f}k" if rounds < 999_500 else f"{rounds / 1e6:.{int(rounds < 9.95e6)}f}M"


def _change(before: float | None, now: float, glyphs: GlyphSet) -> str:
    old = "" if before is None else f"{100 * before:.0f}{glyphs.arrow}"
    return f"{old}{100 * now:.0f} %".rjust(_FIGURE)


# The panel of held-out results: a pure function of the state and the available size.

NONE = "No measurement yet. Held-out questions are never trained on; the first measurement is the base to compare with."


def held_out_panel(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """Base and current result as bars, the paired difference with its interval in words, the tasks over time."""
    latest = state.latest
    if latest is None:
        text = plain_text(before_measurement(state), 400) or NONE
        return Content.styled("\n".join(wrap_text(text, width)[:height]), MUTED)
    base = latest.pass_at_1 - latest.delta if latest.delta is not None else None
    top = max(latest.high, base or 0.0, 0.05)
    room = max(min(width - 18, 40), 4)
    rows = [Content.styled("by a judge, not verified", MUTED)] if state.run and state.run.judged else []
    if latest.greedy is not None:
        rows += _both_temperatures(latest, latest.greedy, width)
    else:
        if base is not None:
            rows.append(
                Content.assemble(("base ", MUTED), f"{100 * base:5.1f} %  ", draw_bar(base / top, room, glyphs, MUTED))
            )
        label, filled = (
            "now  " if latest.round else "base ",
            draw_bar(latest.pass_at_1 / top, room, glyphs, "$chart-local"),
        )
        rows.append(Content.assemble((label, MUTED), (f"{100 * latest.pass_at_1:5.1f} %  ", "bold"), filled))
        rows += _verdict(latest, width)
    if height >= 5:
        done = state.counts.at(latest.round)
        at = "" if latest.greedy is not None else f"T={latest.temperature:g}, "
        text = f"{latest.items} items, {at}"
        whens = (done.newest or "untrained", count_of(done.steps, "step") if done.steps and not done.rounds else "")
        fitting = (when for when in whens if when and cell_len(text + when) <= width)
        rows.append(Content.styled(text + next(fitting, whens[1] or whens[0]), MUTED))
    rows += difficulty_rows(state, width)
    if height >= 12:
        rows.append(Content(""))
    if height > len(rows):
        rows += task_strips(state, width, height - len(rows), glyphs)
    return Content("\n").join(rows[:height])


def _both_temperatures(latest: Evaluated, greedy: GreedyScore, width: int) -> list[Content]:
    """One column per temperature, base above current, with the change at each; greedy decoding is what chat uses."""
    rows = [Content.styled("      sampled  greedy (chat)", MUTED)]
    both: tuple[Evaluated | GreedyScore, ...] = (latest, greedy)
    if all(score.delta is not None for score in both):
        before = "  ".join(f"{100 * (score.pass_at_1 - (score.delta or 0.0)):5.1f} %" for score in both)
        rows.append(Content.assemble(("base  ", MUTED), before))
    now = "  ".join(f"{100 * score.pass_at_1:5.1f} %" for score in both)
    rows.append(Content.assemble(("now   " if latest.round else "base  ", MUTED), (now, "bold")))
    if latest.round and (latest.so_far or not latest.base_missing):
        for name, score in zip(("sampled", "greedy"), both, strict=True):
            first, *rest = _verdict(score, width - len(name) - 1)
            rows += [Content.assemble((f"{name} ", MUTED), first), *rest]
        return rows + _resting_on(latest, width)
    return rows + (_verdict(latest, width) if latest.base_missing else [])


def _resting_on(latest: Evaluated | GreedyScore, width: int) -> list[Content]:
    """On which questions the differences rest while the base is not through with them."""
    text = f"against the base {questions_so_far(latest)}" if latest.so_far else ""
    return [Content.styled(line, MUTED) for line in wrap_text(text, width)] if text else []


def _verdict(latest: Evaluated | GreedyScore, width: int) -> list[Content]:
    """The paired difference in words, with its interval: one row, or two if it does not fit."""
    difference = base_difference(latest)
    if difference is None and (so_far := latest.so_far) is not None:
        difference = so_far.delta, so_far.low, so_far.high
    if difference is None:
        rows = [Content.styled(format_interval(latest.low, latest.high), MUTED)]
        return rows + [Content.styled(line, "$warning") for line in wrap_text(unpaired_reason(latest), width)]
    delta, low, high = difference
    rest = format_interval(low, high, "+")
    if low <= 0 <= high:
        verdict, rest = ("no measurable change", "bold"), f"{100 * delta:+.1f} {rest}"
    else:
        verdict = (f"{100 * delta:+.1f} points", "bold $success" if delta > 0 else "bold $error")
    if len(verdict[0]) + 1 + len(rest) <= width:
        return [Content.assemble(verdict, " ", (rest, MUTED))]
    return [Content.assemble(verdict), Content.styled(rest, MUTED)]
