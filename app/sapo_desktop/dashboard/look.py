"""The look of everything: glyph sets, themes, key labels, and numbers, ages and untrusted text as plain text."""

from __future__ import annotations

import locale
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import PurePath
from time import strftime

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from textual.binding import Binding
from textual.color import Color
from textual.content import Content
from textual.filter import LineFilter
from textual.theme import Theme

from sapo_backends.errors import size_text
from sapo_swarm.node.clock import local_time
from sapo_swarm.protocol.safe_text import safe_text

# Glyph sets: braille and line drawing where the terminal can, plain ASCII where it cannot.


@dataclass(frozen=True)
class GlyphSet:
    """bars: sparkline levels from empty to full. steps: phase marks."""

    ascii: bool
    bars: str
    full: str
    empty: str
    done: str
    bad: str
    now: str
    todo: str
    right: str
    wrong: str
    partial: str
    cut: str
    star: str
    mark: str
    interval: str
    dot: str
    vertical: str
    tick: str
    corner: str
    horizontal: str
    arrow: str
    dash: str


UNICODE = GlyphSet(
    ascii=False,
    bars="▁▂▃▄▅▆▇█",
    full="━",
    empty="─",
    done="✓",
    bad="✗",
    now="▶",
    todo="·",
    right="●",
    wrong="○",
    partial="◐",
    cut="◌",
    star="★",
    mark="◆",
    interval="┊",
    dot="·",
    vertical="│",
    tick="┤",
    corner="└",
    horizontal="─",
    arrow="→",
    dash="—",
)
ASCII = GlyphSet(
    ascii=True,
    bars="_.:-=+*#",
    full="#",
    empty=".",
    done="x",
    bad="!",
    now=">",
    todo=".",
    right="1",
    wrong="0",
    partial="%",
    cut="~",
    star="*",
    mark="@",
    interval=":",
    dot="-",
    vertical="|",
    tick="+",
    corner="+",
    horizontal="-",
    arrow="->",
    dash="-",
)


def choose_glyphs(name: str = "auto") -> GlyphSet:
    """auto: ASCII on the Linux console, dumb terminals and non-UTF-8 locales. Raises ValueError."""
    if name == "auto":
        encoding = locale.getpreferredencoding(False).lower().replace("-", "")
        poor = os.environ.get("TERM", "") in ("linux", "dumb") or encoding not in ("utf8", "cp65001")
        name = "ascii" if poor else "unicode"
    if name not in ("unicode", "ascii"):
        raise ValueError(f"There is no glyph set {name!r}. Known: auto, unicode, ascii.")
    return ASCII if name == "ascii" else UNICODE


