"""The nodes of one arm: an engine, a journal and a RoundContext each, in one process."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from sapo_backends.base import Engine
from sapo_lab.conditions import is_hostile, node_key, node_tasks, round_robin_value
from sapo_lab.running.adaptive import AdaptiveRule, BatchSplit
from sapo_lab.running.pool import Mailbox
from sapo_lab.schema import Arm, Experiment
from sapo_swarm.algorithms import learning_rate, load_algorithm
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Mode, RunStarted
from sapo_swarm.node.engine_thread import EngineThread
from sapo_swarm.node.journal import Journal
from sapo_swarm.node.round_phases import NodeActivity, ReplayBuffer, RoundContext
from sapo_swarm.node.setup import make_run_started
from sapo_swarm.protocol.phrase_watch import NEWEST, UnlikelySources
from sapo_swarm.scoring.scorer import Scorer

Build = Callable[[RunConfig], Engine]
RULE = AdaptiveRule()


class NodeState(msgspec.Struct, frozen=True):
    """A node's memory besides its engine: see LabNode."""

    split: BatchSplit
    tokens: int = 0
    solved: tuple[str, ...] = ()
    used: tuple[str, ...] = ()
    held_out: float | None = None
    memory: ReplayBuffer = msgspec.field(default_factory=ReplayBuffer)
    unlikely: dict[str, tuple[bool, ...]] = {}
    spent_s: float = 0.0


@dataclass
class LabNode:
    """split: I and J of the next round. tokens: generated so far. used: keys of shared groups that it trained on. held_out:
    its last pass@1. cpu_s: processor seconds in the round so far. spent_s: in all its rounds."""

    index: int
    hostile: bool
    context: RoundContext
    mailbox: Mailbox
    journal: Journal
    split: BatchSplit
    tokens: int = 0
    solved: set[str] = field(default_factory=set)
    used: set[str] = field(default_factory=set)
    held_out: float | None = None
    unlikely: UnlikelySources = field(default_factory=UnlikelySources)
    cpu_s: float = 0.0
    spent_s: float = 0.0

    @property
    def key(self) -> str:
        """The node's name in seeds, groups and folders."""
        return node_key(self.index)

    @property
    def host(self) -> EngineThread:
        """The thread of the node's engine."""
        return self.context.host

    def round_context(self) -> RoundContext:
        """The context with this round's I and J."""
        split = {"local_groups": self.split.local, "external_groups": self.split.external}
        return replace(self.context, config=msgspec.structs.replace(self.context.config, **split))

    def state(self) -> NodeState:
        """For a checkpoint."""
        return NodeState(
            split=self.split,
            tokens=self.tokens,
            solved=tuple(sorted(self.solved)),
            used=tuple(sorted(self.used)),
            held_out=self.held_out,
            memory=self.context.memory,
            unlikely={key: tuple(newest) for key, newest in self.unlikely.newest.items()},
            spent_s=self.spent_s,
        )

    def restore(self, state: NodeState) -> None:
        """Continue from a checkpoint's state."""
        self.split, self.tokens, self.held_out = state.split, state.tokens, state.held_out
        self.spent_s = state.spent_s
        self.solved, self.used = set(state.solved), set(state.used)
        self.unlikely.newest = OrderedDict((key, deque(of, maxlen=NEWEST)) for key, of in state.unlikely.items())
        self.context.memory.replay = list(state.memory.replay)
        self.context.memory.difficulty = dict(state.memory.difficulty)

    async def close(self) -> None:
        """Close the journal and the engine."""
        self.journal.close()
        await self.host.close()


def node_config(arm: Arm, index: int, seed: int) -> RunConfig:
    """The settings of one node of an arm."""
    return msgspec.structs.replace(
        arm.run,
        model=round_robin_value(arm.conditions.models, index, arm.run.model),
        algorithm=round_robin_value(arm.conditions.algorithms, index, arm.run.algorithm),
        tasks=node_tasks(arm, index),
        seed=seed,
    )


async def open_node(
    experiment: Experiment,
    arm: Arm,
    index: int,
    seed: int,
    scorer: Scorer,
    folder: Path,
    build: Build,
    excluded: frozenset[str],
) -> LabNode:
    """Load a node's engine and open its journal. excluded: hashes of held-out prompts, never trained on
    (held_out_exclusion). Raises BackendError, JournalError."""
    config, host, mailbox = node_config(arm, index, seed), EngineThread(), Mailbox()
    info = (await host.load(lambda: build(config))).info
    chosen, groups = load_algorithm(config.algorithm), config.local_groups + config.external_groups
    context = RoundContext(
        config=config,
        node_key=node_key(index),
        swarm=experiment.name,
        host=host,
        scorer=scorer,
        exchange=mailbox,
        algorithm=chosen,
        policy=chosen.policy(config, learning_rate(config, info.method, info.parameters, groups)),
        activity=NodeActivity(),
        stream=lambda _phase: None,
        model_label=config.model,
        per_source=arm.conditions.per_source or None,
        rule=config.reward_rule,
        excluded=excluded,
    )
    return LabNode(
        index=index,
        hostile=is_hostile(index, experiment.nodes, arm.conditions.hostile),
        context=context,
        mailbox=mailbox,
        journal=_journal(folder),
        split=BatchSplit(config.local_groups, config.external_groups),
    )


def _journal(folder: Path) -> Journal:
    folder.mkdir(parents=True, exist_ok=True)
    return Journal(folder / "journal.db")


def run_started_event(node: LabNode, experiment: Experiment, arm: Arm, round_number: int) -> RunStarted:
    """The event with which a node's journal opens, and opens again after a stop."""
    config, info = node.context.config, node.host.engine.info
    run_id = f"{experiment.name}/{arm.name}/seed-{config.seed}/{node.key}"
    mode: Mode = "swarm" if config.external_groups or arm.conditions.adaptive else "silo"
    return make_run_started(run_id, mode, config, info, round_number)
