"""How many examples of each task and preset are made, and how often each task is drawn while training."""

from __future__ import annotations

MIXTURE: dict[str, dict[str, int]] = {
    "base_conversion": {"starter": 30_000},
    "basic_arithmetic": {"starter": 30_000},
    "arc_1d": {"starter": 40_000},
    "bf": {"starter": 30_000},
    "propositional_logic": {"starter": 30_000},
    "fraction_simplification": {"starter": 30_000},
    "decimal_arithmetic": {"starter": 30_000},
    "calendar_arithmetic": {"starter": 30_000},
    "binary_matrix": {"easy": 30_000},
}
FURTHER: dict[str, dict[str, int]] = {"binary_matrix": {"starter": 12_000}}
"""More text, which only pools of harder questions (recipe.harder) are drawn from."""

HARDER = ", harder"
"""Follows a task's name in the name of its pool of harder questions, which weighs nothing unless it is named."""

Stages = list[tuple[float, dict[str, float]]]
WEIGHTS: dict[str, Stages] = {
    "1m": [
        (
            0.83,
            {
                "arc_1d": 1.5,
                "base_conversion": 0.8,
                "bf": 0.4,
                "propositional_logic": 0.25,
                "fraction_simplification": 0.6,
                "binary_matrix": 0.4,
                "calendar_arithmetic": 0.6,
            },
        ),
        (
            0.95,
            {
                "arc_1d": 1.5,
                "base_conversion": 1.5,
                "bf": 1.5,
                "propositional_logic": 0.5,
                "fraction_simplification": 0.8,
                "binary_matrix": 0.1,
            },
        ),
        (1.0, {"bf": 4.0, "propositional_logic": 0.3, "fraction_simplification": 0.5, "binary_matrix": 0.2}),
    ],
    "5m": [
        (
            0.95,
            {"arc_1d": 1.5, "propositional_logic": 0.3, "fraction_simplification": 0.8, "binary_matrix": 0.8},
        ),
        (
            1.0,
            {
                "arc_1d": 2.0,
                "base_conversion": 0.1,
                "basic_arithmetic": 0.8,
                "bf": 0.0,
                "propositional_logic": 0.1,
                "fraction_simplification": 0.0,
                "binary_matrix": 0.0,
            },
        ),
    ],
}
"""By size: weights up to a share of the schedule, relative to 1. Tasks that come easily are seen less, and the last stage
is spent on what is still weak: a starter that has learned a task leaves nothing to reinforcement learning."""

_5M_HARDER = {
    "arc_1d": 0.8,
    "arc_1d, harder": 1.6,
    "base_conversion": 0.35,
    "basic_arithmetic": 0.2,
    "basic_arithmetic, harder": 0.9,
    "fraction_simplification": 0.05,
    "decimal_arithmetic": 0.2,
    "decimal_arithmetic, harder": 0.7,
    "calendar_arithmetic": 0.3,
    "binary_matrix": 0.1,
    "binary_matrix, harder": 0.25,
}
_1M_POLISH = {"calendar_arithmetic": 0.1, "propositional_logic": 0.1, "fraction_simplification": 0.1}
POLISH: dict[str, Stages] = {
    "1m": [(1.0, {**_1M_POLISH, "bf": 0.6, "binary_matrix": 0.0})],
    "1m-matrix": [
        (
            1.0,
            {
                **_1M_POLISH,
                "bf": 0.42,
                "binary_matrix": 0.006,
                "calendar_arithmetic": 0.05,
                "propositional_logic": 0.05,
            },
        )
    ],
    "5m": [
        (
            1.0,
            {
                "arc_1d": 2.0,
                "base_conversion": 0.4,
                "basic_arithmetic": 1.3,
                "bf": 0.5,
                "fraction_simplification": 0.05,
                "decimal_arithmetic": 0.7,
                "calendar_arithmetic": 0.4,
                "binary_matrix": 0.1,
            },
        )
    ],
    "5m-harder": [
        (0.75, _5M_HARDER | {"bf": 0.06, "propositional_logic": 0.12}),
        (1.0, _5M_HARDER | {"bf": 0.2, "propositional_logic": 0.06}),
    ],
    "5m-reasoning": [
        (
            1.0,
            _5M_HARDER
            | {
                "arc_1d, harder": 2.0,
                "decimal_arithmetic": 0.4,
                "decimal_arithmetic, harder": 1.0,
                "bf": 0.15,
                "propositional_logic": 0.12,
                "fraction_simplification": 0.1,
                "binary_matrix": 0.03,
                "binary_matrix, harder": 0.05,
            },
        )
    ],
}
"""The same for the polish, a second and shorter schedule after the first (train.Plan.polish), by size or by name.

The small model is the mean of two polishes (recipe.blend): binary_matrix is forgotten all at once, with weight 0.003
wholly, with 0.006 hardly. `5m-harder` and then `5m-reasoning` made the larger model of an earlier one
(docs/decisions/0007-starter.md)."""


def weights_at(stages: Stages, progress: float) -> dict[str, float]:
    """The weights in force at a share of the schedule."""
    return next(weights for until, weights in stages if progress < until or until >= 1)
