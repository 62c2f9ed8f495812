"""One group in full, two of its attempts side by side, and the list that shows one page of groups."""

from __future__ import annotations

import difflib
import re
from typing import ClassVar, Literal

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from sapo_desktop.dashboard.look import GlyphSet, format_reward_value, plain_text
from sapo_desktop.dashboard.screens.dialogs import Dialog
from sapo_desktop.dashboard.widgets.frame import ChoiceList
from sapo_swarm.events import GroupRecorded
from sapo_swarm.node.training_count import ROUNDS_ONLY, TrainingCounts
from sapo_swarm.types import Group, Rollout

# One group in full: its origin, the question, each attempt with its verdict, and a correct answer.


def group_details(
    event: GroupRecorded, glyphs: GlyphSet, truth: str = "", counts: TrainingCounts = ROUNDS_ONLY
) -> Content:
    """The whole group: origin, question, and each attempt with its verdict. truth: a correct answer, "" if not requested.
    counts: to say in which round it was."""
    group = event.group
    source = f"from {plain_text(group.node[:8], 8)} ({plain_text(group.model, 40)})" if group.external else "local"
    used = "trained on" if event.trained else "not trained on"
    head = Content.assemble(
        (group.question.ref.label, "bold"),
        (f"  round {counts.practice_round(event.round)} · {source} · {used}", "$muted"),
        (f"  {glyphs.star} first success at this task" if event.first_solved else "", "bold $accent"),
    )
    rows = [head, Content("")]
    if truth:  # before the question, which may fill the screen
        rows += [Content.assemble(("a right answer  ", "bold $accent"), plain_text(truth, lines=True)), Content("")]
    rows += [Content(plain_text(group.question.prompt.strip(), lines=True)), Content("")]
    for place, rollout in enumerate(group.rollouts):
        rows += [verdict_line(group, place, glyphs), *_written(rollout), Content("")]
    return Content("\n").join(rows)


def _written(rollout: Rollout) -> list[Content]:
    """The completion; for an episode each turn, and the environment's reply to its tool call."""
    if not rollout.turns:
        return [Content(plain_text(rollout.text.strip(), lines=True))]
    rows = [Content.styled("several turns: never shared with a swarm", "$muted")]
    number = 0
    for turn in rollout.turns:
        number += not turn.environment
        label = "    tool says" if turn.environment else f"    turn {number}"
        text = plain_text(turn.text.strip(), lines=True)
        rows.append(Content.assemble((f"{label}  ", "$muted"), (text, "$accent" if turn.environment else "")))
    return rows


def verdict_line(group: Group, place: int, glyphs: GlyphSet) -> Content:
    """One line on the attempt at that index: correct or not, reward, length, advantage."""
    rollout = group.rollouts[place]
    advantage = group.advantages[place] if place < len(group.advantages) else None
    if rollout.reward >= 1:
        mark, style = glyphs.right, "bold $success"
    elif rollout.reward > 0:
        mark, style = glyphs.partial, "bold $warning"
    else:
        mark, style = glyphs.cut if rollout.finish == "length" else glyphs.wrong, "bold $muted"
    word = verdict_words(rollout)
    push = f" · advantage {advantage:+.2f}" if advantage is not None else " · no advantage: all rewards equal"
    return Content.assemble(
        (f"{mark} {place + 1}  {word}", style),
        (f"  reward {format_reward_value(rollout.reward)} · {rollout.tokens} tokens{push}", "$muted"),
    )


def verdict_words(rollout: Rollout) -> str:
    """Whether it is correct, and whether it was truncated."""
    word = "right" if rollout.reward >= 1 else "partly right" if rollout.reward > 0 else "wrong"
    if rollout.shortcut:
        word = "right on other questions too"
    return f"{word}, cut at the limit" if rollout.finish == "length" else word


# A diff of two attempts at one question, marked with characters as well as colours.

_PIECES = re.compile(r"\s+|\w+|[^\w\s]")
_MOST = 3000
"""Words and punctuation marks of an attempt that are compared; the rest is cut off."""


