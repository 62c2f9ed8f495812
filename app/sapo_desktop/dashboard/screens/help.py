"""Help: keys, and the words the screens use."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from sapo_desktop.dashboard.look.show import hang, plain

KEYS = (
    ("1 to 5", "Dashboard, Swarm, Rollouts, My models, Log"),
    ("space", "pause or resume, within a second"),
    ("F", "finish the round, then pause"),
    ("z", "snooze: pause for 15, 60 or 240 minutes"),
    ("r", "run anyway for an hour, whatever battery and heat say"),
    ("e", "expand one chart, then the other, then back"),
    ("+  -  =", "shorter window, longer window, all rounds"),
    ("s", "smoothing of the charts: mean of 20, 50, 1 or 5 rounds"),
    ("f", "freeze the charts; training goes on"),
    ("j  h  l", "on the swarm screen: join, host, leave a swarm"),
    ("x", "on the swarm screen: take external groups again after the held-out tripwire stopped them"),
    ("c  n  v", "on the models screen: train this one, make a new one, compare two"),
    ("t  e", "on the models screen: talk to it beside its base, export it"),
    ("r d f x", "on the models screen: rename, duplicate, free space, delete"),
    ("/", "search (Rollouts, Log)"),
    ("F2  d", "settings; doctor: what works on this machine"),
    ("ctrl+p", "palette: every command by name, themes too"),
    ("q", "quit: stop everything, or keep working in the background"),
)
WORDS = (
    (
        "local",
        "what this node generated itself. Local reward: the mean of all local groups, before the update, nothing left out",
    ),
    (
        "external",
        "what came from other nodes of the swarm, scored again here. Those groups were chosen for being useful, so do not "
        "compare their reward with the local one",
    ),
    (
        "held-out",
        "strict 0/1 score on fixed questions that training never sees: the figure that tells whether it learns",
    ),
    (
        "shortcut",
        "answer-only shortcut: at least half of this task's score can be had without reading the question. Found by giving "
        "each answer to other questions (answer-permutation check). run.contrast = 2 rewards fewer of them",
    ),
    ("unequal", "groups with unequal rewards, so with non-zero advantages: only these change the model"),
    (
        "group",
        "one question with its attempts (rollouts). ● right  ◐ partly  ○ wrong  ◌ cut at the limit  ★ first success at a task",
    ),
    (
        "swarm share",
        "my accepted groups of all accepted groups in the last window; uptake: how often other nodes sampled mine",
    ),
    ("SAPO", "Swarm sAmpling Policy Optimization, arXiv 2509.08721. Not the Soft Adaptive one of the same name"),
)


class HelpScreen(ModalScreen[None]):
    """Keys, words, and what is being watched."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,question_mark,f1", "dismiss", "close", show=False)]

    def __init__(self, watching: str) -> None:
        super().__init__()
        self.watching = watching

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with VerticalScroll(classes="box help") as box:
            box.border_title = Content.styled("Help", "bold")
            box.border_subtitle = Content.assemble(
                ("↑ ↓", "bold $accent"), (" scroll   ", "$muted"), ("Esc", "bold $accent"), (" close", "$muted")
            )
            yield Static("", id="help-text", markup=False)

    def on_resize(self) -> None:
        """Wrap anew."""
        width = self.query_one(VerticalScroll).scrollable_content_region.width
        self.query_one("#help-text", Static).update(self._text(max(width, 30)))

    def _text(self, width: int) -> Content:
        rows = [Content.styled("Keys", "bold")]
        rows += [Content.assemble((key.ljust(9), "bold $accent"), hang(meaning, width, 9)) for key, meaning in KEYS]
        rows += [Content(""), Content.styled("Words", "bold")]
        rows += [
            Content.assemble((word.ljust(13), "$chart-local"), hang(meaning, width, 13)) for word, meaning in WORDS
        ]
        rows += [Content(""), Content.styled(hang(f"Watching {plain(self.watching, 300)}", width, 0), "$muted")]
        return Content("\n").join(rows)
