"""The Aha trail: per task, whose success arrived first, how often it was trained on, and when it was solved here.

It shows the order of events, not that one caused the other.
"""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import msgspec
from rich.cells import cell_len
from textual.binding import Binding, BindingType
from textual.content import Content

from sapo_desktop.dashboard.look import (
    GlyphSet,
    fit_width,
    format_date_time,
    format_group_count,
    hanging_indent,
    plain_text,
    shorten_phrases,
)
from sapo_desktop.dashboard.screens.dialogs import TextDialog
from sapo_desktop.dashboard.state import DashboardState
from sapo_swarm.node.aha_trail import UNKNOWN, AhaTrail
from sapo_swarm.node.training_count import TrainingCounts

NONE = "No task is solved yet, neither here nor in a group of others that came in."
CAUSE = "What came before what; that the one led to the other is not shown."
NOT_YET = "not yet"
WIDE = 40
"""Columns from which a cell includes more detail."""


def in_order(state: DashboardState) -> list[AhaTrail]:
    """Tasks learned after others (newest first), then those only others solved, then those solved here first."""

    def place(trail: AhaTrail) -> tuple[int, int]:
        newest = max(
            trail.solved.round if trail.solved else UNKNOWN, trail.received.round if trail.received else UNKNOWN
        )
        return (0 if after_others(trail) else 1 if trail.solved is None else 2, -newest)

    return [_counted(trail, state.counts) for trail in sorted(state.trails.values(), key=place)]


def _counted(trail: AhaTrail, counts: TrainingCounts) -> AhaTrail:
    """The trail with rounds of practice in place of the journal's numbers."""

    def practised(number: int) -> int:
        return number if number == UNKNOWN else counts.practice_round(number) - 1

    came, here = (
        None if event is None else msgspec.structs.replace(event, round=practised(event.round))
        for event in (trail.received, trail.solved)
    )
    return replace(trail, received=came, solved=here, since=practised(trail.since), until=practised(trail.until))


def after_others(trail: AhaTrail) -> bool:
    """Whether this node trained on another node's success before its own first success."""
    return trail.taught > 0 and trail.solved is not None


def first_solver_name(trail: AhaTrail, most: int = 16) -> str:
    """The node whose success arrived first: its name, else the start of its id. Sanitised peer text."""
    return "" if trail.received is None else plain_text(trail.name, most) or plain_text(trail.received.node[:8])


def trail_steps(trail: AhaTrail) -> list[str]:
    """What happened, in order, one phrase each; rounds are this node's."""
    came, here = trail.received, trail.solved
    dated = here is not None and here.round != UNKNOWN
    own = [f"solved here in round {here.round + 1}" if dated and here else "solved here before this record began"]
    if came is None:
        return own if here else []
    others = [f"{first_solver_name(trail)}'s success came in round {came.round + 1}"]
    if trail.taught:
        others.append(f"trained on {format_group_count(trail.taught)} of others with one in {_rounds(trail)}")
    elif here is None:
        others.append("not trained on yet")
    if here is None:
        return [*others, "not solved here yet"]
    if not dated or trail.first_here:
        return own + others[:1]
    return others + own if trail.taught else [*others, "none was trained on before", *own]


def _rounds(trail: AhaTrail) -> str:
    single = trail.since == trail.until
    return f"round {trail.until + 1}" if single else f"rounds {trail.since + 1} to {trail.until + 1}"


def _span(trail: AhaTrail) -> str:
    return f"{trail.since + 1}" if trail.since == trail.until else f"{trail.since + 1}–{trail.until + 1}"


def in_a_line(state: DashboardState, width: int) -> str:
    """The most informative trail, and how many more there are; "" while nothing is solved."""
    trails = in_order(state)
    if not trails:
        return ""
    more = f" · {len(trails) - 1} more: w" if len(trails) > 1 else " · w"
    words = [trail_steps(trails[0]), _short(trails[0], "'s came in round ", "in "), _short(trails[0], " ", "")]
    sentences = [f"{plain_text(trails[0].task, 40)}: {', '.join(sentence)}" for sentence in words]
    text = next((sentence for sentence in sentences if cell_len(sentence) + len(more) <= width), sentences[-1])
    return shorten_phrases(text, max(width - len(more), 10)) + more


