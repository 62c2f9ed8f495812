"""Which parameters of a model are trained when nobody said so."""

from __future__ import annotations

from typing import Literal

from sapo_backends.base import LoadRequest

FULL_BELOW = 50_000_000
"""method "auto": models with fewer parameters are fine-tuned as a whole, larger ones get an adapter."""


def pick_method(request: LoadRequest, parameters: int, *, quantised: bool = False) -> Literal["full", "lora", "none"]:
    """The requested method, or the one that suits; a quantised model cannot be trained as a whole."""
    if request.method != "auto":
        return request.method
    return "full" if parameters < FULL_BELOW and not quantised else "lora"
