"""What a node is given, and what it makes of it when a run opens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from sapo_backends.base import Engine, EngineInfo, Progress
from sapo_swarm.algorithms.base import learning_rate
from sapo_swarm.algorithms.registry import algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Mode, Phase, RunStarted
from sapo_swarm.node.engine_thread import EngineHost
from sapo_swarm.node.governor.limits import Limits
from sapo_swarm.node.round.phases import RoundContext
from sapo_swarm.node.round.progress import Activity
from sapo_swarm.node.swarm.exchange import Exchange, Silo
from sapo_swarm.scoring.scorer import Scorer

SILO = "silo"
"""In place of a swarm's id: part of every training seed."""
Build = Callable[[Progress], Engine]


@dataclass
class NodeSetup:
    """Everything a node is given. folder: the run's own; build: loads the engine, called in its thread.

    name, base, changed: of the model, for its history (events.RunStarted).
    limits: what the person allows, asked for every second (in a thread), so that a change counts at once.
    """

    config: RunConfig
    run_id: str
    folder: Path
    build: Build
    limits: Callable[[], Limits] = Limits
    exchange: Exchange = field(default_factory=Silo)
    node_key: str = ""
    swarm: str = SILO
    version: str = ""
    name: str = ""
    base: str = ""
    changed: tuple[str, ...] = ()

    @property
    def mode(self) -> Mode:
        """Alone or in a swarm."""
        return "silo" if self.swarm == SILO else "swarm"


def round_context(
    setup: NodeSetup,
    config: RunConfig,
    host: EngineHost,
    scorer: Scorer,
    activity: Activity,
    stream: Callable[[Phase], None],
    apart: frozenset[str],
) -> RoundContext:
    """The bench of a node whose engine is loaded. config: the setup's, with what the engine decided filled in. apart: node.apart.

    Raises UnknownAlgorithm.
    """
    info, rule = host.engine.info, algorithm(config.algorithm)
    return RoundContext(
        config=config,
        node_key=setup.node_key or f"silo-{config.seed}",
        swarm=setup.swarm,
        host=host,
        scorer=scorer,
        exchange=setup.exchange,
        algorithm=rule,
        policy=rule.policy(config, learning_rate(config, info.method, info.parameters)),
        activity=activity,
        stream=stream,
        model_label=info.model,
        apart=apart,
    )


def announcement(
    run_id: str, mode: Mode, config: RunConfig, info: EngineInfo, rounds_done: int, versions: dict[str, str]
) -> RunStarted:
    """The event with which every opening of a model begins. config: with what the engine decided filled in."""
    return RunStarted(
        run_id=run_id,
        mode=mode,
        model=info.model,
        backend=info.backend,
        device=info.device,
        precision=info.precision,
        method=info.method,
        parameters=info.parameters,
        tasks=config.tasks,
        algorithm=config.algorithm,
        group_size=config.group_size,
        local_groups=config.local_groups,
        external_groups=config.external_groups,
        round=rounds_done,
        rounds_planned=config.rounds,
        seed=config.seed,
        versions=versions,
        computed_by=info.extra.get("computed_by", ""),
    )
