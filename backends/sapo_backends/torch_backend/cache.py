"""Decoding against a cache in which the completions of a group share their prompt's keys and values.

Attention for one new token a row reads the whole cache, so memory traffic decides its speed: the prompt's part is
read once a group, as one matrix product for all its rows, instead of once a row.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sapo_backends.torch_backend.attention import PromptAttention


class CacheAttention:
    """One new token a row. `used` counts the filled slots of the rows' own keys (rows, kv_heads, slots, d) a layer.

    Rows lie in the order of their prompts. On a CPU the cache is float32: products with one query are bound by
    overhead, and the bfloat16 kernels have several times more of it.
    """

    def __init__(self, prompt: PromptAttention, lengths: Tensor, owner: Tensor, slots: int) -> None:
        """lengths (prompts,): tokens of each right-padded prompt. owner (rows,): each row's prompt, ascending."""
        first = prompt.keys[0]
        self._kind = torch.float32 if first.device.type == "cpu" else first.dtype
        self._prompt_keys = [k.to(self._kind) for k in prompt.keys]  # (P, kv_heads, p, d)
        self._prompt_values = [v.to(self._kind) for v in prompt.values]
        self._bias = self._padding_bias(lengths, first.shape[2])
        shape = (len(owner), first.shape[1], slots, first.shape[3])
        self._keys, self._values = (
            [torch.empty(shape, dtype=self._kind, device=first.device) for _ in prompt.keys] for _ in range(2)
        )
        self.used = 0
        self._arrange(owner)

    def _padding_bias(self, lengths: Tensor, longest: int) -> Tensor | None:
        """-inf on the padding of shorter prompts, (P, 1, 1, p); None when all are equally long."""
        if bool((lengths == longest).all()):
            return None
        padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
        bias = torch.zeros(padding.shape, dtype=self._kind, device=lengths.device)
        return bias.masked_fill_(padding, float("-inf"))[:, None, None]

    def _arrange(self, owner: Tensor) -> None:
        """Give each prompt as many places as its largest group has rows; place (rows,) is None when all are filled."""
        self._owner = owner
        prompts = len(self._prompt_keys[0])
        counts = torch.bincount(owner, minlength=prompts)
        self._width = int(counts.max())
        first = counts.cumsum(0) - counts
        place = owner * self._width + torch.arange(len(owner), device=owner.device) - first[owner]
        self._place = None if len(owner) == prompts * self._width else place

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these (indices, ascending), and prompts that have none left."""
        for caches in (self._keys, self._values):
            for i, cache in enumerate(caches):
                smaller = cache.new_empty(len(rows), *cache.shape[1:])
                smaller[:, :, : self.used] = cache[rows, :, : self.used]
                caches[i] = smaller
        alive, owner = torch.unique(self._owner[rows], return_inverse=True)
        if len(alive) < len(self._prompt_keys[0]):
            self._prompt_keys = [k[alive] for k in self._prompt_keys]
            self._prompt_values = [v[alive] for v in self._prompt_values]
            self._bias = None if self._bias is None else self._bias[alive]
        self._arrange(owner)

    def _by_prompt(self, x: Tensor) -> Tensor:
        """(rows, kv_heads, g, n) -> (P, kv_heads, width * g, n): the rows of a prompt behind one another."""
        heads, group, size = x.shape[1:]
        if self._place is not None:
            padded = x.new_zeros(len(self._prompt_keys[0]) * self._width, heads, group, size)
            x = padded.index_copy_(0, self._place, x)
        return x.view(-1, self._width, heads, group, size).transpose(1, 2).reshape(-1, heads, self._width * group, size)

    def _by_row(self, x: Tensor, group: int) -> Tensor:
        """The inverse of _by_prompt."""
        prompts, heads, _, size = x.shape
        x = x.view(prompts, heads, self._width, group, size).transpose(1, 2).reshape(-1, heads, group, size)
        return x if self._place is None else x[self._place]

    def __call__(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        at, end = self.used, self.used + 1
        self._keys[layer][:, :, at], self._values[layer][:, :, at] = k, v
        keys, values = self._keys[layer][:, :, :end], self._values[layer][:, :, :end]
        rows, heads, width = q.shape
        group = heads // keys.shape[1]
        scaled = (q.to(self._kind) * width**-0.5).view(rows, -1, group, width)  # (rows, kv_heads, g, d)
        to_prompt = torch.matmul(self._by_prompt(scaled), self._prompt_keys[layer].transpose(-1, -2))
        if self._bias is not None:
            to_prompt += self._bias
        to_own = torch.matmul(scaled, keys.transpose(-1, -2))  # (rows, kv_heads, g, end)
        weights = torch.cat((self._by_row(to_prompt, group), to_own), dim=-1).softmax(dim=-1)
        on_prompt, on_own = torch.split(weights, [weights.shape[-1] - end, end], dim=-1)
        mixed = torch.matmul(on_own, values)
        mixed += self._by_row(torch.matmul(self._by_prompt(on_prompt), self._prompt_values[layer]), group)
        return mixed.reshape(rows, heads * width).to(q.dtype)
