"""What the name of a precision says."""

from __future__ import annotations

from sapo_backends.common.hardware import detect

FOUR_BIT = "4bit"
"""The precision of frozen weights in 4 bits; "4bit-float32" computes in float32, "4bit" in what auto would choose."""


def is_four_bit(precision: str) -> bool:
    """Whether frozen weights are stored in 4 bits."""
    return precision.partition("-")[0] == FOUR_BIT


def computes_in(precision: str) -> str:
    """The type that the torch engine computes in on this processor: float32 or bfloat16."""
    wanted = precision.removeprefix(FOUR_BIT).removeprefix("-") or "auto"
    if wanted != "auto":
        return "bfloat16" if wanted == "bfloat16" else "float32"
    return "bfloat16" if detect().fast_bfloat16 else "float32"
