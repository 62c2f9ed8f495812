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
WEIGHTS: dict[str, dict[str, float]] = {
    "1m": {"arc_1d": 1.5, "propositional_logic": 0.25, "binary_matrix": 0.4, "calendar_arithmetic": 0.6},
    "5m": {"arc_1d": 1.5, "propositional_logic": 0.3, "fraction_simplification": 0.8, "binary_matrix": 0.8},
}
"""By size of model, relative to 1. Copying comes easily: few premises to join. Noise in the rest leaves room to learn."""
