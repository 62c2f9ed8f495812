"""Decoding against a cache in which the completions of a group share their prompt's keys and values.

Attention for one new token a row is bound by memory traffic and by the number of operations. So the prompt's part is
read once for all rows of a group, as one matrix product; keys and values are written at once; and both parts of the
scores go into one tensor that a single softmax normalises.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sapo_backends.torch_backend.attention import PromptAttention
from sapo_backends.torch_backend.fused import rotate

STEP_COST = 256
"""What a row's projections cost in a decode step, in units of one token of attention."""


def grid(owner: Tensor, prompt_tokens: int, own_tokens: int) -> tuple[Tensor, Tensor]:
    """Places for rows of prompts owner (rows,), ascending: entries of equally many places, each entry of one prompt.

    Gives (entries, width) row of each place, and (rows,) place of each row. A place left over repeats a row. A prompt
    with many rows may get several entries: the width is chosen so that little is computed in vain.
    """
    counts = torch.unique_consecutive(owner.cpu(), return_counts=True)[1]

    def cost(width: int) -> int:
        entries = int(((counts + width - 1) // width).sum())
        return entries * (width * (STEP_COST + own_tokens) + prompt_tokens)

    width = min(range(1, int(counts.max()) + 1), key=cost)
    places, place_of, first = list[list[int]](), list[int](), 0
    for count in counts.tolist():
        for start in range(0, count, width):
            rows = [first + min(start + i, count - 1) for i in range(width)]
            place_of += range(len(places) * width, len(places) * width + min(width, count - start))
            places.append(rows)
        first += count
    return torch.tensor(places, device=owner.device), torch.tensor(place_of, device=owner.device)


class CacheAttention:
    """One new token a place; `used` counts the filled slots of the places' own keys and values.

    Places lie in a grid of E entries, each with one prompt, times W. On a CPU the cache is float32: products with one
    query are bound by overhead, and the bfloat16 kernels have several times more of it.
    """

    def __init__(self, prompt: PromptAttention, lengths: Tensor, entry_prompt: Tensor, width: int, slots: int) -> None:
        """lengths (prompts,): tokens of each right-padded prompt. entry_prompt (E,): each entry's prompt."""
        first = prompt.keys_values[0]  # (2, prompts, kv_heads, p, d)
        self._kind = torch.float32 if first.device.type == "cpu" else first.dtype
        self._prompt = [kv[:, entry_prompt].to(self._kind) for kv in prompt.keys_values]  # (2, E, kv_heads, p, d)
        self._kv_heads = first.shape[2]
        self._bias = self._padding_bias(lengths[entry_prompt], first.shape[3])
        _, _, heads, _, size = first.shape
        shape = (2, len(entry_prompt), heads, width, slots, size)
        self._own = [torch.empty(shape, dtype=self._kind, device=first.device) for _ in prompt.keys_values]
        self.used = 0
        self._none = self._own[0].new_zeros(1, 1, 1)
        self._queries = self._mixed = self._none

    def _padding_bias(self, lengths: Tensor, longest: int) -> Tensor | None:
        """-inf on the padding of shorter prompts, (E * kv_heads, 1, p); None when all are equally long."""
        if bool((lengths == longest).all()):
            return None
        padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
        bias = torch.zeros(padding.shape, dtype=self._kind, device=lengths.device)
        return bias.masked_fill_(padding, float("-inf")).repeat_interleave(self._kv_heads, dim=0)[:, None]

    def keep(self, places: Tensor) -> None:
        """Keep only these places, (E', W'): rows of one entry belong to one prompt."""
        old = self._own[0].shape[3]
        entry, column = places // old, places % old
        for i, own in enumerate(self._own):
            _, _, heads, _, slots, size = own.shape
            fresh = own.new_empty(2, len(places), heads, places.shape[1], slots, size)
            kept = own[:, :, :, :, : self.used].permute(1, 3, 0, 2, 4, 5)[entry, column]  # (E', W', 2, heads, used, d)
            fresh[:, :, :, :, : self.used] = kept.permute(2, 0, 3, 1, 4, 5)
            self._own[i] = fresh
        first = entry[:, 0]
        if not torch.equal(first, torch.arange(self._prompt[0].shape[1], device=first.device)):
            self._prompt = [kv[:, first] for kv in self._prompt]
            if self._bias is not None:
                self._bias = self._bias.view(-1, self._kv_heads, 1, self._bias.shape[-1])[first].flatten(0, 1)

    def __call__(self, layer: int, heads: int, rows: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        """rows (E * W, heads + 2 kv_heads, d) of the new tokens -> (E * W, heads * d)."""
        own, prompt, at, end = self._own[layer], self._prompt[layer], self.used, self.used + 1
        _, entries, kv_heads, width, _, size = own.shape
        group = heads // kv_heads
        rotate(rows[:, : heads + kv_heads], cos, sin)
        own[:, :, :, :, at] = rows[:, heads:].view(entries, width, 2, kv_heads, size).permute(2, 0, 3, 1, 4)
        if layer == 0:
            self._queries = own.new_empty(entries, kv_heads, width, group, size)
            self._mixed = torch.empty_like(self._queries)
        queries, mixed = self._queries, self._mixed
        queries.copy_(rows[:, :heads].view(entries, width, kv_heads, group, size).transpose(1, 2))
        to_prompt, prompt = queries.view(-1, width * group, size), prompt.flatten(1, 2)
        to_own, own = queries.view(-1, group, size), own.flatten(1, 3)[:, :, :end]
        scale = size**-0.5
        on_prompt = torch.baddbmm(self._none, to_prompt, prompt[0].transpose(1, 2), beta=0, alpha=scale)
        on_own = torch.baddbmm(self._none, to_own, own[0].transpose(1, 2), beta=0, alpha=scale)
        if self._bias is not None:
            on_prompt += self._bias
        scores = torch.cat((on_prompt, on_own.view(len(on_prompt), -1, end)), dim=-1)
        torch.softmax(scores, dim=-1, out=scores)  # (E * kv_heads, W * g, p + end)
        torch.bmm(scores.view(len(to_own), group, -1)[..., -end:], own[1], out=mixed.view(-1, group, size))
        mixed.view(-1, width * group, size).baddbmm_(scores[..., :-end], prompt[1])
        result = rows.new_empty(entries, width, kv_heads, group, size)
        return result.copy_(mixed.transpose(1, 2)).view(entries * width, heads * size)
