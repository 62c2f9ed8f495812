"""Rows of tokens of one length, as transformers takes them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sapo_backends.base import TokenIds


def padded_left(prompts: Sequence[TokenIds], device: torch.device) -> tuple[Tensor, Tensor]:
    """1 where a token is real, and the tokens, each (prompts, longest)."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    return real, ids


def padded_right(texts: Sequence[TokenIds], width: int, device: torch.device) -> Tensor:
    """(texts, width), filled up with 0."""
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=device)
