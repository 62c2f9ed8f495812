"""Stages by name: the values of run.stage beside "none"."""

from __future__ import annotations

from collections.abc import Mapping

from sapo_swarm.sapo.stages.base import Stage
from sapo_swarm.sapo.stages.critique import Critique
from sapo_swarm.sapo.stages.relay import Relay

STAGES: Mapping[str, Stage] = {
    "relay": Relay(),
    "relay_start": Relay("start"),
    "retry": Relay("none"),
    "critique": Critique(),
}
