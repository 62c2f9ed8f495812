"""Key-value caches in the form that mlx_lm's models ask for: a prompt computed once, continued by many rows.

mlx_lm calls, layer by layer, `cache.offset` (position of the first new token), `cache.update_and_fetch(keys, values)`
and, once a forward pass, `make_mask`.
"""

from __future__ import annotations

from typing import Any

import mlx.core as mx

SHAPE_STEP = 16
"""Lengths are rounded up to this, so that few different shapes occur: Metal's allocator keeps buffers by size."""
SLOT_STEP = 64
"""The same for the filled part of a cache while decoding."""


def rounded(length: int, step: int = SHAPE_STEP) -> int:
    """The next multiple of step, at least one."""
    return max(step, -(-length // step) * step)


class PromptCache:
    """Causal attention over right-padded prompts (P, T); keeps keys and values (P, kv_heads, T, d)."""

    offset = 0

    def __init__(self, by_group: bool = False) -> None:
        """by_group: the model's scores have an axis more, that of queries a key."""
        self.keys: Any = None
        self.values: Any = None
        self.by_group = by_group

    def make_mask(self, length: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """The mask as mlx_lm asks for it."""
        if not return_array and (window_size is None or length <= window_size):
            return "causal"
        slot = mx.arange(length)
        distance = slot[:, None] - slot[None]
        return (distance >= 0) & (distance < (window_size or length))

    def shaped(self, mask: Any) -> Any:
        """mask (rows, 1, T, S) in as many axes as the model's scores have."""
        return mask[:, None] if self.by_group else mask

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Take the new keys and values (rows, kv_heads, T, d); give all that attention reads."""
        self.keys, self.values = keys, values
        return keys, values


class GroupCache:
    """All tokens of C completions at once, each continuing one of the prompts; differentiable by the prompts.

    owner, offset (C,): each row's prompt and its length. mask (C, 1, c, p + c): True where a token sees.
    """

    def __init__(self, prompt: PromptCache, owner: Any, offset: Any, mask: Any) -> None:
        self._prompt, self._owner, self.offset, self._mask = prompt, owner, offset, mask

    def make_mask(self, length: int, window_size: int | None = None, **_options: Any) -> Any:
        """The mask as mlx_lm asks for it."""
        mask = self._mask
        if window_size is not None:
            prompt = mask.shape[-1] - length
            own = mx.arange(length)[None, :, None] + self.offset[:, None, None]  # (C, c, 1), positions
            slot = mx.arange(mask.shape[-1])
            place = mx.where(slot < prompt, slot, slot - prompt + self.offset[:, None])[:, None]  # (C, 1, p + c)
            mask = mask & (own - place < window_size)[:, None]
        return self._prompt.shaped(mask)

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Take the new keys and values (rows, kv_heads, T, d); give all that attention reads."""
        prompt = self._prompt
        return (
            mx.concatenate([prompt.keys[self._owner], keys], axis=2),  # (C, kv_heads, p + c, d)
            mx.concatenate([prompt.values[self._owner], values], axis=2),
        )


class DecodeCache:
    """One new token a row in preallocated slots; the first `prompt` slots hold each row's right-padded prompt.

    offset (rows,): position of the next token. filled: slots in use, equal for all rows.
    """

    def __init__(self, prompt: PromptCache, owner: Any, lengths: Any, steps: int) -> None:
        self.offset, self._lengths, self._shaped = lengths, lengths, prompt.shaped
        self._prompt = int(prompt.keys.shape[2])
        self.filled = self._prompt
        self._keys, self._values = (self._reserve(part[owner], steps) for part in (prompt.keys, prompt.values))

    def _reserve(self, part: Any, steps: int) -> Any:
        rows, heads, length, width = part.shape
        room = rounded(length + steps, SLOT_STEP) - length
        return mx.concatenate([part, mx.zeros((rows, heads, room, width), part.dtype)], axis=2)

    def make_mask(self, _length: int, window_size: int | None = None, **_options: Any) -> Any:
        """(rows, 1, 1, slots): True on the row's own prompt and on what it has sampled, the new token included; of these
        on the last window_size, if given."""
        slot = mx.arange(self._visible())
        sampled = (slot >= self._prompt) & (slot <= self.filled)
        seen = (slot[None] < self._lengths[:, None]) | sampled[None]
        if window_size is not None:
            place = mx.where(slot < self._prompt, slot, slot - self._prompt + self._lengths[:, None])
            seen = seen & (self.offset[:, None] - place < window_size)
        return self._shaped(seen[:, None, None, :])

    def _visible(self) -> int:
        """Slots handed to attention: all filled ones and the new token, rounded up."""
        return rounded(self.filled + 1, SLOT_STEP)

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Take the new keys and values (rows, kv_heads, T, d); give all that attention reads."""
        self._keys[:, :, self.filled : self.filled + 1] = keys
        self._values[:, :, self.filled : self.filled + 1] = values
        end = self._visible()
        self.filled += 1
        self.offset = self.offset + 1
        return self._keys[:, :, :end], self._values[:, :, :end]

    def keep(self, rows: Any) -> None:
        """Drop all rows but these."""
        self._keys, self._values = self._keys[rows], self._values[rows]
        self.offset, self._lengths = self.offset[rows], self._lengths[rows]

    @property
    def arrays(self) -> tuple[Any, Any]:
        """Keys and values (rows, kv_heads, slots, d)."""
        return self._keys, self._values
