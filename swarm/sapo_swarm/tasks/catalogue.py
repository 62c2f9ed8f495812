"""The allow-list of tasks with their named presets (difficulty settings of reasoning_gym), which seeds train, and how long
an answer may be.

`paper` holds the settings that the SAPO authors shipped; `starter` is tuned so that the bundled model sometimes
succeeds; `hard` is for models of a billion parameters and more. `easy` is what the bundled model was trained on where
`starter` asks for more. `library` is `paper` under the library's own rule, where ours is stricter.

reasoning_gym makes item i of seed s from Random(s + i), so nearby seeds share items: the ranges of training and held-out
seeds are separated by more than any index that is used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from sapo_swarm.config import RunConfig
from sapo_swarm.registry import nearest
from sapo_swarm.tasks.extra import DEFAULT_PRESET, EXTRA, LIBRARY_PRESET
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.errors import BadTask
from sapo_swarm.types import GENERATOR_VERSION, TaskRef

Settings = Mapping[str, object]
_MOST_TOKENS = 8192


class UnknownTask(ValueError):
    """No such task or preset; the message names the nearest match."""


class NoSuchTask(UnknownTask):
    """Nothing of that name is here: neither the app's, nor the person's own."""


_CATALOGUE: dict[str, dict[str, Settings]] = {
    "base_conversion": {
        "starter": {"min_base": 2, "max_base": 10, "min_value": 4, "max_value": 63},
        "paper": {"min_base": 2, "max_base": 16, "min_value": 0, "max_value": 1000},
        "hard": {"min_base": 2, "max_base": 36, "min_value": 1000, "max_value": 100_000},
    },
    "basic_arithmetic": {
        "starter": {"min_terms": 2, "max_terms": 3, "min_digits": 1, "max_digits": 2, "operators": ("+", "-")},
        "paper": {"min_terms": 2, "max_terms": 6, "min_digits": 1, "max_digits": 4},
        "hard": {"min_terms": 5, "max_terms": 10, "min_digits": 2, "max_digits": 5},
    },
    "arc_1d": {
        "starter": {"min_size": 8, "max_size": 8, "num_train": 2},
        "paper": {"min_size": 10, "max_size": 30, "num_train": 3},
        "hard": {"min_size": 25, "max_size": 50, "num_train": 3},
    },
    "bf": {
        "starter": {"difficulty": 1},
        "paper": {"difficulty": 1},
        "hard": {"difficulty": 2},
    },
    "propositional_logic": {
        "starter": {
            "min_vars": 2,
            "max_vars": 4,
            "min_statements": 2,
            "max_statements": 2,
            "min_complexity": 3,
            "max_complexity": 3,
        },
        "paper": {"min_vars": 2, "max_vars": 4, "min_statements": 2, "max_statements": 4, "max_complexity": 3},
        "hard": {"min_vars": 4, "max_vars": 6, "min_statements": 4, "max_statements": 6, "max_complexity": 4},
    },
    "fraction_simplification": {
        "starter": {"min_value": 1, "max_value": 50, "min_factor": 2, "max_factor": 9, "styles": ("plain",)},
        "paper": {
            "min_value": 1,
            "max_value": 100,
            "min_factor": 2,
            "max_factor": 100,
            "styles": ("plain", "latex_inline", "latex_frac"),
        },
        "hard": {"min_value": 100, "max_value": 5000, "min_factor": 10, "max_factor": 500},
    },
    "decimal_arithmetic": {
        "starter": {
            "min_num_decimal_places": 1,
            "max_num_decimal_places": 1,
            "min_terms": 2,
            "max_terms": 2,
            "precision": 5,
        },
        "paper": {
            "min_num_decimal_places": 1,
            "max_num_decimal_places": 3,
            "min_terms": 2,
            "max_terms": 6,
            "precision": 5,
        },
        "hard": {
            "min_num_decimal_places": 3,
            "max_num_decimal_places": 5,
            "min_terms": 4,
            "max_terms": 8,
            "precision": 10,
        },
    },
    "calendar_arithmetic": {
        "starter": {
            "year": 2023,
            "offset_upper_bound": 30,
            "tasks": ("weekday_offset", "weekday_of_date", "weekday_of_date_from_first_date"),
        },
        "paper": {"year": 2023, "offset_upper_bound": 100},
        "hard": {"year": 2023, "offset_upper_bound": 500},
    },
    "binary_matrix": {
        "easy": {"min_n": 5, "max_n": 5, "p_zero": 0.25},
        "starter": {"min_n": 5, "max_n": 5, "p_zero": 0.1},
        "paper": {"min_n": 3, "max_n": 10, "p_zero": 0.25},
        "hard": {"min_n": 8, "max_n": 14, "p_zero": 0.15},
    },
}

CATALOGUE: Mapping[str, Mapping[str, Settings]] = MappingProxyType(
    {**EXTRA, **{name: {**presets, LIBRARY_PRESET: presets["paper"]} for name, presets in _CATALOGUE.items()}}
)
PRESETS = frozenset(preset for presets in CATALOGUE.values() for preset in presets)
STRICT_PRESETS = PRESETS - {LIBRARY_PRESET}
"""Those under whose rule full marks need a right answer."""


def settings(dataset: str, preset: str) -> Settings:
    """The generator settings of a task. Raises UnknownTask."""
    presets = CATALOGUE.get(dataset)
    if presets is None:
        raise NoSuchTask(
            f"There is no task {dataset!r}. {nearest(dataset, {**CATALOGUE, **dict.fromkeys(library.names())})}"
        )
    chosen = presets.get(preset)
    if chosen is None:
        raise UnknownTask(f"Task {dataset!r} has no preset {preset!r}. {nearest(preset, presets)}")
    return chosen


def preset_of(dataset: str, preset: str) -> str:
    """The preset to use where one name is set for many tasks: that one, `default` for a task without difficulties, `own` for
    one of the person's.

    Raises UnknownTask.
    """
    if is_own(dataset):
        return library.PRESET
    presets = CATALOGUE.get(dataset, {})
    chosen = DEFAULT_PRESET if DEFAULT_PRESET in presets and preset not in presets else preset
    settings(dataset, chosen)
    return chosen


def is_own(dataset: str) -> bool:
    """The name is that of a task of the person's own; the catalogue's names cannot be taken."""
    return dataset not in CATALOGUE and library.has(dataset)


def generator_of(dataset: str, swarm: str = "") -> str:
    """What makes the questions of a task here: part of each of its references. swarm: "" for references that stay here.

    Raises BadTask.
    """
    return library.generator(dataset, swarm) if is_own(dataset) else GENERATOR_VERSION


def held_out_count(dataset: str, limit: int) -> int:
    """How many held-out questions a task has, at most `limit`. Raises BadTask."""
    return min(limit, len(library.find(dataset).held_out)) if is_own(dataset) else limit


TRAIN_LIMIT = 2**31 - 2**20
"""Train seeds lie in [0, TRAIN_LIMIT); index 0 only."""
HELD_OUT_SEED = 2**31
"""Held-out items are (HELD_OUT_SEED, index)."""
HELD_OUT_SIZE = 2**20


def train_seed(node_key: str, swarm: str, round_number: int, slot: int, seed: int = 0) -> int:
    """A seed that no two nodes, rounds or slots share by design: H(...) mod TRAIN_LIMIT."""
    text = f"sapo-train-v1|{node_key}|{swarm}|{round_number}|{slot}|{seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % TRAIN_LIMIT


def contrasts(ref: TaskRef, count: int) -> list[TaskRef]:
    """Other questions of the same task, the same on every node. The chance that one is the question itself is 1 in 2^31, but in
    tasks with few questions it may read the same."""
    text = f"sapo-contrast-v1|{ref.seed}|{ref.index}"
    digests = [hashlib.sha256(f"{text}|{number}".encode()).digest() for number in range(count)]
    seeds = [int.from_bytes(digest[:8], "big") % TRAIN_LIMIT for digest in digests]
    return [TaskRef(ref.dataset, ref.preset, seed, 0, ref.generator) for seed in seeds]


def held_out(dataset: str, preset: str, index: int) -> TaskRef:
    """The index-th held-out item of a task. Raises ValueError outside [0, HELD_OUT_SIZE)."""
    if not 0 <= index < HELD_OUT_SIZE:
        raise ValueError(f"Held-out index {index} is outside 0..{HELD_OUT_SIZE - 1}.")
    return TaskRef(dataset, preset, HELD_OUT_SEED, index, generator_of(dataset))


def is_train(ref: TaskRef) -> bool:
    """True when the reference can be trained on: item 0 of a train seed. Anything else could reach held-out items, and items far
    from 0 take some generators seconds."""
    return ref.index == 0 and ref.seed < TRAIN_LIMIT


def task_tokens(config: RunConfig) -> Mapping[str, int]:
    """Task -> tokens as run.task_tokens says. Raises BadTask."""
    found = {}
    for entry in config.task_tokens:
        task, equals, number = entry.rpartition("=")
        if not equals or not number.isdecimal() or not 1 <= int(number) <= _MOST_TOKENS:
            raise BadTask(
                f"run.task_tokens: {entry!r} is not a task with its tokens, such as bf=256 (1 to {_MOST_TOKENS})."
            )
        found[task.strip()] = int(number)
    return found


def new_tokens(config: RunConfig, task: str) -> int:
    """Of a completion, for a question of that task: run.task_tokens goes first, then max_new_tokens of an own task's task.toml
    unless the model reasons first; never more than run.max_new_tokens. Raises BadTask."""
    return tokens_needed(config, task, library.find(task).spec.max_new_tokens if is_own(task) else 0)


def tokens_needed(config: RunConfig, task: str, needed: int) -> int:
    """The same where the task is at hand. needed: max_new_tokens of its task.toml, 0 for none. Raises BadTask."""
    wanted = task_tokens(config).get(task) or (needed if config.thinking != "on" else 0)
    return min(wanted or config.max_new_tokens, config.max_new_tokens)


def with_limits(config: RunConfig, limits: Mapping[str, int]) -> RunConfig:
    """The settings with these limits of answers in force (task -> tokens, events.TrialMeasured), where the person chose none.
    Raises BadTask."""
    if not limits or config.max_new_tokens != RunConfig().max_new_tokens:
        return config
    by_task = {**limits, **task_tokens(config)}
    others = [] if all(task in by_task for task in config.tasks) else [config.max_new_tokens]
    tokens = tuple(f"{task}={number}" for task, number in by_task.items())
    return msgspec.structs.replace(config, max_new_tokens=max([*by_task.values(), *others]), task_tokens=tokens)
