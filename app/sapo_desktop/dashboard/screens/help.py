"""Help: keys, those of the place first, and the words the screens use."""

from __future__ import annotations

from textual.content import Content

from sapo_desktop.dashboard.history.moments import MEANINGS
from sapo_desktop.dashboard.look.glyphs import UNICODE, Glyphs
from sapo_desktop.dashboard.look.show import hang, plain
from sapo_desktop.dashboard.screens.dialogs import TextDialog
from sapo_desktop.services.swarms.shares import EXTERNAL_SHARE, MY_SHARE, UPTAKE

Keys = tuple[tuple[str, str], ...]
EVERYWHERE: Keys = (
    ("1 to 5", "Dashboard, Swarm, Rollouts, My models, Log"),
    ("space", "pause or resume, within a second"),
    ("F", "finish the round, then pause"),
    ("z", "snooze: pause for 15, 60 or 240 minutes"),
    ("r", "run anyway for an hour (not without memory or disk); again: ends that"),
    ("m", "make a task of my own from a file, and train a model on it"),
    ("F2  d", "settings; doctor: what works on this machine"),
    ("? F1", "this help; F1 while a text is typed, too"),
    ("ctrl+p", "palette: every command by name, themes too"),
    ("q ctrl+q", "quit: stop the node, or keep it working in the background"),
)
PLACES: dict[str, Keys] = {
    "charts": (
        ("e", "expand one chart, then the other, then the held-out results of every task over time, then back"),
        ("+  -  =", "half of the window, twice of it, all (the wheel of the mouse too)"),
        ("<  >", "earlier, later; the arrow keys too, and dragging"),
        ("T", "the axis in time (gaps where nothing ran), or in rounds"),
        ("X", "one crosshair over all of them: the arrow keys move it, the mouse brings its own"),
        ("b", "smallest and largest values beside the mean"),
        ("s", "mean of 20, 50, 1 or 5 rounds"),
        ("f", "freeze them; training goes on"),
    ),
    "swarm": (
        ("j  h  l", "join, host, leave a swarm"),
        ("f  s", "find a swarm in a directory; stay in an open one after its trial"),
        ("a", "where you host with approval: let in the node that waits longest"),
        ("t", "tasks of the host's own: look at them, then accept or not"),
        ("x", "take external groups again after the held-out tripwire stopped them"),
        ("w", "the Aha trail of every task, in full"),
    ),
    "rollouts": (
        ("↑ ↓", "another group; beyond the page the next page"),
        ("Tab", "read on: the arrows scroll the question and its attempts; again: back to the list"),
        ("t o w u v", "only one task, source, reward, trained on or not, first solved"),
        ("x a c e", "compare two attempts, a right answer, copy, export what fits"),
        ("/", "search; Esc takes search and filters away"),
    ),
    "models": (
        ("c  n  v", "train this one, make a new one, compare two"),
        ("t  e", "talk to it beside its base, export it"),
        ("r d f x", "rename, duplicate, free space, delete"),
    ),
    "chat": (
        ("Enter", "ask both"),
        ("F3  F4", "the trained model's last answer was good, or bad; m makes a task of such answers"),
        ("Esc", "close; a node that waited goes on"),
    ),
    "log": (("/", "search; Esc takes the search away"),),
    "settings": (
        ("Enter  d", "change it; back to the default"),
        ("a", "apply: the node finishes its round and starts with what stands here"),
        ("/  v", "search; the simple ones alone, or all"),
        ("w", "the questions of the first start once more"),
    ),
    "forms": (
        ("↑ ↓", "another field"),
        ("← →", "another answer, where ◂ ▸ stand beside it"),
        ("Enter  Esc", "go on; back, and nothing is kept"),
    ),
    "recording": (
        ("[ ] ^", "back, forth, to the beginning"),
        (", .", "slower, faster; space holds it"),
    ),
}
"""Keys that count in one place. A screen says in HELP which of them are its own: they come first."""
WORDS = (
    ("task", "a kind of question, with a program that judges the answers: the verifier"),
    ("reward", "what the verifier gave for an attempt: 1 for right, 0 for wrong, between them for partly right"),
    (
        "round",
        "questions are sampled, the model attempts each several times, the verifier judges, and what did better becomes "
        "more likely. That is reinforcement learning",
    ),
    ("base", "the model that the training started from, and is compared with"),
    ("node", "the program that trains. This window only shows and steers it. Silo: it trains alone"),
    (
        "group",
        "one question with its attempts (rollouts). ● right  ◐ partly  ○ wrong  ◌ cut at the limit  ★ first success at a task",
    ),
    (
        "advantage",
        "by how much an attempt did better than the mean of its group: plus is made more likely, minus less so",
    ),
    ("unequal", "groups with unequal rewards, so with non-zero advantages: only these change the model"),
    (
        "held-out",
        "strict 0/1 score on fixed questions that training leaves out: the figure that tells whether it learns. pass@1: the "
        "share that is right at one attempt. T=1: sampled at temperature 1, as in training; 0: always the likeliest token",
    ),
    (
        "95 %",
        "the range in brackets holds the true value in 19 of 20 cases; with few questions it is wide. A change whose range holds "
        "0 may be chance. McNemar p: how likely chance alone would split gained and lost so unevenly",
    ),
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
        "shortcut",
        "answer-only shortcut: at least half of this task's score can be had without reading the question. Found by giving "
        "each answer to other questions (answer-permutation check). run.contrast = 2 rewards fewer of them",
    ),
    (
        "tripwire",
        "in a swarm: where held-out questions show a clear loss, the best weights come back and no external groups are taken "
        "until you say so",
    ),
    ("tok/s", "tokens a second; a token is a piece of a word"),
    (
        "loss",
        "of the last update, for experts. grad: how large it was; entropy: how undecided the model is, falls as it learns; "
        "clipped: the part of the tokens whose update was limited",
    ),
    (
        "letters",
        "below a chart: " + ", ".join(f"{letter} {word}" for letter, word in MEANINGS.items()) + ". ◆ held-out pass@1, "
        "┊ its 95 % interval",
    ),
    (MY_SHARE, "of all groups that the coordinator accepted in its window (mostly an hour), the part that is mine"),
    (UPTAKE, "how often other nodes sampled groups of mine in that window, since this node was started at most"),
    (EXTERNAL_SHARE, "of the groups in my last 50 training batches, the part that came from other nodes"),
    ("coordinator", "the server of a swarm: it passes the groups on, and never trains or judges"),
    (
        "Aha trail",
        "by task: whose success came in first, how many groups of others with a success were trained on before the first "
        "one here, and when that was. What came before what; that one led to the other is not shown",
    ),
    ("SAPO", "Swarm sAmpling Policy Optimization, arXiv 2509.08721. Not the Soft Adaptive one of the same name"),
)
_MARKS = ("right", "partial", "wrong", "cut", "star", "mark", "interval")
_ARROWS = {"↑": "up", "↓": "down", "←": "left", "→": "right"}
"""Arrow keys where there are no arrows: < and > are other keys."""
_KEY, _WORD = 11, 15
"""Columns of a key and of a word."""


