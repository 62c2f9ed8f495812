"""Help (keys and a glossary) and the doctor, as dialogs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from sapo_desktop.dashboard.history.run import MEANINGS
from sapo_desktop.dashboard.host import Examine
from sapo_desktop.dashboard.look import LETTERS, LISTS, PALETTE, UNICODE, GlyphSet, Rows, hanging_indent, plain_text
from sapo_desktop.dashboard.screens.dialogs import TextDialog
from sapo_desktop.errors import USER_ERRORS
from sapo_desktop.services.machine.self_test import COLUMN, Finding
from sapo_desktop.services.swarms.trial import EXTERNAL_SHARE, MY_SHARE, UPTAKE

# Help: keys, the current screen's first, and a glossary of the words on the screens.

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
        "first solved",
        "by task: whose success came in first, how many groups of others with a success were trained on before the first "
        "one here, and when that was. What came before what; that one led to the other is not shown",
    ),
    ("SAPO", "Swarm sAmpling Policy Optimization, arXiv 2509.08721. Not the Soft Adaptive one of the same name"),
)
_MARKS = ("right", "partial", "wrong", "cut", "star", "mark", "interval")
_COLUMN = 16
"""Columns of keys and of words."""


class HelpScreen(TextDialog):
    """The keys of the screen it was opened from, the keys of every screen, and the glossary."""

    TITLE = "Help"

    def __init__(
        self, watching: str, here: Rows, everywhere: Rows, glyphs: GlyphSet = UNICODE, typing: bool = False
    ) -> None:
        """watching: what is being watched. here, everywhere: keys of the current screen, and of every screen. typing: a text
        field has the focus."""
        super().__init__()
        self._typing = typing
        self.watching, self.here, self.everywhere = watching, here, [*everywhere, PALETTE]
        self._marks = str.maketrans({getattr(UNICODE, name): getattr(glyphs, name) for name in _MARKS})

    def text(self, width: int) -> Content:
        """See TextDialog.text."""
        rows = self._table("Keys here", self.here, "bold $accent", width) if self.here else []
        rows += self._table("Keys of every screen", self.everywhere, "bold $accent", width)
        rows += [Content.styled(hanging_indent(text, width, 0), "$muted") for text in (LETTERS,) * self._typing]
        rows += [Content.styled(hanging_indent(LISTS, width, 0), "$muted"), Content("")]
        rows += self._table("Words", WORDS, "$chart-local", width)
        rows.append(Content.styled(hanging_indent(f"Watching {plain_text(self.watching, 300)}", width, 0), "$muted"))
        return Content("\n").join(rows)

    def _table(self, title: str, rows: Iterable[tuple[str, str]], style: str, width: int) -> list[Content]:
        """One titled table of names and meanings, with the marks of this terminal. A long name pushes its meaning right."""
        translated = [(name.ljust(_COLUMN - 1) + " ", text.translate(self._marks)) for name, text in rows]
        lines = [Content.assemble((name, style), hanging_indent(text, width, len(name))) for name, text in translated]
        return [Content.styled(title, "bold"), *lines, Content("")]


# The doctor as a dialog: the same checks as `sapo-desktop doctor`, shown as they arrive.

_LABEL = COLUMN + 3
_STYLES = {"ok": "$success", "note": "$muted", "fail": "bold $error"}
_VERDICTS = {0: "Nothing needs mending.", 1: "One thing does not work: its line says what to do."}


class DoctorScreen(TextDialog):
    """Shows all findings, good and bad, as they arrive."""

    TITLE = "Doctor"
    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,q,d", "dismiss", "close", show=False)]

    def __init__(self, examine: Examine, glyphs: GlyphSet) -> None:
        super().__init__()
        self._examine, self._glyphs = examine, glyphs
        self.findings: list[Finding] = []
        self.verdict = "Looking …"

    def on_mount(self) -> None:
        """Start the checks."""
        self.run_worker(self._look(), name="doctor", exit_on_error=True)

    async def _look(self) -> None:
        try:
            async for finding in self._examine():
                self.findings.append(finding)
                self.draw()
        except USER_ERRORS as error:
            self.verdict = str(error)
        else:
            failed = sum(finding.verdict == "fail" for finding in self.findings)
            self.verdict = _VERDICTS.get(failed, f"{failed} things do not work: their lines say what to do.")
        self.draw()

    def text(self, width: int) -> Content:
        """The verdict and the findings so far."""
        rows = [Content.styled(hanging_indent(plain_text(self.verdict, 300), width, 0), "bold"), Content("")]
        rows += [finding_line(finding, width, self._glyphs) for finding in self.findings]
        return Content("\n").join(rows)


def finding_line(finding: Finding, width: int, glyphs: GlyphSet) -> Content:
    """Mark, subject and finding; the mark conveys the result without colour."""
    mark = {"ok": glyphs.done, "note": glyphs.todo, "fail": glyphs.bad}[finding.verdict]
    return Content.assemble(
        (f"{mark} {finding.what:<{COLUMN}} ", _STYLES[finding.verdict]),
        hanging_indent(plain_text(finding.text, 600), width, _LABEL),
    )
