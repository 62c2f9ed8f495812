"""The settings of a run: one frozen, documented schema.

The TOML file, the CLI flags, the settings screen and the docs are all made from these fields and their Meta.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sapo_swarm.types import AnswerFormat, RewardRule

REASONING_TOKENS = 1024
"""Minimum token limit of a model that reasons before it answers, unless the person sets a limit."""
MOST_EVAL_ITEMS = 10_000
"""Most held-out items that an evaluation asks of one task."""
MOST_ROUNDS = 1_000_000_000
"""Upper bound of settings that count rounds: at ten rounds a second, three years."""
MOST_CHECKPOINTS = 1_000_000
_BOUNDED: Mapping[str, int] = {
    **dict.fromkeys(("rounds", "eval_every", "checkpoint_every", "keep_groups"), MOST_ROUNDS),
    "keep_checkpoints": MOST_CHECKPOINTS,
}
"""Settings that had no upper bound once."""
PAPER_TASKS: tuple[str, ...] = (
    *("base_conversion", "basic_arithmetic", "arc_1d", "bf", "propositional_logic", "fraction_simplification"),
    *("decimal_arithmetic", "calendar_arithmetic", "binary_matrix"),
)
"""The nine reasoning_gym tasks of the paper's controlled experiment (arXiv 2509.08721, section 5)."""


RENAMED: Mapping[str, str] = {"own_groups": "local_groups"}
"""Old name -> current name of settings that were renamed. Files with the old name stay readable."""


