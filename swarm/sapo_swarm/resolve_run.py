"""What a run is: its settings out of the settings file, the model, the typed flags, the swarm and the loaded engine.

The one place where they are put together. Nothing here reads a disk, a network or a clock: callers bring what they know of
the run as RunFacts, and may ask again when they know more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from sapo_swarm.algorithms import TINY, local_groups
from sapo_swarm.config import RunConfig
from sapo_swarm.tasks.catalogue import task_tokens

Origin = Literal["default", "settings", "model", "flag", "tasks", "measured", "invite", "engine"]
"""Where a value comes from. tasks: they and a reasoning model need it; measured: what "auto" meant when the run began; invite:
being in a swarm, or in none; engine: the loaded model decides it."""
Membership = Literal["undecided", "alone", "member", "trial"]
"""Whether a run is in a swarm; on trial in an open one, where nobody is trusted."""
OPEN_VALUES: Mapping[str, object] = {"trainer": "auto", "precision": "auto", "method": "auto", "threads": 0}
"""Values that leave the choice to the machine."""
KEPT_BY_MODEL = ("method", "precision", "lora_rank")
"""Settings that a model keeps for ever; its base may move, and another trainer may continue from the same checkpoints."""
LOCAL_GROUPS, EXTERNAL_GROUPS = 2, 8
"""I / J of a node in a swarm unless the person sets them (docs/decisions/0013-default-strategy.md). J is an upper bound:
local groups fill what external ones cannot provide."""
TINY_GROUPS = 8
"""Both for a tiny model: small rounds at a learning rate that follows the batch (docs/decisions/0012-tiny-in-a-swarm.md)."""
TRIAL_EXTERNAL_GROUPS = 2
"""External groups in a batch on trial, at most."""


class RunFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a run besides what somebody chose.

    answer_tokens: that its tasks and its reasoning need; levels: one of its custom tasks has levels of difficulty.
    parameters: None where the model is not on this disk. rounds_done: of practice, in the model.
    measured: values for settings that are open (OPEN_VALUES). answer_limits: task -> tokens, from the base's trial.
    loaded: the engine is; reasons: its model reasons whatever the settings say; held_out: a task has held-out rows here.
    """

    answer_tokens: int = 0
    levels: bool = False
    parameters: int | None = None
    rounds_done: int = 0
    measured: Mapping[str, object] = {}
    answer_limits: Mapping[str, int] = {}
    loaded: bool = False
    reasons: bool = False
    held_out: bool = True


class _Run:
    """The settings so far, and where each comes from."""

    def __init__(self, config: RunConfig, origin: Origin) -> None:
        self.config, default = config, RunConfig()
        self.origins: dict[str, Origin] = {
            name: "default" if origin == "settings" and getattr(config, name) == getattr(default, name) else origin
            for name in config.__struct_fields__
        }

    def put(self, origin: Origin, **values: object) -> None:
        """Set these; a value that was there before keeps its origin."""
        changes = {name: value for name, value in values.items() if value != getattr(self.config, name)}
        if changes:
            self.config = msgspec.structs.replace(self.config, **changes)
            self.origins |= dict.fromkeys(changes, origin)


def resolve_run_config(
    settings: RunConfig,
    model: RunConfig | None = None,
    flags: Mapping[str, object] | None = None,
    membership: Membership = "undecided",
    facts: RunFacts | None = None,
) -> tuple[RunConfig, Mapping[str, Origin]]:
    """The settings of a run, and where each value comes from. model: the settings that it keeps, instead of those of new
    models. Raises BadTask."""
    flags, facts = flags or {}, facts or RunFacts()
    run = _Run(model or settings, "model" if model else "settings")
    run.put("flag", **flags)
    run.origins |= dict.fromkeys(flags, "flag")
    if model is not None:
        auto = ("trainer",) if run.config.trainer == OPEN_VALUES["trainer"] else ()
        run.put("model", **{name: getattr(model, name) for name in (*KEPT_BY_MODEL, *auto)})
    if facts.levels and "curriculum" not in flags and run.config.curriculum == "uniform":
        run.put("tasks", curriculum="presets")
    if "max_new_tokens" not in flags:
        run.put("tasks", max_new_tokens=max(run.config.max_new_tokens, facts.answer_tokens))
    if "rounds" not in flags and run.config.rounds <= facts.rounds_done:  # a plan that is done: training continues
        run.put("model", rounds=0)
    is_open = {name for name, value in OPEN_VALUES.items() if getattr(run.config, name) == value}
    run.put("measured", **{name: value for name, value in facts.measured.items() if name in is_open})
    _apply_membership(run, membership, facts.parameters)
    if facts.loaded:
        _apply_engine(run, facts)
    _apply_answer_limits(run, facts.answer_limits)
    return run.config, run.origins


def _apply_membership(run: _Run, membership: Membership, parameters: int | None) -> None:
    """I / J as they apply: a typed J of 0 takes nothing from others, and then I is as for a node alone, whose I / J that were
    set for a swarm are automatic again. A node that only generates (method none) has nothing to evaluate."""
    config = run.config
    if membership == "alone" and config.external_groups:
        run.put("invite", local_groups=0, external_groups=0)
    if membership not in ("member", "trial"):
        return
    if config.method == "none":
        run.put("invite", external_groups=0, **({} if run.origins["eval_every"] == "flag" else {"eval_every": 0}))
    elif config.external_groups or run.origins["external_groups"] != "flag":
        tiny = parameters is not None and parameters < TINY
        local, external = (TINY_GROUPS, TINY_GROUPS) if tiny else (LOCAL_GROUPS, EXTERNAL_GROUPS)
        run.put("invite", local_groups=config.local_groups or local, external_groups=config.external_groups or external)
    if membership == "trial":
        config = run.config
        external = min(config.external_groups, TRIAL_EXTERNAL_GROUPS)
        local = config.local_groups + config.external_groups - external if config.local_groups else 0
        run.put("invite", local_groups=local, external_groups=external)
        run.put("invite", external_advantages="positive", tripwire=config.tripwire or 0.25)


def _apply_engine(run: _Run, facts: RunFacts) -> None:
    """What a loaded model of this size decides; no evaluations if no task has held-out rows here."""
    run.put("engine", local_groups=local_groups(run.config, facts.parameters or 0))
    run.put("engine", thinking="on" if facts.reasons else run.config.thinking)
    run.put("engine", eval_every=run.config.eval_every if facts.held_out else 0)


def _apply_answer_limits(run: _Run, limits: Mapping[str, int]) -> None:
    """The limits that the base's trial found (events.TrialMeasured), unless the person chose some."""
    config = run.config
    if not limits or config.max_new_tokens != RunConfig().max_new_tokens:
        return
    by_task = {**limits, **task_tokens(config)}
    others = [] if all(task in by_task for task in config.tasks) else [config.max_new_tokens]
    tokens = tuple(f"{task}={number}" for task, number in by_task.items())
    run.put("engine", max_new_tokens=max([*by_task.values(), *others]), task_tokens=tokens)
