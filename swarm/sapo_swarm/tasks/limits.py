"""How many tokens an answer to a task may have: the run's limit, or less where the task needs less."""

from __future__ import annotations

from collections.abc import Mapping

from sapo_swarm.config import RunConfig
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library

MOST = 8192


def listed(config: RunConfig) -> Mapping[str, int]:
    """Task -> tokens as run.task_tokens says. Raises ValueError."""
    found = {}
    for entry in config.task_tokens:
        task, equals, number = entry.rpartition("=")
        if not equals or not number.isdecimal() or not 1 <= int(number) <= MOST:
            raise ValueError(f"{entry!r} is not a task with its tokens, such as bf=256 (1 to {MOST}).")
        found[task.strip()] = int(number)
    return found


def new_tokens(config: RunConfig, task: str) -> int:
    """Of a completion, for a question of that task: run.task_tokens goes first, then max_new_tokens of an own task's task.toml
    unless the model reasons first; never more than run.max_new_tokens. Raises ValueError, BadTask."""
    wanted = listed(config).get(task)
    if wanted is not None:
        return min(wanted, config.max_new_tokens)
    needed = library.find(task).spec.max_new_tokens if catalogue.is_own(task) and config.thinking != "on" else 0
    return min(needed, config.max_new_tokens) if needed else config.max_new_tokens