def _doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides what a node computes. Two runs with equal configs and seeds do the same work."""

    # What learns
    model: Annotated[str, _doc("starter, starter-1m, a GGUF file, a local Hugging Face folder, or a hub id")] = (
        "starter"
    )
    trainer: Annotated[str, _doc("Engine: auto (see sapo-desktop bench), torch, or another installed one")] = "auto"
    method: Annotated[Literal["auto", "full", "lora", "none"], _doc("Train all weights or a LoRA adapter")] = "auto"
    precision: Annotated[str, _doc("auto (the fastest if measured), float32, bfloat16, or 4bit (frozen)")] = "auto"
    device: Annotated[str, _doc("auto, cpu, cuda, mps")] = "auto"
    threads: Annotated[
        int, _doc("CPU threads for the engine; 0 = the fastest number if measured, else all cores", ge=0, le=1024)
    ] = 0
    lora_rank: Annotated[int, _doc("Rank of the LoRA adapter", ge=1, le=256)] = 16

    # On what
    tasks: Annotated[tuple[str, ...], _doc("Tasks, sampled uniformly: reasoning_gym's and your own")] = PAPER_TASKS
    preset: Annotated[str, _doc("Difficulty: starter, paper or hard; library = paper, judged more softly")] = "starter"
    partial_credit: Annotated[bool, _doc("Use the task's partial credit instead of strict 0/1 reward")] = False
    judge_url: Annotated[
        str, _doc("The judge of judged tasks: OpenAI's chat completions, up to /v1. It is sent questions and answers")
    ] = ""
    judge_model: Annotated[str, _doc("The judge's name at judge_url")] = ""
    judge_kappa: Annotated[
        float, _doc("Agreement of judge and person (Cohen's kappa) that training needs", ge=0.0, le=1.0)
    ] = 0.6
    contrast: Annotated[
        int,
        _doc(
            "Re-score a correct answer on N other questions of its task; no reward if it passes there too. 0 = off",
            ge=0,
            le=16,
        ),
    ] = 0

    answer_format: Annotated[
        AnswerFormat,
        _doc(
            "Where an answer stands, as the prompt asks for it: tags = between <answer> and </answer>, boxed = in \\boxed{}, "
            'last_line, json = {"answer": ...}'
        ),
    ] = "tags"
    thinking: Annotated[
        Literal["auto", "on", "off"],
        _doc(
            "Whether a model with a switch for it reasons before it answers. auto = off: with a small max_new_tokens most "
            "answers would be cut off"
        ),
    ] = "auto"

    examples: Annotated[
        Literal["auto", "off", "only"],
        _doc(
            "Whether training begins with verified examples: auto = where a short trial shows that practice alone would have too "
            "little to learn from; off = never; only = examples and no practice"
        ),
    ] = "auto"

    curriculum: Annotated[
        Literal["uniform", "tasks", "presets"],
        _doc(
            "Which questions to sample: uniform = all tasks alike; tasks = more of the tasks that succeed about half of the "
            "time; presets = between a task's difficulties, too (in a swarm the same as tasks)"
        ),
    ] = "uniform"

    # A round
    rounds: Annotated[int, _doc("Rounds to train; 0 = until stopped", ge=0, le=MOST_ROUNDS)] = 0
    group_size: Annotated[int, _doc("Completions per question (G)", ge=2, le=64)] = 8
    local_groups: Annotated[
        int,
        _doc(
            "Local groups in a training batch (I): questions that this node answers itself; 0 = chosen by the app: alone 32 "
            "for models under 50M parameters, else 8; in a swarm 8, else 2",
            ge=0,
            le=256,
        ),
    ] = 0
    external_groups: Annotated[
        int,
        _doc(
            "External groups in a training batch (J), from other nodes; 0 = chosen by the app: 8 in a swarm (a typed 0: none)",
            ge=0,
            le=256,
        ),
    ] = 0
    sampling: Annotated[str, _doc("How external groups are chosen: uniform_nonzero, uniform, reward_guided, none")] = (
        "uniform_nonzero"
    )
    external_advantages: Annotated[
        Literal["all", "positive"],
        _doc(
            "Which external completions to learn from: all, or positive = only those that did better than their group, so that "
            "other nodes' mistakes are never pushed away"
        ),
    ] = "positive"
    replay_groups: Annotated[
        int,
        _doc(
            "Own earlier successes to learn from once more in every round, without generating; no measurable gain alone. 0 = off",
            ge=0,
            le=256,
        ),
    ] = 0
    replay_half_life: Annotated[
        int, _doc("Rounds after which an own success is half as likely to be replayed", ge=1, le=1000)
    ] = 20
    tripwire: Annotated[
        float,
        _doc(
            "How much of its best held-out pass@1 a node in a swarm may lose (0.25 = a quarter) before it stops learning from "
            "others and goes back to its best weights; 0 = never",
            ge=0.0,
            le=1.0,
        ),
    ] = 0.25
    max_new_tokens: Annotated[int, _doc("Longest completion, in tokens", ge=1, le=8192)] = 96
    task_tokens: Annotated[tuple[str, ...], _doc("Tasks that may write fewer tokens, such as bf=48,arc_1d=64")] = ()
    temperature: Annotated[float, _doc("Sampling temperature of training rollouts", gt=0.0, le=4.0)] = 1.0

    # The update
    algorithm: Annotated[str, _doc("Policy gradient: grpo, dr_grpo, rloo, gspo, maxrl, pods")] = "grpo"
    learning_rate: Annotated[float, _doc("Adam step size; 0 = the method's default", ge=0.0, le=1.0)] = 0.0
    final_rate: Annotated[
        float,
        _doc(
            "Share of the learning rate that is left at the end of a run with planned `rounds`; it falls linearly over "
            "the second half. 1 = constant",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.1
    epochs: Annotated[int, _doc("Passes over a batch", ge=1, le=16)] = 1
    minibatches: Annotated[int, _doc("Optimizer steps a pass", ge=1, le=64)] = 1

    # Bookkeeping
    seed: Annotated[int, _doc("Seed of the run; every node mixes its key in", ge=0, lt=2**31)] = 0
    eval_every: Annotated[
        int,
        _doc(
            "Small held-out evaluation every N rounds, and after the last planned one; 0 = never", ge=0, le=MOST_ROUNDS
        ),
    ] = 25
    eval_items: Annotated[
        int,
        _doc(
            "Held-out items per task in the small evaluation, each answered at temperature 1 and at 0; 0 = chosen by the app: "
            "64 over up to four tasks, 16 of each of up to nine, 144 over more",
            ge=0,
            le=MOST_EVAL_ITEMS,
        ),
    ] = 0
    checkpoint_minutes: Annotated[
        float,
        _doc(
            "Minutes between checkpoints while training goes on; large models are saved less often, so that a disk lasts. "
            "A kill loses no finished round either way: it is redone from its kept rollouts",
            ge=0.0,
            le=1440.0,
        ),
    ] = 2.0
    checkpoint_every: Annotated[
        int,
        _doc(
            "Fewest rounds between two checkpoints; when one is due is for checkpoint_minutes to say",
            ge=1,
            le=MOST_ROUNDS,
        ),
    ] = 1
    disk_budget_gb: Annotated[
        float,
        _doc(
            "Disk space that a model may use, checkpoints and history together, in GB; old ones are thinned",
            ge=0.0,
            le=1e6,
        ),
    ] = 2.0
    keep_groups: Annotated[
        int,
        _doc(
            "Newest rounds whose groups stay in the journal (every 10th and first successes stay too); 0 = all",
            ge=0,
            le=MOST_ROUNDS,
        ),
    ] = 200
    keep_checkpoints: Annotated[
        int,
        _doc(
            "Newest checkpoints kept, the last with the optimizer's state; the first, the two best and ever fewer old ones stay",
            ge=1,
            le=MOST_CHECKPOINTS,
        ),
    ] = 3

    def __post_init__(self) -> None:
        """A run of an earlier version may name a strategy that is gone."""
        if self.sampling == "novelty":
            msgspec.structs.force_setattr(self, "sampling", "uniform_nonzero")

    @property
    def reward_rule(self) -> RewardRule:
        """How local and external completions are rewarded. Held-out questions are always scored strictly."""
        return RewardRule(self.partial_credit, self.contrast)


def rename_legacy_keys(table: Mapping[str, Any], names: Mapping[str, str] = RENAMED) -> dict[str, Any]:
    """A table of settings under their current names. If a setting is there under both names, the current one counts."""
    current = {key: value for key, value in table.items() if names.get(key) not in table}
    return {names.get(key, key): value for key, value in current.items()}


def settings_of_today(old: Mapping[str, Any]) -> dict[str, Any]:
    """A run's settings as an older version wrote them: renamed keys under their new names, without keys that no longer exist.
    A whole number above a bound that the older version did not have becomes that bound."""
    kept = {key: value for key, value in rename_legacy_keys(old).items() if key in RunConfig.__struct_fields__}
    return {key: min(value, _BOUNDED[key]) if key in _BOUNDED else value for key, value in kept.items()}
