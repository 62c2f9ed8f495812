"""The settings of a model that is made for tasks of the person's own."""

from __future__ import annotations

import msgspec

from sapo_desktop.settings import flags
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks import catalogue
from sapo_swarm.tasks.own import library


def fitted(config: RunConfig) -> RunConfig:
    """Room for the longest answers, and its levels of difficulty chosen from where a task has them. Raises BadTask."""
    own = [task for task in config.tasks if catalogue.is_own(task)]
    if config.curriculum == "uniform" and any(len(library.presets(task)) > 1 for task in own):
        config = msgspec.structs.replace(config, curriculum="presets")
    return flags.with_room(config)