def diff_completions(first: str, second: str) -> Content:
    """One text: [-only in the first-] {+only in the second+}."""
    before, after = (_PIECES.findall(plain_text(text.strip(), lines=True))[:_MOST] for text in (first, second))
    parts: list[str | tuple[str, str]] = []
    for kind, a, b, c, d in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if kind == "equal":
            parts.append("".join(before[a:b]))
            continue
        if b > a:
            parts.append((f"[-{''.join(before[a:b])}-]", "$error"))
        if d > c:
            parts.append((f"{{+{''.join(after[c:d])}+}}", "$success"))
    return Content.assemble(*parts)


def best_and_worst(event: GroupRecorded) -> tuple[int, int]:
    """The indices of the best and the worst attempt, whose difference is what there is to learn."""
    rewards = event.group.rewards
    best = max(range(len(rewards)), key=rewards.__getitem__)
    worst = min((place for place in range(len(rewards)) if place != best), key=rewards.__getitem__)
    return best, worst


class DiffScreen(Dialog[None]):
    """Two attempts of a group that has at least two; keys a and b choose which."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "other(0)", "first", show=False),
        Binding("b", "other(1)", "second", show=False),
        Binding("escape,q,x", "back", "close", show=False),
    ]
    AUTO_FOCUS: ClassVar[str | None] = "#lines"

    def __init__(self, event: GroupRecorded, glyphs: GlyphSet) -> None:
        super().__init__()
        self.event, self.glyphs = event, glyphs
        self.places = list(best_and_worst(event))

    def compose(self) -> ComposeResult:
        """The widgets, in their order."""
        with Vertical(classes="box dialog diff") as box:
            box.border_title = Content.styled("Two attempts compared", "bold")
            box.border_subtitle = Content.styled("a b choose which · arrows scroll · Esc closes", "$muted")
            yield Static("", id="which", markup=False)
            with VerticalScroll(id="lines"):
                yield Static("", id="text", markup=False)

    def on_mount(self) -> None:
        """Compare the best with the worst."""
        self._show()

    def _show(self) -> None:
        first, second = self.places
        group = self.event.group
        signs = Content.assemble(("[-only in the first-]", "$error"), "  ", ("{+only in the second+}", "$success"))
        heads = [verdict_line(group, place, self.glyphs) for place in self.places]
        self.query_one("#which", Static).update(Content("\n").join([*heads, signs, Content("")]))
        self.query_one("#text", Static).update(
            diff_completions(group.rollouts[first].text, group.rollouts[second].text)
        )

    def action_other(self, side: int) -> None:
        """The next attempt on that side; never one and the same on both."""
        count = len(self.event.group.rollouts)
        self.places[side] = (self.places[side] + 1) % count
        if self.places[0] == self.places[1]:
            self.places[side] = (self.places[side] + 1) % count
        self._show()

    def action_back(self) -> None:
        """Close."""
        self.dismiss()


# A list that shows one page of many: moving past its edge loads the next page.

Edge = Literal["older", "newer", "newest", "oldest"]


class GroupList(ChoiceList):
    """The rows of one page. Sends Left when the cursor moves beyond the page."""

    class Left(Message):
        """The cursor left the page: another one is needed."""

        def __init__(self, edge: Edge) -> None:
            super().__init__()
            self.edge = edge

    @property
    def _last(self) -> int:
        return self.option_count - 1

    def _walk(self, edge: Edge, at: int) -> bool:
        """Whether a step from the row `at` leads to another page; if so, send Left."""
        if self.highlighted not in (None, at):
            return False
        self.post_message(self.Left(edge))
        return True

    def action_cursor_down(self) -> None:
        """The next row, or page."""
        if not self._walk("older", self._last):
            super().action_cursor_down()

    def action_cursor_up(self) -> None:
        """The row before, or page."""
        if not self._walk("newer", 0):
            super().action_cursor_up()

    def action_page_down(self) -> None:
        """A screenful on."""
        if not self._walk("older", self._last):
            super().action_page_down()

    def action_page_up(self) -> None:
        """A screenful back."""
        if not self._walk("newer", 0):
            super().action_page_up()

    def action_first(self) -> None:
        """The newest group of all."""
        self.post_message(self.Left("newest"))

    def action_last(self) -> None:
        """The oldest group of all."""
        self.post_message(self.Left("oldest"))
