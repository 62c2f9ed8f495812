"""The settings of a run: one frozen, documented schema.

The TOML file, the CLI flags, the settings screen and the docs are all made from these fields and their Meta.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from sapo_swarm.types import RewardRule

PAPER_TASKS: tuple[str, ...] = (
    "base_conversion",
    "basic_arithmetic",
    "arc_1d",
    "bf",
    "propositional_logic",
    "fraction_simplification",
    "decimal_arithmetic",
    "calendar_arithmetic",
    "binary_matrix",
)
"""The nine reasoning_gym tasks of the paper's controlled experiment (arXiv 2509.08721, section 5)."""


def _doc(text: str, **limits: Any) -> Meta:
    return Meta(description=text, **limits)


class RunConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Everything that decides what a node computes. Two runs with equal configs and seeds do the same work."""

    # What learns
    model: Annotated[str, _doc("starter, starter-1m, a local Hugging Face folder, or a hub id")] = "starter"
    trainer: Annotated[
        str, _doc("Engine: auto (the fastest if measured, see sapo-desktop bench), torch, or another that is installed")
    ] = "auto"
    method: Annotated[Literal["auto", "full", "lora", "none"], _doc("Train all weights or a LoRA adapter")] = "auto"
    precision: Annotated[str, _doc("Compute type: auto (the fastest if measured), float32 or bfloat16")] = "auto"
    device: Annotated[str, _doc("auto, cpu, cuda, mps")] = "auto"
    threads: Annotated[
        int, _doc("CPU threads for the engine; 0 = the fastest number if measured, else all cores", ge=0, le=1024)
    ] = 0
    lora_rank: Annotated[int, _doc("Rank of the LoRA adapter", ge=1, le=256)] = 16

    # On what
    tasks: Annotated[tuple[str, ...], _doc("Tasks, drawn uniformly: reasoning_gym's and your own")] = PAPER_TASKS
    preset: Annotated[str, _doc("Difficulty: starter, paper or hard")] = "starter"
    partial_credit: Annotated[bool, _doc("Use the task's partial credit instead of strict 0/1 reward")] = False
    contrast: Annotated[
        int,
        _doc(
            "Other questions of its task on which a right answer must be wrong: what passes unread earns nothing. 0 = none",
            ge=0,
            le=16,
        ),
    ] = 0

    # A round
    rounds: Annotated[int, _doc("Rounds to train; 0 = until stopped", ge=0)] = 0
    group_size: Annotated[int, _doc("Completions per question (G)", ge=2, le=64)] = 8
    local_groups: Annotated[
        int,
        _doc("Own groups in a training batch (I); 0 alone = 32 for models under 50M parameters, else 8", ge=0, le=256),
    ] = 0
    external_groups: Annotated[int, _doc("External groups in a training batch (J)", ge=0, le=256)] = 0
    sampling: Annotated[
        str, _doc("How external groups are chosen: uniform_nonzero, uniform, reward_guided, novelty, none")
    ] = "uniform_nonzero"
    external_advantages: Annotated[
        Literal["all", "positive"],
        _doc(
            "Which completions of others' groups are trained on: all, or only what did better than its group: what others got "
            "wrong is then not pushed away"
        ),
    ] = "positive"
    tripwire: Annotated[
        float,
        _doc(
            "Part of its best held-out pass@1 that a node in a swarm may lose before it takes no more groups of others "
            "and goes back to its best weights; 0 = never",
            ge=0.0,
            le=1.0,
        ),
    ] = 0.25
    max_new_tokens: Annotated[int, _doc("Longest completion, in tokens", ge=1, le=8192)] = 96
    temperature: Annotated[float, _doc("Sampling temperature of training rollouts", gt=0.0, le=4.0)] = 1.0

    # The update
    algorithm: Annotated[str, _doc("Policy gradient: grpo, dr_grpo, rloo, gspo")] = "grpo"
    learning_rate: Annotated[float, _doc("Adam step size; 0 = the method's default", ge=0.0, le=1.0)] = 0.0
    final_rate: Annotated[
        float,
        _doc(
            "Part of the learning rate that is left at the last of `rounds`; it falls linearly over their second half. "
            "1 = constant, as it is without a planned end",
            gt=0.0,
            le=1.0,
        ),
    ] = 0.1
    epochs: Annotated[int, _doc("Passes over a batch", ge=1, le=16)] = 1
    minibatches: Annotated[int, _doc("Optimizer steps a pass", ge=1, le=64)] = 1

    # Bookkeeping
    seed: Annotated[int, _doc("Seed of the run; the node key is mixed in", ge=0, lt=2**31)] = 0
    eval_every: Annotated[int, _doc("Small held-out evaluation every N rounds; 0 = never", ge=0)] = 25
    eval_items: Annotated[int, _doc("Held-out items per task in the small evaluation", ge=1, le=10000)] = 16
    checkpoint_every: Annotated[int, _doc("Rounds between checkpoints", ge=1)] = 1
    keep_groups: Annotated[
        int,
        _doc("Newest rounds whose groups stay in the journal (every 10th and first successes stay too); 0 = all", ge=0),
    ] = 200
    keep_checkpoints: Annotated[
        int, _doc("Newest checkpoints kept (the first, the best and every 50th stay)", ge=1)
    ] = 3

    @property
    def reward_rule(self) -> RewardRule:
        """How own and others' completions are rewarded. Held-out questions are judged strictly, whatever it says."""
        return RewardRule(self.partial_credit, self.contrast)
