"""The frame of every screen: header line, key footer, titled boxes, and Textual's list without its crash before layout."""

from __future__ import annotations

from collections.abc import Callable

from rich.cells import cell_len
from textual.content import Content
from textual.events import Click
from textual.widget import Widget
from textual.widgets import OptionList

from sapo_desktop.dashboard.look import GlyphSet, fit_width, plain_text, shorten_phrases
from sapo_desktop.dashboard.state import DashboardState
from sapo_swarm.events import Phase, State
from sapo_swarm.node.clock import format_age
from sapo_swarm.node.round_warnings import CROWDED

# A titled box of text that repaints only when its text changed.

Draw = Callable[[DashboardState, float, int, int, GlyphSet], Content]
"""(state, now, width, height, glyphs) -> text; pure, so that it can be tested without a terminal."""


class Panel(Widget):
    """Shows the text that its pure `draw` function makes from the state."""

    def __init__(self, draw: Draw, glyphs: GlyphSet, title: str = "", id: str | None = None) -> None:
        super().__init__(id=id)
        self._draw, self.glyphs = draw, glyphs
        self._content = Content("")
        self._seen: tuple[DashboardState, float] | None = None
        if title:
            self.border_title = Content.styled(title, "bold")

    def show(self, state: DashboardState, now: float) -> None:
        """Repaint, if the state changes the text."""
        self._seen = (state, now)
        size = self.content_size
        if not size:
            return
        text = self._draw(state, now, size.width, size.height, self.glyphs)
        if not text.is_same(self._content):
            self._content = text
            self.refresh()

    def on_resize(self) -> None:
        """Fit the text to the new size."""
        if self._seen is not None:
            self.show(*self._seen)

    def render(self) -> Content:
        """The text painted last."""
        return self._content


# Textual's option list, without its crash on a key that arrives before the first layout.


class ChoiceList(OptionList):
    """Rows to choose from. Textual's list raises KeyError on page up or down while it has no height."""

    def action_page_up(self) -> None:
        """A page up."""
        if self.scrollable_content_region:
            super().action_page_up()  # type: ignore[no-untyped-call]

    def action_page_down(self) -> None:
        """A page down."""
        if self.scrollable_content_region:
            super().action_page_down()  # type: ignore[no-untyped-call]


# The footer: at most eight keys in one line, each also a mouse button.

MAX_KEYS = 8
Key = tuple[str, str, str]
"""(key, label, Textual action)."""


class KeyBar(Widget):
    """One line of keys; without enough room it drops the rightmost ones, except Esc and the last two (help and quit)."""

    def __init__(self, keys: list[Key]) -> None:
        super().__init__(id="keys")
        self.keys: list[Key] = []
        self.put(keys)

    def put(self, keys: list[Key]) -> None:
        """Show these keys, at most MAX_KEYS: of more, those before the last two are dropped."""
        keys = [*keys[: MAX_KEYS - 2], *keys[-2:]] if len(keys) > MAX_KEYS else keys
        if keys != self.keys:
            self.keys = keys
            self.refresh()

    def render(self) -> Content:
        """The keys that fit, each with its label."""
        parts = [Content.assemble((key, "bold $accent"), (f" {label}", "$muted")) for key, label, _ in self._fitting()]
        return Content("  ").join(parts)

    def _fitting(self) -> list[Key]:
        keys = list(self.keys)
        while len(keys) > 2 and sum(len(key) + len(label) + 3 for key, label, _ in keys) - 2 > self.size.width:
            keys.pop(next((at for at in range(len(keys) - 3, -1, -1) if keys[at][0] != "Esc"), 0))
        return keys

    async def on_click(self, event: Click) -> None:
        """Run the action of the key under the pointer."""
        offset = event.get_content_offset(self)
        end = -2
        for key, label, action in self._fitting():
            end += len(key) + len(label) + 3
            if offset is not None and offset.x < end:
                if action:
                    await self.run_action(action)
                return


# The header: the run's identity on the left, one status sentence with its age on the right.

_LOOKS: dict[State, tuple[str, str]] = {
    "running": ("$success", "▶"),
    "failed": ("$error", "✗"),
    "paused": ("$warning", "‖"),
    "pausing": ("$warning", "‖"),
    "stopped": ("$warning", "■"),
    "finishing": ("$warning", "▶"),
    "starting": ("$primary", "…"),
}
"""(style, mark) of every state."""
_DOING = {
    "open": "Opening the model",
    "questions": "Sampling questions",
    "generate": "Generating",
    "score": "Scoring",
    "exchange": "Exchanging with the swarm",
    "update": "Updating the model",
    "checkpoint": "Saving a checkpoint",
    "evaluate": "Evaluating on held-out questions",
}


