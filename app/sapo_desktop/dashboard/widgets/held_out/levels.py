"""Where the difficulty-adaptive sampler is: how often each level of a task was asked lately, and how often solved."""

from __future__ import annotations

from collections import defaultdict

from textual.content import Content

from sapo_desktop.dashboard.look.show import fit, plain
from sapo_desktop.dashboard.state import DashboardState
from sapo_swarm.tasks.own.library import PRESET
from sapo_swarm.tasks.own.row_roles import PREFIX

LATELY = 256
"""Local groups that are looked back on."""


def levels(state: DashboardState, width: int) -> list[Content]:
    """One line a level of a person's own task, the tasks in order, and before them one line a preset of the usual tasks
    together where these are asked at several; nothing where there is one difficulty."""
    usual: dict[tuple[str, str], list[float]] = defaultdict(list)
    own: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in state.groups.newest(LATELY):
        ref, rewards = event.group.question.ref, event.group.rewards
        if event.group.source == "own" and rewards:
            mean = sum(rewards) / len(rewards)
            if ref.preset.startswith(PREFIX):
                own[ref.dataset, ref.preset.removeprefix(PREFIX)].append(mean)
            elif ref.preset != PRESET:
                usual["", ref.preset].append(mean)
    asked = {**(usual if len(usual) > 1 else {}), **own}
    total = sum(map(len, asked.values()))
    rows = []
    for (task, level), rates in sorted(asked.items()):
        name = fit(plain(f"{task} {level}".strip(), 60), max(width - 26, 8))
        figures = f" asked {100 * len(rates) / total:3.0f} %  right {100 * sum(rates) / len(rates):3.0f} %"
        rows.append(Content.assemble(name, (figures, "$muted")))
    return [Content.styled("Difficulty, lately", "bold"), *rows] if rows else []