def draw_sparkline(values: Iterable[float | None], width: int, glyphs: GlyphSet) -> str:
    """One row of bars, right-aligned in `width`; gaps are blanks; scaled to the range of the bars.

    If there are more values than columns, each bar is the mean of its share.
    """
    points = list(values)
    bars = min(width, len(points))
    edges = [len(points) * bar // bars for bar in range(bars + 1)] if bars else []
    cells = [mean_of(points[first:last]) for first, last in pairwise(edges)]
    present = [value for value in cells if value is not None]
    if not present:
        return " " * width
    low, high = min(present), max(present)
    span = high - low
    top = len(glyphs.bars) - 1
    text = "".join(
        " " if value is None else glyphs.bars[round((value - low) / span * top) if span > 0 else top // 2]
        for value in cells
    )
    return text.rjust(width)


def mean_of(values: Sequence[float | None]) -> float | None:
    """The mean of the values that are not None; None if there are none."""
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


# Plain ASCII for terminals that cannot show more: every line is translated cell by cell as it is painted.

_LOOKS_LIKE = {
    "·": "-",
    "…": "~",
    "—": "-",
    "–": "-",
    "‖": "=",
    "▶": ">",
    "◂": "<",
    "▸": ">",
    "→": ">",
    "←": "<",
    "↑": "^",
    "↓": "v",
    "↔": "=",
    "✓": "x",
    "✗": "!",
    "°": " ",
    "±": "~",
    "×": "x",
    "“": '"',
    "”": '"',
    "’": "'",
    "∧": "&",
    "∨": "|",
    "¬": "!",
    "⏎": "/",
    "┊": ":",
    "◆": "@",
}
_ACROSS, _DOWN = "─━┄┅┈┉╌╍═╴╶╸╺╼╾", "│┃┆┇┋╎╏║╵╷╹╻╽╿"
"""Straight box-drawing characters. Other box-drawing characters become +, blocks become #, anything else unknown becomes ?."""
_LOOKS_LIKE |= dict.fromkeys(_ACROSS, "-") | dict.fromkeys(_DOWN, "|")


@lru_cache(4096)
def to_ascii(text: str) -> str:
    """The text in printable ASCII, with the same cell width."""
    return text if text.isascii() else "".join(_cells(char) for char in text)


def _cells(char: str) -> str:
    if char.isascii():
        return char
    other = "+" if "\u2500" <= char <= "\u257f" else "#" if "\u2580" <= char <= "\u259f" else "?"
    replacement = _LOOKS_LIKE.get(char, other)
    return replacement.ljust(cell_len(char), replacement)[: cell_len(char)]


class AsciiFilter(LineFilter):
    """Translates the text of every segment; control segments stay as they are."""

    def apply(self, segments: list[Segment], _background: Color) -> list[Segment]:
        """The segments with their text in ASCII and the same width."""
        return [
            segment if segment.control or segment.text.isascii() else Segment(to_ascii(segment.text), segment.style)
            for segment in segments
        ]


# Calm palettes. Text has a contrast of at least 4.5 to 1; colour is never the only carrier of meaning.

DARK = Theme(
    name="sapo-dark",
    primary="#7aa2c9",
    secondary="#b59ac9",
    accent="#e0b870",
    success="#8fbf8f",
    warning="#e0b870",
    error="#dc8580",
    foreground="#d5dae3",
    background="#14171d",
    surface="#191d24",
    panel="#222831",
    dark=True,
    variables={
        "border": "#3a4352",
        "muted": "#8d97a8",
        "chart-local": "#79c0b5",
        "chart-external": "#e0a878",
        "chart-third": "#a8a0dc",
    },
)
LIGHT = Theme(
    name="sapo-light",
    primary="#2f5f8a",
    secondary="#70508a",
    accent="#8a5a00",
    success="#2c6e3a",
    warning="#8a5a00",
    error="#a3322c",
    foreground="#23272e",
    background="#f7f5f0",
    surface="#f1eee7",
    panel="#e6e2d8",
    dark=False,
    variables={
        "border": "#b9b2a3",
        "muted": "#68645c",
        "chart-local": "#00695f",
        "chart-external": "#9a4a12",
        "chart-third": "#574b9e",
    },
)
CONTRAST = Theme(
    name="sapo-contrast",
    primary="#ffffff",
    secondary="#ffffff",
    accent="#ffff00",
    success="#00ff00",
    warning="#ffff00",
    error="#ff8080",
    foreground="#ffffff",
    background="#000000",
    surface="#000000",
    panel="#1a1a1a",
    dark=True,
    variables={
        "border": "#ffffff",
        "muted": "#d0d0d0",
        "chart-local": "#00ffff",
        "chart-external": "#ffff00",
        "chart-third": "#ff9cff",
    },
)
THEMES = (DARK, LIGHT, CONTRAST)
DEFAULTS = {
    "muted": "ansi_bright_black",
    "chart-local": "ansi_cyan",
    "chart-external": "ansi_yellow",
    "chart-third": "ansi_magenta",
}
"""For Textual's themes (the ansi ones too), which do not define our variables."""


# The keys of a screen, generated from its bindings: the description of a key is its action's docstring.

Rows = list[tuple[str, str]]
"""(keys, what they do)."""
PALETTE = ("ctrl+p", "Every action by name, themes too")
"""Textual binds this one."""
LISTS = "In lists the arrows move and Enter opens. Tab goes on to the next list, text or field."
"""The keys of Textual's widgets."""
LETTERS = "You are typing: letters, digits, marks and space go into the field, and are no keys now."
"""Said in the help while a text field has the focus."""
_SHOWN = {
    "plus": "+",
    "minus": "-",
    "slash": "/",
    "comma": ",",
    "less_than_sign": "<",
    "greater_than_sign": ">",
    "escape": "Esc",
    "enter": "Enter",
    "f1": "F1",
    "f2": "F2",
    "f3": "F3",
    "f4": "F4",
}


def own_bindings(owner: type) -> Iterator[Binding]:
    """The bindings of a screen, a widget or the app and of their base classes, without Textual's and without duplicates."""
    seen: set[str] = set()
    for base in owner.__mro__:
        for entry in vars(base).get("BINDINGS", ()) if base.__module__.startswith("sapo_desktop") else ():
            binding = entry if isinstance(entry, Binding) else Binding(*entry)
            keys = set(binding.key.split(","))
            if not keys <= seen:
                seen |= keys
                yield binding


def describe_binding(owner: type, binding: Binding) -> str:
    """What a key does: a sentence without a full stop."""
    name = binding.action.partition("(")[0]
    method = getattr(owner, f"action_{name}", None)
    ours = method is not None and str(method.__module__).startswith("sapo_desktop")
    text = " ".join((method.__doc__ or "").split()) if ours else ""
    return (text or binding.description).partition(". ")[0].rstrip(".")


def key_label(key: str) -> str:
    """The key's usual name."""
    if key in _SHOWN or ("_" not in key and len(key) > 1):
        return _SHOWN.get(key, key)
    return unicodedata.lookup(key.replace("_", " ").upper()) if "_" in key else key


def binding_rows(owner: type, typing: bool = False, covered: bool = False) -> Rows:
    """Every key of a screen, a widget or the app, grouped by action; without shift+arrow, which < and > duplicate. typing: a
    text field has the focus, and keys that are text there are left out. covered: a dialog lies over the owner, where only its
    priority keys count."""
    by_action: dict[str, tuple[list[str], list[str]]] = {}
    for binding in own_bindings(owner):
        if covered and not binding.priority:
            continue
        names = [key for key in binding.key.split(",") if not key.startswith("shift+")]
        if typing and not (names := [key for key in names if key != "space" and len(key_label(key)) > 1]):
            continue
        keys, texts = by_action.setdefault(binding.action.partition("(")[0], ([], []))
        keys += map(key_label, names)
        texts.append(describe_binding(owner, binding))
    return [(" ".join(keys), ", ".join(dict.fromkeys(texts))) for keys, texts in by_action.values()]


# Numbers, ages and untrusted text as plain strings or Content, never markup.


def plain_text(text: str, limit: int = 8192, lines: bool = False) -> str:
    """Any text from a peer, a model or a node, made harmless."""
    return safe_text(text, limit, lines)


def format_share(share: float | None, digits: int = 0) -> str:
    """A share in [0, 1] as a percentage."""
    return "—" if share is None else f"{100 * share:.{digits}f} %"


def format_reward_value(value: float | None, dash: str = "—") -> str:
    """.291 or 1.000."""
    if value is None:
        return dash
    text = f"{value:.3f}"
    return text[1:] if text.startswith("0.") else text


def format_count(value: float | None, dash: str = "—") -> str:
    """1,870 or 12.3 M."""
    if value is None:
        return dash
    if value >= 10_000_000:
        return f"{value / 1e6:,.1f} M"
    return f"{value:,.0f}"


def format_group_count(number: int) -> str:
    """1 group, 1,870 groups."""
    return f"{number:,} group{'' if number == 1 else 's'}"


def format_memory(size: float | None, dash: str = "—") -> str:
    """A size in bytes; the dash if there is none."""
    return size_text(size) if size else dash


def format_clock_time(time: float, now: float) -> str:
    """Unix seconds as local HH:MM:SS, with the date unless it is today."""
    shown = format_date_time(time)
    return shown[11:] if shown[:10] == format_date_time(now)[:10] else shown


def format_date_time(time: float) -> str:
    """Unix seconds as local YYYY-MM-DD HH:MM:SS."""
    return strftime("%Y-%m-%d %H:%M:%S", local_time(time))


def fit_width(text: str, width: int) -> str:
    """Cut with … or padded to `width` columns; a Chinese or Japanese character takes two."""
    return set_cell_size(text, max(width - 1, 0)) + "…" if cell_len(text) > width else set_cell_size(text, width)


def end_of(text: str, width: int) -> str:
    """Cut with … at the beginning, for paths, where the end matters."""
    if cell_len(text) <= width:
        return text
    while cell_len(text) > max(width - 1, 1):
        text = text[1:]
    return f"…{text}"


def shorten_phrases(text: str, width: int) -> str:
    """Cut to `width` columns; whole phrases between middle dots are dropped first, from the end, then brackets at the end."""
    while cell_len(text) > width and " · " in text:
        text = text[: text.rindex(" · ")]
    if cell_len(text) > width and text.endswith(")") and " (" in text:
        text = text[: text.rindex(" (")]
    return text if cell_len(text) <= width else set_cell_size(text, max(width - 1, 0)) + "…"


def base_name(model: str) -> str:
    """A base on one line: a file or folder by its own name, as the start of a long path says least."""
    name = PurePath(model).name
    return name if name and (os.path.isabs(model) or model.startswith(("~", "."))) else model


def wrap_text(text: str, width: int) -> list[str]:
    """Greedy wrapping at spaces, to `width` columns; a path that is longer goes on after a slash."""
    lines = [""]
    for word in text.split():
        if cell_len(word) > width and "/" in word:
            *full, rest = _path_lines(word, width)
            lines = [*(lines if lines[-1] else lines[:-1]), *full, rest]
        elif lines[-1] and cell_len(lines[-1]) + 1 + cell_len(word) > width:
            lines.append(word)
        else:
            lines[-1] = f"{lines[-1]} {word}".strip()
    return lines


def _path_lines(path: str, width: int) -> list[str]:
    lines = [""]
    for part in re.findall(r"[^/]*/|[^/]+", path):
        if lines[-1] and cell_len(lines[-1]) + cell_len(part) > width:
            lines.append("")
        lines[-1] += part
    return lines


def hanging_indent(text: str, width: int, indent: int) -> str:
    """Text after a label: wrapped to `width - indent` columns, with all lines but the first indented."""
    return ("\n" + " " * indent).join(wrap_text(text, max(width - indent, 10)))


def draw_bar(fraction: float, width: int, glyphs: GlyphSet, style: str) -> Content:
    """A bar of whole cells: `fraction` of `width` full."""
    full = round(min(max(fraction, 0.0), 1.0) * width)
    return Content.assemble((glyphs.full * full, style), (glyphs.empty * (width - full), "$border"))
