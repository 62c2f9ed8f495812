"""An experiment as a TOML file: shared settings, and arms that each change some of them.

    name = "paper-four-arms"
    nodes = 8
    seeds = [1, 2, 3]
    [run]                       # any setting of sapo_swarm.config.RunConfig, for all arms
    model = "starter-1m"
    [[arms]]
    name = "8-0"                # any setting of RunConfig or Conditions besides
    local_groups = 8

Unknown keys are refused with the nearest match.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from sapo_swarm.algorithms import load_algorithm
from sapo_swarm.config import MOST_ROUNDS, RunConfig
from sapo_swarm.errors import SwarmError, UnknownName, suggest_names
from sapo_swarm.sapo.training_batch import find_strategy
from sapo_swarm.tasks.catalogue import UnknownTask, preset_of


class BadExperiment(SwarmError, ValueError):
    """The file describes no valid experiment; the message says which key is wrong and what to write instead."""

    exit_code: ClassVar[int] = 2


def _doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class ArmConditions(msgspec.Struct, frozen=True, kw_only=True):
    """What an arm changes besides the settings of a run. Saved runs may hold conditions that no longer exist;
    `parse_experiment` refuses unknown keys."""

    # What goes into the batch
    per_source: Annotated[
        int, _doc("External groups of one node in a batch; 0 = no cap (the paper)", ge=0, le=MOST_ROUNDS)
    ] = 0
    starved: Annotated[
        Literal["short", "ahead"],
        _doc(
            "Fewer than J groups survive the filter. short: a smaller batch; ahead: before the round, up to I more local groups "
            "for what the pool lacks, shared (as the app does; with staleness = 1)"
        ),
    ] = "short"
    own_filter: Annotated[
        Literal["none", "resample"],
        _doc(
            "Local groups with zero advantage stay (the paper), or are sampled again (dynamic sampling, arXiv 2503.14476)"
        ),
    ] = "none"
    resample_limit: Annotated[int, _doc("Local groups sampled at most, as a multiple of I", ge=1, le=64)] = 4
    pool_from: Annotated[
        Literal["others", "own", "all"], _doc("Whose groups J is sampled from; own: replay of earlier local groups")
    ] = "others"
    pool_rounds: Annotated[int, _doc("Rounds a group stays in the pool", ge=1, le=MOST_ROUNDS)] = 1
    reuse: Annotated[bool, _doc("A node may sample a group again that it has trained on")] = False
    adaptive: Annotated[
        bool, _doc("Move I and J by sapo_lab.running.adaptive, from local_groups and external_groups")
    ] = False
    # What the swarm is made of
    models: Annotated[tuple[str, ...], _doc("Models of nodes 0, 1, … in turn; empty = `model` for all")] = ()
    algorithms: Annotated[tuple[str, ...], _doc("Algorithms of the nodes in turn; empty = `algorithm` for all")] = ()
    paces: Annotated[
        tuple[Annotated[int, Meta(ge=1, le=MOST_ROUNDS)], ...],
        _doc("Nodes 0, 1, … in turn take part in every n-th round only, as slower machines would; empty = every round"),
    ] = ()
    tasks_per_node: Annotated[
        int, _doc("Each node samples questions from only so many of the tasks, in turn; 0 = all", ge=0, le=MOST_ROUNDS)
    ] = 0
    withheld: Annotated[tuple[str, ...], _doc("Tasks whose groups no node receives from another")] = ()
    # What goes wrong
    staleness: Annotated[int, _doc("External groups are so many rounds old", ge=0, le=MOST_ROUNDS)] = 0
    loss: Annotated[float, _doc("Share of deliveries (a group to a node) that are lost", ge=0.0, le=1.0)] = 0.0
    churn: Annotated[
        float, _doc("Share of the time that a node is away, in blocks of churn_rounds", ge=0.0, le=1.0)
    ] = 0.0
    churn_rounds: Annotated[int, _doc("Rounds a node stays or is away", ge=1, le=MOST_ROUNDS)] = 10
    hostile: Annotated[float, _doc("Share of nodes that send tampered groups and do not learn", ge=0.0, le=1.0)] = 0.0
    attack: Annotated[
        Literal["planted", "garbled"], _doc("Correct answers with a planted sentence, or with shuffled words")
    ] = "planted"
    logprob_floor: Annotated[
        float,
        _doc(
            "Refuse groups whose rewarded text has 16 tokens in a row of a mean log-probability below this; 0 = off",
            le=0.0,
        ),
    ] = 0.0
    unlikely_sources: Annotated[
        bool,
        _doc("Refuse the other groups too of a node of whose newest many are below logprob_floor, as the app does"),
    ] = False
    # How long, and what is evaluated on the way
    judge: Annotated[
        bool, _doc("Every node answers one held-out question a round, the same for all (the paper's open demo)")
    ] = False
    token_budget: Annotated[
        int, _doc("Stop when a node has generated so many tokens on average; 0 = never", ge=0, le=10**12)
    ] = 0
    seconds_budget: Annotated[
        float,
        _doc(
            "Stop when a node has used so many processor seconds on average: generation, scoring, the checks of others' groups "
            "and updates; 0 = never",
            ge=0.0,
        ),
    ] = 0.0


def describe_conditions() -> Iterator[tuple[str, str, object]]:
    """(name, help, default) of every condition, for the docs."""
    for field in msgspec.structs.fields(ArmConditions):
        node: Any = msgspec.inspect.type_info(field.type)
        extra = getattr(node, "extra_json_schema", None) or {}
        yield field.name, extra.get("description", ""), field.default


class Arm(msgspec.Struct, frozen=True, kw_only=True):
    """One arm. against: the arms it is compared with, one row of the table each. shown: its name in tables and figures."""

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9._-]{0,59}\Z")]
    run: RunConfig
    conditions: ArmConditions = ArmConditions()
    title: str = ""
    against: tuple[str, ...] = ()

    @property
    def shown(self) -> str:
        """The title, or the name if there is none."""
        return self.title or self.name


class Experiment(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared, on how many nodes, how often, and on how much it is measured.

    final_items: held-out items per task at the end, each answered by final_answers of the nodes, greedily and at temperature
    1. final_samples: completions of an item at temperature 1; with more than one, a single node answers it. first_item: number
    of the first; from 0 on are the questions used by earlier experiments and the curve. comparisons: how many the endpoint
    has, for Bonferroni's correction; 0: one for each arm that is compared.
    """

    name: Annotated[str, Meta(pattern=r"^[a-z0-9][a-z0-9.-]{0,59}\Z")]
    title: str
    question: str
    nodes: Annotated[int, Meta(ge=1, le=256)]
    seeds: Annotated[tuple[int, ...], Meta(min_length=1)]
    final_items: Annotated[int, Meta(ge=0, le=10_000)]
    final_answers: Annotated[int, Meta(ge=1, le=256)]
    final_samples: Annotated[int, Meta(ge=1, le=64)] = 1
    first_item: Annotated[int, Meta(ge=0, le=500_000)] = 0
    comparisons: Annotated[int, Meta(ge=0, le=1000)] = 0
    arms: Annotated[tuple[Arm, ...], Meta(min_length=1)]

    def arm(self, name: str) -> Arm:
        """Raises BadExperiment, which names the nearest."""
        arms = {arm.name: arm for arm in self.arms}
        if name not in arms:
            raise BadExperiment(f"{self.name}: there is no arm {name!r}. {suggest_names(name, arms)}")
        return arms[name]


