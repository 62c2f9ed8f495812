"""The allow-list of tasks with their named presets (difficulty settings of reasoning_gym), which seeds train, which are held
out, and the stricter checks for answers where the library gives full marks to more than the truth."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from types import MappingProxyType
from typing import Any, ClassVar

from sapo_swarm.config import RunConfig
from sapo_swarm.errors import SwarmError, suggest_names
from sapo_swarm.tasks.own import library
from sapo_swarm.tasks.own.spec import BadTask
from sapo_swarm.types import GENERATOR_VERSION, TaskRef

# Strict means exact: additional checks for answers where the library's own rule gives full marks to more than the
# truth.
#
# reasoning_gym compares with a tolerance (decimal_arithmetic: one unit of the last decimal place that a term may have),
# or accepts the answer inside any surrounding text. Each check here applies to answers that the library calls right,
# and False is a verdict of 0; so the exact rule never accepts what the library does not. Preset `library` does without.

Exact = Callable[[str, Mapping[str, Any]], bool]

_NUMBER = re.compile(r"[+-]?[0-9]{1,400}(?:\.[0-9]{1,400})?(?:[eE][+-]?[0-9]{1,3})?")
_GROUPED = re.compile(r"[0-9]{1,3}(?:,[0-9]{3})+(?:\.[0-9]+)?")
_FRACTION = re.compile(r"\$?\s*(?:\d+\s*/\s*\d+|\\d?frac\s*\{\s*\d+\s*\}\s*\{\s*\d+\s*\})\s*\$?", re.IGNORECASE)
_DURATION = re.compile(r"(?:\d+ days?, )?\d+:\d\d(?::\d\d(?:\.\d{3})?)?|\d+ days?")
_BUTTONS = re.compile(r"[A-C](?: ?→ ?[A-C])*")
_BINARY_GRID = re.compile(r"[01](?: ?[01])*(?:\n[01](?: ?[01])*)*")
_NUMBER_GRID = re.compile(r"\d+(?: +\d+)*(?:\n\d+(?: +\d+)*)*")
_PERSON = re.compile(r"([A-Za-z]+) is an? ([a-z]+)")


def parse_plain_number(text: str) -> Decimal | None:
    """The value of a plain number, None for anything else; no precision is lost."""
    return Decimal(text) if _NUMBER.fullmatch(text) else None


def same_number(answer: str, entry: Mapping[str, Any]) -> bool:
    """The truth's value, with any number of zeros, and nothing around it."""
    return parse_plain_number(answer) is not None and parse_plain_number(answer) == parse_plain_number(entry["answer"])


def number_format(answer: str, entry: Mapping[str, Any]) -> bool:
    """The candidate, as the question shows it or as the library holds it."""
    metadata = entry["metadata"]
    written = [text for value, text in zip(metadata["candidates"], metadata["formatted_candidates"], strict=True)
               if value == metadata["solution"]]  # fmt: skip
    plain = answer.replace(",", "") if _GROUPED.fullmatch(answer) else answer
    right = {parse_plain_number(text.replace(",", "")) for text in (*written, entry["answer"])}
    return parse_plain_number(plain) is not None and parse_plain_number(plain) in right


def number_sorting(answer: str, entry: Mapping[str, Any]) -> bool:
    """The numbers themselves, in order."""
    try:
        numbers, truth = (json.loads(text.replace("'", '"')) for text in (answer, entry["answer"]))
    except (ValueError, RecursionError):
        return False
    values = [parse_plain_number(str(item)) for item in numbers]
    return None not in values and values == [parse_plain_number(str(item)) for item in truth]


def power_function(answer: str, entry: Mapping[str, Any]) -> bool:
    """Three significant figures, as the question asks, or the integer that the library gives as its truth."""
    truth = parse_plain_number(entry["answer"])
    if truth is None:
        return False
    return parse_plain_number(answer) in (truth, Decimal(f"{truth:.2e}"))


def pool_matrix(answer: str, entry: Mapping[str, Any]) -> bool:
    """The truth's numbers, each to two decimal places."""
    matrix, truth = ([[parse_plain_number(cell) for cell in line.split()] for line in text.splitlines() if line.strip()]
                    for text in (answer, entry["answer"]))  # fmt: skip
    return matrix == truth and not any(cell is None for row in matrix for cell in row)


def knights_knaves(answer: str, entry: Mapping[str, Any]) -> bool:
    """Everybody once with their role, in any order, and no other words."""
    people, truth = (_people(text) for text in (answer, entry["answer"]))
    return people is not None and people == truth