def status_summary(state: DashboardState, now: float) -> tuple[str, str, float]:
    """(style, sentence, age in seconds) of the current status; a lost node outranks everything but its last words."""
    link = state.link
    if state.gone and link is not None:
        said = state.state in ("stopped", "failed") and not link.refused
        sentence, since = (state.sentence, state.since) if said else (link.sentence, state.newest or link.time)
        return (
            _LOOKS[state.state if said else "failed"][0],
            f"{sentence.rstrip('.')} · space starts the node again",
            now - since,
        )
    if link is not None and not link.connected:
        return "$warning", link.sentence, now - link.time
    rules = state.besides.removesuffix(CROWDED.removeprefix(" · ")).removesuffix(" · ")
    besides = f"{rules} · " if rules else ""  # first, since the end may be cut
    crowded = CROWDED if rules != state.besides else ""
    if state.state == "starting" and state.phase is not None and state.phase.phase == "open":
        doing = state.phase.detail or _DOING["open"]
        return _LOOKS["starting"][0], f"{besides}{doing}", now - state.since
    if state.state == "running" and state.phase is not None:
        return _LOOKS["running"][0], f"{besides}{_doing(state.phase, state)}{crowded}", now - state.phase_since
    if state.state == "running" and state.round is not None:
        return (
            _LOOKS["running"][0],
            f"{besides}{_capital(state.counts.now.newest)} done{crowded}",
            now - state.round_time,
        )
    return _LOOKS[state.state][0], state.sentence, now - state.since if state.since else 0.0


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _doing(phase: Phase, state: DashboardState) -> str:
    """A phase of a round in words, what may be cut last."""
    doing = phase.detail or _DOING.get(phase.phase, "")
    if phase.phase == "evaluate":
        return f"{doing} · {state.counts.at(phase.round).when}"
    return (
        doing if phase.phase == "examples" and doing else f"Round {state.counts.practice_round(phase.round)} · {doing}"
    )


def run_identity(state: DashboardState) -> str:
    """The identity of the run: mode, model, method, engine, device."""
    run = state.run
    if run is None:
        return "" if state.phase is not None and state.phase.phase == "open" else "no model yet"
    method = "" if run.method == "full" else f" {run.method}"
    mode = "trial" if run.trial else run.mode
    who = f"{run.name} · {mode}" if run.name else f"{mode} · {run.model}"
    return f"{who}{method} · {run.backend} {run.device}"


def header_line(
    state: DashboardState, now: float, width: int, height: int, glyphs: GlyphSet, badge: str = ""
) -> Content:
    """The header line. The sentence matters more than the identity, which is cut first. badge: for a recording, comes first."""
    style, sentence, seconds = status_summary(state, now)
    if style == _LOOKS["running"][0] and not state.silo and state.swarm is not None and not state.swarm.connected:
        why = plain_text(state.swarm.held, 100) or "the coordinator is away"
        style, sentence = "$warning", f"alone: {why} · {sentence}"
    elif style == _LOOKS["running"][0] and state.trial.asks and not state.silo:
        sentence = f"trial done: stay? 2 · {sentence}"
    lost = state.link is not None and not state.link.connected and not state.gone
    killed = state.link is not None and state.link.ended
    mark = "!" if lost or killed else _LOOKS[state.state][1]
    if glyphs.ascii:
        mark = {"▶": ">", "✗": "x", "‖": "=", "■": "#", "…": "."}.get(mark, mark)
    right = f"{mark} {plain_text(sentence, 200)}"
    since = f" · {format_age(seconds)}" if seconds >= 1 and not state.finished else ""
    room_right = max(width - max(len(badge), 12) - 3 - len(since), 10)
    if state.gone and cell_len(right) > room_right:  # the log has the full sentence; the way out must not be cut
        wanted = state.state == "stopped" and state.link is not None and not state.link.refused
        right = (
            f"{mark} {'The node has stopped' if wanted else 'Not working: 5 says why'} · space starts the node again"
        )
    right = shorten_phrases(right, room_right)
    name = "sapo-desktop"
    if badge:
        name = badge
    room = width - len(name) - cell_len(right) - len(since) - 4
    identity = plain_text(run_identity(state), 200)
    identity = identity if cell_len(identity) <= room else fit_width(identity, room) if room > 8 else ""
    gap = max(width - len(name) - 2 - cell_len(identity) - cell_len(right) - len(since), 1)
    style_of_name = "bold reverse $accent" if badge else "bold $primary"
    return Content.assemble(
        (name, style_of_name), "  ", (identity, "$muted"), " " * gap, (right, f"bold {style}"), (since, "$muted")
    )