def _short(trail: AhaTrail, came_in: str, at: str) -> list[str]:
    """The steps in few words, for one line; came_in and at are the words before a round."""
    came, here = trail.received, trail.solved
    own = [] if here is None else [f"here {at}{here.round + 1}" if here.round != UNKNOWN else "here before"]
    others = [] if came is None else [f"{first_solver_name(trail, 12)}{came_in}{came.round + 1}"]
    trained = [f"trained on {at}{_span(trail)}"] if trail.taught else []
    if here is not None and (trail.first_here or here.round == UNKNOWN):
        return own + others
    return others + trained + (own or ["not here yet"])


def trail_table(state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet) -> Content:
    """One line per task, as many as fit, then the number of the others."""
    trails = in_order(state)
    if not trails:
        return Content.styled(shorten_phrases(NONE, width), "$muted")
    name = min(max(width - 58, 14), 30, max(len(trail.task) for trail in trails) + 1)
    column = min((width - name - 3) // 3, WIDE + 6)
    head = [fit_width(word, column) for word in ("others, first to come in", "trained on before", "solved here")]
    rows = [Content.styled(f"{fit_width('task', name)} {' '.join(head)}"[:width], "$muted")]
    room = len(trails) if len(trails) < height else max(height - 2, 1)
    rows += [_line(trail, name, column, glyphs) for trail in trails[:room]]
    if len(trails) > room:
        rows.append(Content.styled(f"{len(trails) - room} more: w", "$muted"))
    return Content("\n").join(rows[:height])


def _line(trail: AhaTrail, name: int, column: int, glyphs: GlyphSet) -> Content:
    came, here = trail.received, trail.solved
    others = f"{first_solver_name(trail)}, round {came.round + 1}" if came else glyphs.dash
    trained = f"{format_group_count(trail.taught)}, {_rounds(trail)}" if trail.taught else glyphs.dash
    if len(trained) > column:
        trained = f"{format_group_count(trail.taught)}, {_span(trail)}"
    if here is None:
        own, style = NOT_YET, "$muted"
    elif here.round == UNKNOWN:
        own, style = "earlier", ""
    else:
        own, style = f"round {here.round + 1}{', first' if trail.first_here and came else ''}", "bold"
    if column >= WIDE:
        others += f", made in its round {came.step + 1}" if came else ""
        own += f" · {format_date_time(here.time)}" if here and here.round != UNKNOWN else ""
    return Content.assemble(
        fit_width(plain_text(trail.task, 60), name),
        " ",
        (fit_width(others, column), "$chart-external" if came else "$muted"),
        " ",
        (fit_width(trained, column), "" if trail.taught else "$muted"),
        " ",
        (fit_width(own, column), style),
    )


def trail_details(state: DashboardState, width: int) -> Content:
    """Every trail in full."""
    trails = in_order(state)
    rows = [Content.styled(hanging_indent(CAUSE, width, 0), "$muted"), Content("")]
    if not trails:
        rows.append(Content(hanging_indent(NONE, width, 0)))
    for trail in trails:
        rows.append(Content.styled(plain_text(trail.task, 60), "bold"))
        rows += [Content("  " + hanging_indent(step, width, 2)) for step in _dated(trail)]
    return Content("\n").join(rows)


def _dated(trail: AhaTrail) -> list[str]:
    """The steps with their times where known, and the other node's round as it reported it."""
    steps = trail_steps(trail)
    for event, sign in ((trail.received, "came in"), (trail.solved, "solved here in")):
        if event is not None:
            its = f", made in its round {event.step + 1}" if event.node else ""
            steps = [f"{step}{its} · {format_date_time(event.time)}" if sign in step else step for step in steps]
    return steps


class TrailDialog(TextDialog):
    """Every task's trail, as of the opening of the dialog."""

    TITLE = "Who solved what first"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("w", "dismiss", "close", show=False)]

    def __init__(self, state: DashboardState) -> None:
        super().__init__()
        self.state = state

    def text(self, width: int) -> Content:
        """See TextDialog.text."""
        return trail_details(self.state, width)
