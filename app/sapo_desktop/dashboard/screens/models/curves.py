"""A model's history as lines and marks of a chart: pure functions of what its journal tells."""

from __future__ import annotations

from sapo_desktop.dashboard.series import Series
from sapo_desktop.dashboard.widgets.plot import Line, Mark, Pattern
from sapo_desktop.services.models.shelf.history import Story


def of_one(story: Story) -> tuple[list[Line], list[Mark]]:
    """Own and external reward over rounds, held-out results, and where something changed."""
    external = _series(story, "reward_external")
    lines = [] if external.empty else [Line("external", external, "dashed", "line-2")]
    lines.append(Line("own", _series(story, "reward_local"), "solid", "line-1"))
    return lines, [*_measured(story), *(Mark(s.round, None) for s in story.sessions if s.changed)]


def of_two(first: tuple[str, Story], second: tuple[str, Story] | None) -> tuple[list[Line], list[Mark]]:
    """Own reward of two models (name, story) in one chart; alone, a model with its held-out results beside its base's."""
    if second is None:
        return of_one(first[1])
    styles: tuple[tuple[Pattern, str], ...] = (("solid", "line-1"), ("dashed", "line-2"))
    pairs = zip((first, second), styles, strict=True)
    return [Line(name, _series(story, "reward_local"), *style) for (name, story), style in pairs], []


def _series(story: Story, figure: str) -> Series:
    series = Series()
    for event in story.rounds:
        series = series.append(event.round + 1, getattr(event, figure))
    return series


def _measured(story: Story) -> list[Mark]:
    """Evaluations at the temperature of the newest one: others cannot be compared with it."""
    newest = story.held_out
    return [Mark(e.round, e.pass_at_1) for e in story.evaluations if newest and e.temperature == newest.temperature]
