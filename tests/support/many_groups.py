"""A journal with as many groups as wanted, quickly: texts of words, rewards and tasks that follow from the number."""

from __future__ import annotations

import random
from pathlib import Path

from tests.support.records import opened

from sapo_swarm.config import PAPER_TASKS
from sapo_swarm.events import Event, GroupRecorded
from sapo_swarm.node.journal import Journal
from sapo_swarm.types import Group, Question, Rollout, TaskRef

COMMON = (
    "the answer is so much as seven and three of a sum that was asked for here now with all steps first then "
    "we add multiply take away carry digit number result equals therefore because total count letter word list "
    "sort order"
).split()
TOGETHER = 2000


def group_number(number: int, size: int = 8) -> GroupRecorded:
    """The group of that number: a round holds 32; every 7th is external, every 5,000th a first success, every 3rd untrained."""
    rng = random.Random(number)
    rare = "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(4, 9)))
    prompt = " ".join([*rng.choices(COMMON, k=30), rare, f"question {number}?"])
    ref = TaskRef(PAPER_TASKS[number % len(PAPER_TASKS)], "starter", number)
    right = 8 if number % 11 == 0 else 0 if number % 4 == 0 else rng.randint(1, size - 1)
    rollouts = tuple(
        Rollout(
            f"{' '.join(rng.choices(COMMON, k=12))} <answer>{rng.randrange(10**4)}</answer>",
            "stop",
            float(slot < right),
            20,
        )
        for slot in range(size)
    )
    external = number % 7 == 0
    group = Group(
        Question(ref, prompt, "0" * 64),
        rollouts,
        source="external" if external else "own",
        node="b" * 26 if external else "",
        model="other" if external else "starter",
        advantages=tuple(rollout.reward - 0.5 for rollout in rollouts),
    )
    first = number % 5000 == 1
    return GroupRecorded(
        time=1.79e9 + number, round=number // 32, group=group, trained=number % 3 != 0, first_solved=first
    )


def journal_with(path: Path, groups: int, size: int = 8) -> Path:
    """The journal of a run with so many groups."""
    journal = Journal(path)
    try:
        waiting: list[Event] = [opened(0)]
        for number in range(groups):
            waiting.append(group_number(number, size))
            if len(waiting) >= TOGETHER:
                journal.append(waiting)
                waiting = []
        journal.append(waiting)
    finally:
        journal.close()
    return path