def _people(text: str) -> list[tuple[str, str]] | None:
    """Name and role of each, sorted; None if anything else is said."""
    parts = re.split(r", and |, | and ", text.removesuffix("."))
    matches = [_PERSON.fullmatch(part) for part in parts]
    return sorted((m[1].lower(), m[2]) for m in matches if m) if all(matches) else None


def letter_jumble(answer: str, entry: Mapping[str, Any]) -> bool:
    """The truth's words with their capitals: the question asks to preserve them."""
    return answer.split() == str(entry["answer"]).split()


def require_full_match(pattern: re.Pattern[str]) -> Exact:
    """Accepts only an answer in the form that the question asks for: text around it would go unjudged."""
    return lambda answer, _entry: pattern.fullmatch(answer) is not None


EXACT: dict[str, Exact] = {
    "decimal_arithmetic": same_number,
    "fraction_simplification": require_full_match(_FRACTION),
    "gsm_symbolic": same_number,
    "kakurasu": require_full_match(_BINARY_GRID),
    "knights_knaves": knights_knaves,
    "letter_jumble": letter_jumble,
    "number_format": number_format,
    "number_sorting": number_sorting,
    "pool_matrix": pool_matrix,
    "power_function": power_function,
    "quantum_lock": require_full_match(_BUTTONS),
    "survo": require_full_match(_NUMBER_GRID),
    "time_intervals": require_full_match(_DURATION),
}
"""By task. In the first kind the library's rule accepts a wrong value, in the second any text around the answer."""


# The other safe reasoning_gym datasets, each with the one preset `default` (the library's own settings).
#
# Left out, and why: answers are executed (countdown, puzzle24, both integrations, polynomial_multiplication), a short
# answer hangs the scorer (coin_flip, rush_hour, rubiks_cube, codeio), junk scores 1.0 (complex_arithmetic,
# game_of_life_halting, polynomial_equations), the question depends on the hash seed or on global randomness
# (isomorphic_strings, ransom_note, knight_swap, word_ladder, list_functions), generation takes over a second
# (futoshiki, sokoban, arc_agi), no oracle proves the verifier (boxnet), or it is no dataset of its own (composite).

DEFAULT_PRESET = "default"
LIBRARY_PRESET = "library"
"""The settings of `paper` or `default`, judged by reasoning_gym's own rule where ours is stricter (EXACT)."""

EXTRA_DATASETS: tuple[str, ...] = (
    "ab",
    "acre",
    "advanced_geometry",
    "aiw",
    "binary_alternation",
    "bitwise_arithmetic",
    "caesar_cipher",
    "chain_sum",
    "circuit_logic",
    "color_cube_rotation",
    "count_bits",
    "count_primes",
    "course_schedule",
    "cryptarithm",
    "decimal_chain_sum",
    "dice",
    "emoji_mystery",
    "family_relationships",
    "figlet_font",
    "game_of_life",
    "gcd",
    "graph_color",
    "group_anagrams",
    "gsm_symbolic",
    "jugs",
    "kakurasu",
    "knights_knaves",
    "largest_island",
    "lcm",
    "leg_counting",
    "letter_counting",
    "letter_jumble",
    "mahjong_puzzle",
    "manipulate_matrix",
    "maze",
    "mini_sudoku",
    "modulo_grid",
    "n_queens",
    "needle_haystack",
    "number_filtering",
    "number_format",
    "number_sequence",
    "number_sorting",
    "palindrome_generation",
    "palindrome_partitioning",
    "path_star",
    "pool_matrix",
    "power_function",
    "prime_factorization",
    "products",
    "quantum_lock",
    "rearc",
    "rectangle_count",
    "rotate_matrix",
    "rotten_oranges",
    "self_reference",
    "sentence_reordering",
    "shortest_path",
    "simple_equations",
    "simple_geometry",
    "spell_backward",
    "spiral_matrix",
    "string_insertion",
    "string_manipulation",
    "string_splitting",
    "string_synthesis",
    "sudoku",
    "survo",
    "syllogism",
    "time_intervals",
    "tower_of_hanoi",
    "tsumego",
    "word_sequence_reversal",
    "word_sorting",
    "zebra_puzzles",
)

SOFT = frozenset(EXACT)
"""Tasks where the library's rule gives full marks to more than a right answer."""

EXTRA: dict[str, Mapping[str, Mapping[str, object]]] = {
    name: {DEFAULT_PRESET: {}} | ({LIBRARY_PRESET: {}} if name in SOFT else {}) for name in EXTRA_DATASETS
}


# The allow-list of tasks with their named presets (difficulty settings of reasoning_gym), which seeds train, and how
# long an answer may be.
#
# `paper` holds the settings that the SAPO authors shipped; `starter` is tuned so that the bundled model sometimes
# succeeds; `hard` is for models with a billion parameters and more. `easy` is what the bundled model was trained on
# where `starter` asks for more. `library` is `paper` under the library's own rule, where ours is stricter.
#
# reasoning_gym makes item i of seed s from Random(s + i), so nearby seeds share items: the ranges of training and
# held-out seeds are further apart than any index that is used.