EXPERIMENT_KEYS = {*Experiment.__struct_fields__, "run", "conditions"}
ARM_KEYS = {*Arm.__struct_fields__} - {"run", "conditions"}
RUN_KEYS = frozenset(RunConfig.__struct_fields__)
CONDITION_KEYS = frozenset(ArmConditions.__struct_fields__)
PAPER: Mapping[str, Any] = {"local_groups": 8, "external_advantages": "all"}
"""The paper's settings, for an arm that does not say otherwise."""
NOT_HERE = {"seed": "List the seeds at the top: seeds = [1, 2, 3]."}


def load_experiment(path: Path) -> Experiment:
    """The experiment of a TOML file. Raises BadExperiment, OSError."""
    try:
        tables = tomllib.loads(path.read_text("utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise BadExperiment(f"{path} is not valid TOML ({error}).") from error
    try:
        return parse_experiment(tables)
    except (BadExperiment, UnknownName, UnknownTask) as error:
        raise BadExperiment(f"{path}: {error}") from error


def parse_experiment(tables: Mapping[str, Any]) -> Experiment:
    """Raises BadExperiment, UnknownName, UnknownTask."""
    _known("the file", tables, EXPERIMENT_KEYS)
    shared_run, shared = _table(tables, "run"), _table(tables, "conditions")
    _known("[run]", shared_run, RUN_KEYS)
    _known("[conditions]", shared, CONDITION_KEYS)
    rows = tables.get("arms", [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise BadExperiment("arms are written as [[arms]] tables.")
    try:
        arms = tuple(_arm(row, shared_run, shared) for row in rows)
        top = {key: value for key, value in tables.items() if key not in ("run", "conditions", "arms")}
        defaults = {"title": "", "question": "", "nodes": 8, "seeds": (1, 2, 3), "final_items": 400, "final_answers": 2}
        experiment = msgspec.convert({**defaults, **top, "arms": arms}, Experiment)
    except msgspec.ValidationError as error:
        raise BadExperiment(str(error)) from error
    _check(experiment)
    return experiment


def _arm(row: Mapping[str, Any], run: Mapping[str, Any], conditions: Mapping[str, Any]) -> Arm:
    _known(f"arm {row.get('name', '?')!r}", row, ARM_KEYS | RUN_KEYS | CONDITION_KEYS)
    own = {key: value for key, value in row.items() if key in ARM_KEYS}
    settings = {**PAPER, **run, **{key: value for key, value in row.items() if key in RUN_KEYS}}
    terms = {**conditions, **{key: value for key, value in row.items() if key in CONDITION_KEYS}}
    return msgspec.convert({**own, "run": settings, "conditions": terms}, Arm)


def _check(experiment: Experiment) -> None:
    names = [arm.name for arm in experiment.arms]
    twice = {name for name in names if names.count(name) > 1}
    if twice or len(set(experiment.seeds)) < len(experiment.seeds):
        raise BadExperiment(f"Names of arms and seeds differ from each other; {twice or 'a seed'} is there twice.")
    for arm in experiment.arms:
        for name in arm.against:
            experiment.arm(name)
        if arm.run.rounds < 1 or arm.run.local_groups < 1:
            raise BadExperiment(f"Arm {arm.name!r} needs rounds = N and local_groups of at least 1.")
        if arm.conditions.tasks_per_node > len(arm.run.tasks):
            raise BadExperiment(f"Arm {arm.name!r} has fewer tasks than tasks_per_node.")
        if stranger := next((task for task in arm.conditions.withheld if task not in arm.run.tasks), ""):
            raise BadExperiment(f"Arm {arm.name!r} has no task {stranger!r} to withhold.")
        find_strategy(arm.run.sampling)
        for name in (arm.run.algorithm, *arm.conditions.algorithms):
            load_algorithm(name)
        for task in arm.run.tasks:
            preset_of(task, arm.run.preset)


def _table(tables: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    table = tables.get(key, {})
    if not isinstance(table, dict):
        raise BadExperiment(f"{key} is written as a [{key}] table.")
    return table


def _known(where: str, table: Mapping[str, Any], known: Iterable[str]) -> None:
    for key in table:
        if key in NOT_HERE:
            raise BadExperiment(f"{where}: {key!r} is not set here. {NOT_HERE[key]}")
        if key not in set(known):
            raise BadExperiment(f"{where}: there is no setting {key!r}. {suggest_names(key, known)}")