class HelpScreen(TextDialog):
    """The keys of the place that it was opened from, those that count everywhere, words, the other keys."""

    TITLE = "Help"

    def __init__(self, watching: str, here: tuple[str, ...] = (), glyphs: Glyphs = UNICODE) -> None:
        """watching: what is being watched. here: the places whose keys count now."""
        super().__init__()
        self.watching, self.here = watching, here
        marks = {getattr(UNICODE, name): getattr(glyphs, name) for name in _MARKS}
        self._marks = str.maketrans(marks | (_ARROWS if glyphs.ascii else {}))

    def text(self, width: int) -> Content:
        """See TextDialog.text."""
        here = tuple(key for place in self.here for key in PLACES.get(place, ()))
        rows = self._keys("Keys here", here, width) if here else []
        rows += [*self._keys("Keys of every screen", EVERYWHERE, width), Content.styled("Words", "bold")]
        rows += [
            Content.assemble((word.ljust(_WORD), "$chart-local"), hang(self._shown(meaning), width, _WORD))
            for word, meaning in WORDS
        ]
        rows.append(Content(""))
        for place, keys in PLACES.items():
            rows += self._keys(f"Keys: {place}", keys, width) if place not in self.here else []
        rows.append(Content.styled(hang(f"Watching {plain(self.watching, 300)}", width, 0), "$muted"))
        return Content("\n").join(rows)

    def _keys(self, title: str, keys: Keys, width: int) -> list[Content]:
        told = [(self._shown(key).ljust(_KEY), self._shown(text)) for key, text in keys]
        rows = [Content.assemble((key, "bold $accent"), hang(text, width, _KEY)) for key, text in told]
        return [Content.styled(title, "bold"), *rows, Content("")]

    def _shown(self, text: str) -> str:
        """With the marks that the screens show here."""
        return text.translate(self._marks)
