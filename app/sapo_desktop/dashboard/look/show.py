"""How numbers, ages, foreign text and a round's stage are shown: plain strings or Content, never markup."""

from __future__ import annotations

from collections.abc import Mapping
from time import strftime

from rich.cells import cell_len, set_cell_size
from textual.content import Content

from sapo_backends.errors import size_text
from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_swarm.node.clock import local
from sapo_swarm.protocol.safe_text import safe_text

# How numbers, ages and foreign text are shown. Everything here gives plain strings or Content, never markup.


def plain(text: str, limit: int = 8192, lines: bool = False) -> str:
    """Any text from a peer, a model or a node, made harmless."""
    return safe_text(text, limit, lines)


def percent(share: float | None, digits: int = 0) -> str:
    """A share in [0, 1] as percent."""
    return "—" if share is None else f"{100 * share:.{digits}f} %"


def reward(value: float | None, dash: str = "—") -> str:
    """.291 or 1.000."""
    if value is None:
        return dash
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0.") else text


def count(value: float | None, dash: str = "—") -> str:
    """1,870 or 12.3 M."""
    if value is None:
        return dash
    if value >= 10_000_000:
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.0f}"


def groups(number: int) -> str:
    """1 group, 1,870 groups."""
    return f"{number:,} group{'' if number == 1 else 's'}"


def memory(size: float | None, dash: str = "—") -> str:
    """Bytes where there are any."""
    return size_text(size) if size else dash


def clock(time: float, now: float) -> str:
    """Unix seconds as local HH:MM:SS, with the date where that is not today's."""
    shown = date(time)
    return shown[11:] if shown[:10] == date(now)[:10] else shown


def date(time: float) -> str:
    """Unix seconds as local YYYY-MM-DD HH:MM:SS."""
    return strftime("%Y-%m-%d %H:%M:%S", local(time))


def fit(text: str, width: int) -> str:
    """Cut with … or padded to `width` columns: a Chinese or Japanese sign takes two."""
    return set_cell_size(text, max(width - 1, 0)) + "…" if cell_len(text) > width else set_cell_size(text, width)


def end_of(text: str, width: int) -> str:
    """Cut with … at the beginning: of a path the end matters."""
    if cell_len(text) <= width:
        return text
    while cell_len(text) > max(width - 1, 1):
        text = text[1:]
    return f"…{text}"


def after(rounds: int) -> str:
    """When, for a measurement between two rounds. rounds: how many were done."""
    return f"after round {rounds}" if rounds else "before training"


def shorten(text: str, width: int) -> str:
    """Cut to `width` columns: whole phrases between middle dots go first, from the end."""
    while cell_len(text) > width and " · " in text:
        text = text[: text.rindex(" · ")]
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def wrap(text: str, width: int) -> list[str]:
    """Greedy wrapping at blanks, to `width` columns."""
    lines = [""]
    for word in text.split():
        if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def hang(text: str, width: int, indent: int) -> str:
    """Wrapped to `width - indent` columns, the lines after the first indented: what follows a label."""
    return ("\n" + " " * indent).join(wrap(text, max(width - indent, 10)))


def bar(fraction: float, width: int, glyphs: Glyphs, style: str) -> Content:
    """A bar of whole cells: `fraction` of `width` full."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return Content.assemble((glyphs.full * full, style), (glyphs.empty * (width - full), "$border"))


# What a round's stage did, in words: hints of others, or corrected attempts.

SECOND = {
    "relay": "a question that others solved",
    "relay/shown": "generated again with a hint of others",
    "relay_start": "a question that others solved",
    "relay_start/shown": "begun with a hint of others",
    "retry": "a question that others solved",
    "retry/shown": "generated again",
    "critique/shown": "after a wrong attempt that was shown",
}
"""Group.stage -> what it means, beside a group."""


def stage_words(figures: Mapping[str, float]) -> str:
    """Of a round's figures; "" where it had no stage, or nothing to work on."""
    count = {name: round(figures.get(f"stage_{name}", 0.0)) for name in ("attempted", "hinted", "revived", "corrected")}
    if "stage_corrected" in figures and count["attempted"]:
        return f"{count['corrected']} of {count['attempted']} wrong attempts corrected after a look at them"
    if count["hinted"]:
        return f"all attempts had failed at {count['hinted']} that others solved: {count['revived']} solved with a hint"
    return f"{count['attempted']} questions of others attempted, no hint needed" if count["attempted"] else ""
