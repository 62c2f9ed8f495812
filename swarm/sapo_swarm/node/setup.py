"""What a node is given, and what it makes of that when a run opens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from sapo_backends.base import Engine, EngineInfo, Progress
from sapo_swarm.algorithms import groups_of_a_source, learning_rate, load_algorithm
from sapo_swarm.config import MOST_EVAL_ITEMS, REASONING_TOKENS, RunConfig
from sapo_swarm.evaluation import held_out_items, held_out_name
from sapo_swarm.events import Mode, Phase, RunStarted
from sapo_swarm.node.base_trial import StoredTrials
from sapo_swarm.node.checkpoints import package_versions
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.evaluation import Evaluator
from sapo_swarm.node.governor.rules import MachineMonitor, ResourceLimits
from sapo_swarm.node.governor.run_control import BadCommand
from sapo_swarm.node.guard import RollbackGuard
from sapo_swarm.node.model_store import ModelStore
from sapo_swarm.node.rollouts import BatchSizer
from sapo_swarm.node.round_phases import GroupExchange, NodeActivity, ReplayBuffer, RoundContext
from sapo_swarm.resolve_run import RunFacts, resolve_run_config
from sapo_swarm.scoring.rubric import RubricJudge
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library

SILO = "silo"
"""Replaces a swarm's id in every training seed."""
Build = Callable[[Progress], Engine]
Fetch = Callable[[Progress], None]


@dataclass(frozen=True)
class NodeSetup:
    """Everything a node is given. folder: the run's own; build: loads the engine, called in its thread.

    name, base, changed, trial: for its history (events.RunStarted). notes: sentences for the person, told once.
    exchange: with the swarm; None: the node is alone.
    fetch: brings the model's files onto this disk, in the engine's thread, before build; it may be interrupted and called again.
    limits: what the person allows, asked for every second (in a thread), so that a change counts at once.
    machine: reads the sensors of this machine and the disk of the folder that it is given.
    judge: of the tasks that are judged by a rubric. deaths: see RunControl.
    as_left: a pause without an end, in which the last session ended, holds on: the person's, or because nothing was left to do.
    written: file of answers that the person wrote to training questions (node.examples.successes); None: there is none.
    trials: of bases, made before; None: the base is tried anew.
    """

    config: RunConfig
    run_id: str
    folder: Path
    build: Build
    limits: Callable[[], ResourceLimits] = ResourceLimits
    machine: Callable[[Path], MachineMonitor] = MachineMonitor
    exchange: GroupExchange | None = None
    node_key: str = ""
    swarm: str = SILO
    version: str = ""
    name: str = ""
    base: str = ""
    changed: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    trial: str = ""
    fetch: Fetch = lambda _progress: None
    judge: RubricJudge | None = None
    deaths: int = 0
    as_left: bool = False
    written: Path | None = None
    trials: StoredTrials | None = None

    @property
    def mode(self) -> Mode:
        """Alone or in a swarm."""
        return "silo" if self.swarm == SILO else "swarm"


def complete_config(config: RunConfig, parameters: int, reasons: bool, answer_limits: Mapping[str, int]) -> RunConfig:
    """The settings with what the loaded model decides (resolve_run.RunFacts). Raises BadTask."""
    held_out = bool(held_out_items(config.tasks, config.preset, 1))
    facts = RunFacts(
        loaded=True, parameters=parameters, reasons=reasons, held_out=held_out, answer_limits=answer_limits
    )
    return resolve_run_config(config, facts=facts)[0]


def reasoning_notes(config: RunConfig) -> tuple[str, ...]:
    """For the person, about a model whose chat template opens its reasoning."""
    notes = {
        "This model always reasons before it answers: thinking = off has no effect on it.": config.thinking == "off",
        f"This model always reasons before it answers, and most answers will be cut off at {config.max_new_tokens} tokens. Stop "
        f"the node and start it with --max-new-tokens {REASONING_TOKENS}.": config.max_new_tokens
        < REASONING_TOKENS // 2,
    }
    return tuple(sentence for sentence, holds in notes.items() if holds)


def require_held_out(config: RunConfig, items: int) -> None:
    """Raises BadCommand if no task of the run has held-out rows on this machine, or one task cannot supply this many items."""
    if not 0 <= items <= MOST_EVAL_ITEMS:
        raise BadCommand(f"items, of each task, must be between 0 (as run.eval_items says) and {MOST_EVAL_ITEMS:,}.")
    if not held_out_items(config.tasks, config.preset, 1):
        raise BadCommand(f"There are no held-out rows of {', '.join(config.tasks)} here: their host keeps them.")


def round_context(
    setup: NodeSetup,
    config: RunConfig,
    host: EngineThread,
    scorer: Scorer,
    activity: NodeActivity,
    stream: Callable[[Phase], None],
    excluded: frozenset[str],
    memory: ReplayBuffer,
) -> RoundContext:
    """The round context of a node whose engine is loaded. config: the setup's, completed with what the engine decided.

    excluded, memory: see RoundContext. Raises UnknownName.
    """
    info, rule = host.engine.info, load_algorithm(config.algorithm)
    groups = config.local_groups + config.external_groups
    return RoundContext(
        config=config,
        node_key=setup.node_key or f"silo-{config.seed}",
        swarm=setup.swarm,
        host=host,
        scorer=scorer,
        exchange=setup.exchange,
        algorithm=rule,
        policy=rule.policy(config, learning_rate(config, info.method, info.parameters, groups)),
        activity=activity,
        stream=stream,
        model_label=info.model,
        per_source=groups_of_a_source(info.parameters),
        rule=config.reward_rule,
        excluded=excluded,
        memory=memory,
        portion=BatchSizer(most=max(1, config.local_groups * config.group_size // 2) if setup.deaths else 0),
    )


def guard_of(setup: NodeSetup, config: RunConfig, store: ModelStore, examiner: Evaluator) -> RollbackGuard:
    """The guard that watches over the model. config: see RoundContext."""
    return RollbackGuard(
        config=config,
        host=store.host,
        checkpoints=store.checkpoints,
        examiner=examiner,
        exchange=setup.exchange,
        journal=store.journal,
        bus=store.bus,
        save=store.for_guard,
        in_swarm=setup.mode == "swarm",
    )


def make_run_started(
    run_id: str, mode: Mode, config: RunConfig, info: EngineInfo, rounds_done: int, examples_rounds: int = 0
) -> RunStarted:
    """The event with which every opening of a model begins; reads the disk. config: completed with what the engine decided.
    examples_rounds: among the rounds done."""
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
        versions=package_versions(info.backend),
        computed_by=info.extra.get("computed_by", ""),
        held_out=held_out_name(config.tasks, config.preset),
        examples_rounds=examples_rounds,
        judged=any(library.has_task(task) and bool(library.load_task(task).spec.rubric) for task in config.tasks),
    )