Settings = Mapping[str, object]
_MOST_TOKENS = 8192


class UnknownTask(SwarmError, ValueError):
    """No such task or preset; the message names the nearest match."""

    exit_code: ClassVar[int] = 2


class NoSuchTask(UnknownTask):
    """No task has that name: neither the app's, nor the person's own."""


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
"""Presets under whose rule full marks need a right answer."""


def preset_settings(dataset: str, preset: str) -> Settings:
    """The generator settings of a task. Raises UnknownTask."""
    presets = CATALOGUE.get(dataset)
    if presets is None:
        raise NoSuchTask(
            f"There is no task {dataset!r}. {suggest_names(dataset, {**CATALOGUE, **dict.fromkeys(library.task_names())})}"
        )
    chosen = presets.get(preset)
    if chosen is None:
        raise UnknownTask(f"Task {dataset!r} has no preset {preset!r}. {suggest_names(preset, presets)}")
    return chosen


def preset_of(dataset: str, preset: str) -> str:
    """The preset to use when one name is set for many tasks: that one, `default` for a task without difficulties, `own` for a
    custom task.

    Raises UnknownTask.
    """
    if is_own(dataset):
        return library.PRESET
    presets = CATALOGUE.get(dataset, {})
    chosen = DEFAULT_PRESET if DEFAULT_PRESET in presets and preset not in presets else preset
    preset_settings(dataset, chosen)
    return chosen


def is_own(dataset: str) -> bool:
    """The name is that of a custom task; the catalogue's names cannot be taken."""
    return dataset not in CATALOGUE and library.has_task(dataset)


def generator_of(dataset: str, swarm: str = "") -> str:
    """What makes the questions of a task here: part of each of its references. swarm: "" for references that stay here.

    Raises BadTask.
    """
    return library.resolve_generator(dataset, swarm) if is_own(dataset) else GENERATOR_VERSION


def held_out_count(dataset: str, limit: int) -> int:
    """How many held-out questions a task has, at most `limit`. Raises BadTask."""
    return min(limit, len(library.load_task(dataset).held_out)) if is_own(dataset) else limit


TRAIN_LIMIT = 2**31 - 2**20
"""Train seeds lie in [0, TRAIN_LIMIT); index 0 only."""
HELD_OUT_SEED = 2**31
"""Held-out items are (HELD_OUT_SEED, index)."""
HELD_OUT_SIZE = 2**20


def train_seed(node_key: str, swarm: str, round_number: int, slot: int, seed: int = 0) -> int:
    """A seed that no two nodes, rounds or slots share by design: H(...) mod TRAIN_LIMIT."""
    text = f"sapo-train-v1|{node_key}|{swarm}|{round_number}|{slot}|{seed}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big") % TRAIN_LIMIT


def contrast_refs(ref: TaskRef, count: int) -> list[TaskRef]:
    """Other questions of the same task, the same on every node. The chance that one has the question's own seed is 1 in 2^31,
    but in tasks with few questions it may read the same."""
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
    """Whether the reference can be trained on: item 0 of a train seed. Anything else could reach held-out items, and items
    far from 0 take some generators seconds."""
    return ref.index == 0 and ref.seed < TRAIN_LIMIT


def task_tokens(config: RunConfig) -> Mapping[str, int]:
    """Task -> token limit from run.task_tokens. Raises BadTask."""
    tokens = {}
    for entry in config.task_tokens:
        task, equals, number = entry.rpartition("=")
        if not equals or not number.isdecimal() or not 1 <= int(number) <= _MOST_TOKENS:
            raise BadTask(
                f"run.task_tokens: {entry!r} is not a task with its tokens, such as bf=256 (1 to {_MOST_TOKENS})."
            )
        tokens[task.strip()] = int(number)
    return tokens


def new_tokens(config: RunConfig, task: str) -> int:
    """Token limit of a completion for a question of that task: run.task_tokens goes first, then max_new_tokens of a custom
    task's task.toml unless the model reasons first; never more than run.max_new_tokens. Raises BadTask."""
    return tokens_needed(config, task, library.load_task(task).spec.max_new_tokens if is_own(task) else 0)


def tokens_needed(config: RunConfig, task: str, needed: int) -> int:
    """The same if the task is at hand. needed: max_new_tokens of its task.toml, 0 for none. Raises BadTask."""
    tokens = task_tokens(config).get(task) or (needed if config.thinking != "on" else 0)
    return min(tokens or config.max_new_tokens, config.max_new_tokens)
