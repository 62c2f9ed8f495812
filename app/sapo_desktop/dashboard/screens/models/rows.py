"""What screen 4 tells of a model, as plain text: a row in the list, and everything when it is opened."""

from __future__ import annotations

import time
from pathlib import Path

from textual.content import Content

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import bar, count, fit, hang, memory, plain
from sapo_desktop.services.models.shelf.history import what
from sapo_desktop.services.models.shelf.overview import Overview, gain, tasks_of
from sapo_desktop.services.models.shelf.store import rounds_of
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, RunStarted
from sapo_swarm.node.clock import age, local

SHOWN = 12
"""Evaluations and checkpoints that are listed, the newest."""
_GAIN, _GAIN_WIDE = 28, 40


def _columns(width: int) -> tuple[int, int, int]:
    """Room for name, base and held-out result in a list so wide."""
    held_out = _GAIN_WIDE if width >= 108 else _GAIN
    base = 16 if width >= 100 else 10
    return max(width - 26 - base - held_out, 12), base, held_out


def head(width: int) -> Content:
    """The names of the columns."""
    name, base, held_out = _columns(width)
    text = f"  {'name':<{name}} {'base':<{base}} {'held-out, against its base':<{held_out}} {'rounds':>6} {'disk':>7} {'ago':>6}"
    return Content.styled(text, "$muted")


def row(one: Overview, training: bool, now: float, width: int, glyphs: Glyphs) -> Content:
    """One model in the list; the one that the node trains is marked."""
    name, base, held_out = _columns(width)
    model = one.model
    used = age(now - one.last_trained) if one.last_trained else "new"
    return Content.assemble(
        (f"{glyphs.now} " if training else "  ", "$success"),
        (fit(plain(model.name, 60), name), "bold"),
        (f" {fit(plain(one.base, 60), base)} ", "$muted"),
        fit(gain(one.held_out, held_out, one.judged), held_out),
        (f" {_short(one.rounds):>6} {memory(one.size):>7} {used:>6}", "$muted"),
    )


def _many(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _short(number: int) -> str:
    return f"{number:,}" if number < 100_000 else f"{number / 1000:,.0f} k"


def summary(one: Overview, training: bool, width: int, glyphs: Glyphs) -> Content:
    """What is shown below the list for the model under the cursor."""
    model, config = one.model, one.model.config
    sessions = one.story.sessions
    rows = [
        pair("made from", f"{model.record.base} · {_how(model.config)}", width),
        pair("tasks", tasks_of(config), width),
        pair(
            "trained",
            f"{_many(one.rounds, 'round')} · {count(one.story.tokens)} tokens generated · {_where(one)}",
            width,
        ),
    ]
    if training:
        rows.append(Content.styled(f"{glyphs.now} The node trains this model now.", "$success"))
    if one.story.problem:
        rows.append(Content.styled(hang(plain(one.story.problem, 300), width, 0), "$warning"))
    if sessions:
        rows += [Content(""), Content.styled("History", "bold"), *history(sessions[-4:], width)]
    last = (one.held_out,) if one.held_out else ()
    rows += [Content(""), *evaluations(last, width, glyphs), *tasks(one.held_out, width, glyphs)]
    return Content("\n").join(rows)


def whole(one: Overview, now: float, width: int, glyphs: Glyphs) -> Content:
    """All of it, for the opened model: below its chart."""
    checkpoints = one.model.checkpoints
    rows = [
        Content.styled(f"History ({_many(len(one.story.sessions), 'session')})", "bold"),
        *(history(one.story.sessions, width) or [Content.styled("not trained yet", "$muted")]),
        Content(""),
        Content.styled("Held-out pass@1", "bold"),
        *(evaluations(one.story.evaluations, width, glyphs) or [Content.styled("not measured yet", "$muted")]),
        Content(""),
        *tasks(one.held_out, width, glyphs),
        Content(""),
        Content.styled(f"Checkpoints ({len(checkpoints)}), {memory(one.size, '0 MB')} on disk in all", "bold"),
        *[_checkpoint(path, now) for path in checkpoints[::-1][:SHOWN]],
        Content(""),
        *_settings(one, width),
    ]
    return Content("\n").join(rows)


def pair(label: str, value: str, width: int) -> Content:
    """A label and what belongs to it, wrapped under itself."""
    return Content.assemble((f"{label:<10}", "$muted"), hang(plain(value, 600), width, 10))


def _how(config: RunConfig) -> str:
    return f"method {config.method} · engine {config.trainer} · {config.algorithm}"


def _where(one: Overview) -> str:
    """Alone or in a swarm, the last time."""
    if not one.story.sessions:
        return "not begun"
    return "alone" if one.story.sessions[-1].mode == "silo" else "in a swarm"


def history(sessions: tuple[RunStarted, ...], width: int) -> list[Content]:
    """One line a session: when, from which round on, what was different."""
    rows = []
    for session in sessions:
        when = time.strftime("%m-%d %H:%M", local(session.time))
        text = f"{when}  round {session.round + 1:>6,}  "
        style = "$accent" if session.changed else ""
        rows.append(Content.assemble((text, "$muted"), (hang(plain(what(session), 400), width, len(text)), style)))
    return rows


def evaluations(found: tuple[Evaluated, ...], width: int, glyphs: Glyphs) -> list[Content]:
    """The first and the newest ones, each with its bar."""
    chosen = found if len(found) <= SHOWN else (found[0], *found[-SHOWN + 1 :])
    top = max([event.high for event in chosen] + [0.05])
    room = max(min(width - 70, 30), 0)
    return [
        Content.assemble(
            (f"round {event.round:>6,}  ", "$muted"),
            (f"{gain(event, 44):<44}", "bold"),
            bar(event.pass_at_1 / top, room, glyphs, "$chart-local") if room >= 8 else "",
            (f" {event.items} items", "$muted"),
        )
        for event in chosen
    ]


def tasks(event: Evaluated | None, width: int, glyphs: Glyphs) -> list[Content]:
    """Held-out result of every task in the newest evaluation, with its interval."""
    if event is None:
        return []
    room = max(min(width - 58, 30), 0)
    return [
        Content.assemble(
            fit(plain(score.task, 60), 26),
            f" {100 * score.pass_at_1:5.1f} %",
            (f"  {f'({100 * score.low:.1f} to {100 * score.high:.1f})':<16}", "$muted"),
            bar(score.pass_at_1, room, glyphs, "$chart-local") if room >= 8 else "",
            (" shortcut" if score.shortcut else "", "$warning"),
        )
        for score in event.tasks
    ]


def _checkpoint(path: Path, now: float) -> Content:
    try:
        when = age(now - path.stat().st_mtime)
    except OSError:  # taken away meanwhile
        return Content(path.name)
    return Content.assemble(f"after round {rounds_of(path):>7,}", (f"  {when} ago", "$muted"))


def _settings(one: Overview, width: int) -> list[Content]:
    model = one.model
    return [
        Content.styled("What it is", "bold"),
        pair("made from", model.record.base, width),
        pair("trained", _how(model.config), width),
        *([pair("computed", one.story.computed, width)] if one.story.computed else []),
        pair("tasks", tasks_of(model.config), width),
        pair("folder", str(model.folder), width),
    ]
