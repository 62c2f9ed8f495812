"""One group in full: where it comes from, the question, each attempt with its verdict, what would have been right."""

from __future__ import annotations

from textual.content import Content

from sapo_desktop.dashboard.look.glyphs import Glyphs
from sapo_desktop.dashboard.look.show import plain, reward
from sapo_desktop.dashboard.look.stage_words import SECOND
from sapo_swarm.events import GroupRecorded
from sapo_swarm.types import Group, Rollout


def detail(event: GroupRecorded, glyphs: Glyphs, truth: str = "") -> Content:
    """The whole group: coordinates, question, and each attempt with its verdict. truth: a right answer, "" not asked for."""
    group = event.group
    source = f"from {plain(group.node[:8], 8)} ({plain(group.model, 40)})" if group.external else "local"
    source += f", {SECOND[group.stage]}" if group.stage in SECOND else ""
    used = "trained on" if event.trained else "not trained on"
    head = Content.assemble(
        (group.question.ref.label, "bold"),
        (f"  round {event.round + 1} · {source} · {used}", "$muted"),
        (f"  {glyphs.star} first success at this task" if event.first_solved else "", "bold $accent"),
    )
    rows = [head, Content("")]
    if truth:  # before the question, which may fill the screen
        rows += [Content.assemble(("a right answer  ", "bold $accent"), plain(truth, lines=True)), Content("")]
    rows += [Content(plain(group.question.prompt.strip(), lines=True)), Content("")]
    for place, rollout in enumerate(group.rollouts):
        rows += [verdict(group, place, glyphs), *_written(rollout), Content("")]
    return Content("\n").join(rows)


def _written(rollout: Rollout) -> list[Content]:
    """What the model wrote; of an episode each turn, and what its environment answered to the tool call in it."""
    if not rollout.turns:
        return [Content(plain(rollout.text.strip(), lines=True))]
    rows = [Content.styled("several turns: never shared with a swarm", "$muted")]
    number = 0
    for turn in rollout.turns:
        number += not turn.environment
        label = "    tool says" if turn.environment else f"    turn {number}"
        text = plain(turn.text.strip(), lines=True)
        rows.append(Content.assemble((f"{label}  ", "$muted"), (text, "$accent" if turn.environment else "")))
    return rows


def verdict(group: Group, place: int, glyphs: Glyphs) -> Content:
    """One line on the attempt at that place: right or not, reward, length, advantage."""
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
        (f"  reward {reward(rollout.reward)} · {rollout.tokens} tokens{push}", "$muted"),
    )


def verdict_words(rollout: Rollout) -> str:
    """Right or not, and whether it was cut."""
    word = "right" if rollout.reward >= 1 else "partly right" if rollout.reward > 0 else "wrong"
    if rollout.shortcut:
        word = "right on other questions too"
    return f"{word}, cut at the limit" if rollout.finish == "length" else word
