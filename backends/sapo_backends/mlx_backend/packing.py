"""A micro-batch as padded arrays of few shapes, in which completions share their prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import TokenIds
from sapo_backends.common.update import Mask, Pair
from sapo_backends.mlx_backend.kv_cache import rounded


@dataclass(frozen=True, slots=True)
class Packed:
    """P prompts (P, p) and C completions; a completion token sees its prompt and what came before it.

    last (P,): each prompt's last position. inputs (C, c): completions without their last token, padded. targets
    (C, c + 1): completions, padded; valid (C, c + 1): where they are real and carry loss.
    """

    prompts: Any
    last: Any
    owner: Any
    offset: Any
    inputs: Any
    mask: Any
    targets: Any
    valid: Any


def padded(rows: Sequence[TokenIds], width: int) -> NDArray[np.int32]:
    """Right-padded with 0: (rows, width)."""
    result = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(result, rows, strict=True):
        row[: len(ids)] = ids
    return result


def pack(pairs: Sequence[Pair], members: list[int], masks: Sequence[Mask] = ()) -> Packed:
    """Lay out one micro-batch. Every member has a non-empty prompt and completion. masks: of each pair, as in TrainSample."""
    unique = list(dict.fromkeys(pairs[i][0] for i in members))
    row_of = {prompt: row for row, prompt in enumerate(unique)}
    completions = [pairs[i][1] for i in members]
    owner = np.array([row_of[pairs[i][0]] for i in members], np.int32)
    lengths = np.array([len(prompt) for prompt in unique], np.int32)
    p, c = rounded(int(lengths.max())), rounded(max(map(len, completions)) - 1)
    slot, time = np.arange(p + c), np.arange(c)
    in_prompt = slot[None, None] < lengths[owner][:, None, None]
    in_own = (slot[None, None] >= p) & (slot[None, None] - p <= time[None, :, None])
    sizes = np.array([len(completion) for completion in completions])
    valid = np.arange(c + 1)[None] < sizes[:, None]
    for row, i in enumerate(members):
        if masks and (mask := masks[i]) is not None:
            valid[row, : len(mask)] &= mask
    return Packed(
        prompts=mx.array(padded(unique, p)),
        last=mx.array(lengths - 1),
        owner=mx.array(owner),
        offset=mx.array(lengths[owner]),
        inputs=mx.array(padded([completion[:-1] for completion in completions], c)),
        mask=mx.array((in_prompt | in_own)[:, None]),
        targets=mx.array(padded(completions, c + 1)),
        valid=mx.array(valid),
    )
