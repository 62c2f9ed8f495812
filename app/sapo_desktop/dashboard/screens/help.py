"""Help: keys, and the words the screens use."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from sapo_desktop.dashboard.history.moments import MEANINGS
from sapo_desktop.dashboard.look.show import hang, plain
from sapo_desktop.dashboard.screens.dialogs import TextDialog
from sapo_desktop.services.swarms.shares import EXTERNAL_SHARE, MY_SHARE, UPTAKE

KEYS = (
    ("1 to 5", "Dashboard, Swarm, Rollouts, My models, Log"),
    ("space", "pause or resume, within a second"),
    ("F", "finish the round, then pause"),
    ("z", "snooze: pause for 15, 60 or 240 minutes"),
    ("r", "run anyway for an hour (not without memory or disk); again: ends that"),
    ("e", "expand one chart, then the other, then the held-out results of every task over time, then back"),
    ("+  -  =", "charts: half of the window, twice of it, all (the wheel of the mouse too)"),
    ("<  >", "charts: earlier, later; ← → too, and dragging"),
    ("T", "charts: the axis in time (gaps where nothing ran), or in rounds"),
    ("X", "charts: one crosshair over all of them, moved with ← →; the mouse brings its own"),
    ("b", "charts: smallest and largest values beside the mean"),
    ("s", "charts: mean of 20, 50, 1 or 5 rounds"),
    ("f", "freeze the charts; training goes on"),
    ("j  h  l", "on the swarm screen: join, host, leave a swarm"),
    ("f  s", "on the swarm screen: find a swarm in a directory; stay in an open one after its trial"),
    ("a", "on the swarm screen, where you host with approval: let in the node that waits longest"),
    ("x", "on the swarm screen: take external groups again after the held-out tripwire stopped them"),
    ("w", "on the swarm screen: the Aha trail of every task, in full"),
    ("t o w u v", "on the rollouts screen: only one task, source, outcome, trained on or not, first solved"),
    ("x a c e", "on the rollouts screen: compare two attempts, a right answer, copy, export what fits"),
    ("c  n  v", "on the models screen: train this one, make a new one, compare two"),
    ("t  e", "on the models screen: talk to it beside its base, export it"),
    ("r d f x", "on the models screen: rename, duplicate, free space, delete"),
    ("m", "make a task of my own from a file, and train a model on it"),
    ("/", "search (Rollouts, Log)"),
    ("[ ] ^ , .", "over a recording: back, forth, to the beginning, slower, faster; space holds it"),
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
        "letters",
        "below a chart: " + ", ".join(f"{letter} {word}" for letter, word in MEANINGS.items()) + ". ◆ held-out pass@1, "
        "┊ its 95 % interval",
    ),
    (MY_SHARE, "of all groups that the coordinator accepted in its window (mostly an hour), the part that is mine"),
    (UPTAKE, "how often other nodes sampled groups of mine in that window, since this node was started at most"),
    (EXTERNAL_SHARE, "of the groups in my last 50 training batches, the part that came from other nodes"),
    (
        "Aha trail",
        "by task: whose success came in first, how many groups of others with a success were trained on before the first "
        "one here, and when that was. What came before what; that one led to the other is not shown",
    ),
    ("SAPO", "Swarm sAmpling Policy Optimization, arXiv 2509.08721. Not the Soft Adaptive one of the same name"),
)


class HelpScreen(TextDialog):
    """Keys, words, and what is being watched."""

    TITLE = "Help"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("question_mark,f1", "dismiss", "close", show=False)]

    def __init__(self, watching: str) -> None:
        super().__init__()
        self.watching = watching

    def text(self, width: int) -> Content:
        """See TextDialog.text."""
        rows = [Content.styled("Keys", "bold")]
        rows += [Content.assemble((key.ljust(9), "bold $accent"), hang(meaning, width, 9)) for key, meaning in KEYS]
        rows += [Content(""), Content.styled("Words", "bold")]
        rows += [
            Content.assemble((word.ljust(15), "$chart-local"), hang(meaning, width, 15)) for word, meaning in WORDS
        ]
        rows += [Content(""), Content.styled(hang(f"Watching {plain(self.watching, 300)}", width, 0), "$muted")]
        return Content("\n").join(rows)
