"""The panel of held-out results, a pure function of the state and the room it has."""

from __future__ import annotations

from textual.content import Content

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import bar, plain, wrap
from sapo_desktop.dashboard.state import DashboardState, before_measurement
from sapo_desktop.dashboard.widgets.held_out.levels import levels
from sapo_desktop.dashboard.widgets.held_out.strips import strips
from sapo_desktop.services.against_base import interval, paired, unpaired
from sapo_swarm.events import Evaluated, GreedyScore

MUTED = "$muted"
NONE = "No measurement yet. Held-out questions are never trained on; the first measurement is the base to compare with."


def heldout(state: DashboardState, now: float, width: int, height: int, glyphs: Glyphs) -> Content:
    """Base and now as bars, the paired difference with its interval in words, the tasks over time."""
    latest = state.latest
    if latest is None:
        text = plain(before_measurement(state), 400) or NONE
        return Content.styled("\n".join(wrap(text, width)[:height]), MUTED)
    base = latest.pass_at_1 - latest.delta if latest.delta is not None else None
    top = max(latest.high, base or 0.0, 0.05)
    room = max(min(width - 18, 40), 4)
    rows = [Content.styled("by a judge, not verified", MUTED)] if state.run and state.run.judged else []
    if latest.greedy is not None:
        rows += _both_temperatures(latest, latest.greedy, width)
    else:
        if base is not None:
            rows.append(
                Content.assemble(("base ", MUTED), f"{100 * base:5.1f} %  ", bar(base / top, room, glyphs, MUTED))
            )
        label, filled = "now  " if latest.round else "base ", bar(latest.pass_at_1 / top, room, glyphs, "$chart-local")
        rows.append(Content.assemble((label, MUTED), (f"{100 * latest.pass_at_1:5.1f} %  ", "bold"), filled))
        rows += _verdict(latest, width)
    if height >= 5:
        when = f"round {latest.round}" if latest.round else "untrained"
        at = "" if latest.greedy is not None else f"T={latest.temperature:g}, "
        rows.append(Content.styled(f"{latest.items} items, {at}{when}", MUTED))
    rows += levels(state, width)
    if height >= 12:
        rows.append(Content(""))
    if height > len(rows):
        rows += strips(state, width, height - len(rows), glyphs)
    return Content("\n").join(rows[:height])


def _both_temperatures(latest: Evaluated, greedy: GreedyScore, width: int) -> list[Content]:
    """A column a temperature, base above now, and what changed at each; greedy is how chat answers."""
    rows = [Content.styled("      sampled  greedy (chat)", MUTED)]
    both: tuple[Evaluated | GreedyScore, ...] = (latest, greedy)
    if all(score.delta is not None for score in both):
        before = "  ".join(f"{100 * (score.pass_at_1 - (score.delta or 0.0)):5.1f} %" for score in both)
        rows.append(Content.assemble(("base  ", MUTED), before))
    now = "  ".join(f"{100 * score.pass_at_1:5.1f} %" for score in both)
    rows.append(Content.assemble(("now   " if latest.round else "base  ", MUTED), (now, "bold")))
    if latest.round and not latest.base_missing:
        for name, score in zip(("sampled", "greedy"), both, strict=True):
            first, *rest = _verdict(score, width - len(name) - 1)
            rows += [Content.assemble((f"{name} ", MUTED), first), *rest]
        return rows
    return rows + (_verdict(latest, width) if latest.base_missing else [])


def _verdict(latest: Evaluated | GreedyScore, width: int) -> list[Content]:
    """The paired difference in words, with its interval: one row, or two where it is narrow."""
    if (found := paired(latest)) is None:
        rows = [Content.styled(interval(latest.low, latest.high), MUTED)]
        return rows + [Content.styled(line, "$warning") for line in wrap(unpaired(latest), width)]
    delta, low, high = found
    rest = interval(low, high, "+")
    if low <= 0 <= high:
        said, rest = ("no measurable change", "bold"), f"{100 * delta:+.1f} {rest}"
    else:
        said = (f"{100 * delta:+.1f} points", "bold $success" if delta > 0 else "bold $error")
    if len(said[0]) + 1 + len(rest) <= width:
        return [Content.assemble(said, " ", (rest, MUTED))]
    return [Content.assemble(said), Content.styled(rest, MUTED)]
