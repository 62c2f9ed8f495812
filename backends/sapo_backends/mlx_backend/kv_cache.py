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

    def __init__(self) -> None:
        self.keys: Any = None
        self.values: Any = None

    def make_mask(self, _length: int, **_options: Any) -> str:
        """The mask as mlx_lm asks for it."""
        return "causal"

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

    def make_mask(self, _length: int, **_options: Any) -> Any:
        """The mask as mlx_lm asks for it."""
        return self._mask

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
        self.offset, self._lengths = lengths, lengths
        self._prompt = int(prompt.keys.shape[2])
        self.filled = self._prompt
        self._keys, self._values = (self._reserve(part[owner], steps) for part in (prompt.keys, prompt.values))

    def _reserve(self, part: Any, steps: int) -> Any:
        rows, heads, length, width = part.shape
        room = rounded(length + steps, SLOT_STEP) - length
        return mx.concatenate([part, mx.zeros((rows, heads, room, width), part.dtype)], axis=2)

    def make_mask(self, _length: int, **_options: Any) -> Any:
        """(rows, 1, 1, slots): True on the row's own prompt and on what it has sampled, the new token included."""
        slot = mx.arange(self._visible())
        sampled = (slot >= self._prompt) & (slot <= self.filled)
        return ((slot[None] < self._lengths[:, None]) | sampled[None])[:, None, None, :]

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
