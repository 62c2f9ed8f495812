"""The settings of a model that is made for tasks of the person's own."""

from __future__ import annotations

import msgspec

from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library

EVALUATED = 144
"""Held-out questions of one evaluation, over all tasks: as many as the nine usual tasks have. 16 tell a score to +-25 points."""


def fitted(config: RunConfig) -> RunConfig:
    """Room for the longest answers, enough held-out questions a task for a figure, and its levels of difficulty chosen from
    where a task has them. Raises BadTask."""
    each = max(config.eval_items, EVALUATED // len(config.tasks))
    most = max(catalogue.held_out_count(task, each) for task in config.tasks)
    own = [task for task in config.tasks if catalogue.is_own(task)]
    if config.curriculum == "uniform" and any(len(library.presets(task)) > 1 for task in own):
        config = msgspec.structs.replace(config, curriculum="presets")
    return flags.with_room(msgspec.structs.replace(config, eval_items=max(config.eval_items, most)))
