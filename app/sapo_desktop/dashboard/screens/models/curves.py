"""A model's history as lines and marks of a chart: pure functions of what its journal tells."""

from __future__ import annotations

from sapo_desktop.dashboard.history.clock import Clock
from sapo_desktop.dashboard.history.figures import Figures
from sapo_desktop.dashboard.history.moments import Moment, of_session
from sapo_desktop.dashboard.widgets.canvas import Line, Mark, Pattern
from sapo_desktop.dashboard.widgets.curves import heldout_marks
from sapo_desktop.services.models.shelf.history import Story
from sapo_swarm.events import Evaluated, RoundFinished


def of_one(story: Story) -> tuple[list[Line], list[Mark], Clock]:
    """Local and external reward over rounds, held-out results, where something changed, and when it all was."""
    figures = _figures(story)
    external = figures.reward_external
    lines = [] if external.empty else [Line("external", external, "dashed", "line-2")]
    lines.append(Line("judged" if story.judged else "local", figures.reward_local, "solid", "line-1"))
    moments = [moment for session in story.sessions for moment in of_session(session)]
    moments += [Moment("R", back.round, back.time) for back in story.backs]
    marks = [Mark(m.round, None, letter=m.letter, time=m.time) for m in moments]
    return lines, [*heldout_marks(figures), *marks], figures.clock


def of_two(first: tuple[str, Story], second: tuple[str, Story] | None) -> tuple[list[Line], list[Mark], Clock | None]:
    """Local reward of two models (name, story) in one chart; alone, a model with its held-out results beside its base's.

    Two models ran at different times: their axis is rounds.
    """
    if second is None:
        return of_one(first[1])
    if first[1].judged != second[1].judged:
        return of_one(first[1])  # judged and verified rewards never stand in one figure
    styles: tuple[tuple[Pattern, str], ...] = (("solid", "line-1"), ("dashed", "line-2"))
    pairs = zip((first, second), styles, strict=True)
    return [Line(name, _figures(story).reward_local, *style) for (name, story), style in pairs], [], None


def _figures(story: Story) -> Figures:
    figures = Figures()
    events: list[RoundFinished | Evaluated] = [*story.rounds, *story.evaluations]
    for event in sorted(events, key=lambda event: event.seq):
        figures = figures.finished(event) if isinstance(event, RoundFinished) else figures.evaluated(event)
    return figures
