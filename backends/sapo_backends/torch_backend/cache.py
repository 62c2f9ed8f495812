"""The keys and values of decoding, in which the completions of a group share their prompt's.

Attention for one new token a row is bound by memory traffic and by the number of operations. So the prompt's part is
read once for all rows of a group, as one matrix product, and a token's keys and values are written at once.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sapo_backends.torch_backend.decode import Keys

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
    rows_of, place_of, first = list[list[int]](), list[int](), 0
    for count in counts.tolist():
        for start in range(0, count, width):
            place_of += range(len(rows_of) * width, len(rows_of) * width + min(width, count - start))
            rows_of.append([first + min(start + i, count - 1) for i in range(width)])
        first += count
    return torch.tensor(rows_of, device=owner.device), torch.tensor(place_of, device=owner.device)


class Cache:
    """Keys and values of E entries, each with one prompt, times W places with their own tokens.

    used: filled slots of the places' own tokens. bias (E * kv_heads, 1, p): -inf on the padding of shorter prompts, None
    when all are equally long. On a CPU the cache is float32: products with one query are bound by overhead, and the
    bfloat16 kernels have several times more of it.
    """

    def __init__(
        self, prompts: list[Tensor], lengths: Tensor, entry_prompt: Tensor, width: int, slots: int, used: int = 0
    ) -> None:
        """prompts: keys and values (2, prompts, kv_heads, p, d) of each layer. lengths (prompts,): their real tokens.
        entry_prompt (E,): each entry's prompt. slots: how many tokens will be drawn."""
        _, _, heads, longest, size = prompts[0].shape
        device = lengths.device
        kind = torch.float32 if device.type == "cpu" else prompts[0].dtype
        self._prompts, self._lengths = [kv[:, entry_prompt].to(kind) for kv in prompts], lengths[entry_prompt]
        self.used, self._slots = used, slots
        shape = (2, len(entry_prompt), heads, width, slots, size)
        self.own = [torch.empty(shape, dtype=kind, device=device) for _ in prompts]
        self.bias: Tensor | None = None
        if bool((self._lengths != longest).any()):
            padding = torch.arange(longest, device=device) >= self._lengths[:, None]
            bias = torch.zeros(padding.shape, dtype=kind, device=device).masked_fill_(padding, float("-inf"))
            self.bias = bias.repeat_interleave(heads, dim=0)[:, None]
        self.layers = [self._keys(kv, own) for kv, own in zip(self._prompts, self.own, strict=True)]

    @staticmethod
    def _keys(prompt: Tensor, own: Tensor) -> Keys:
        prompt_k, prompt_v = prompt.flatten(1, 2)
        own_k, own_v = own.flatten(1, 3)
        return Keys(prompt_k.transpose(1, 2), prompt_v, own, own_k.transpose(1, 2), own_v)

    @property
    def entries(self) -> int:
        return self.own[0].shape[1]

    @property
    def width(self) -> int:
        return self.own[0].shape[3]

    def keep(self, places: Tensor) -> Cache:
        """A cache of only these places, (E', W'): those of one entry belong to one prompt."""
        entry, column = places // self.width, places % self.width
        fresh = Cache(self._prompts, self._lengths, entry[:, 0], places.shape[1], self._slots, self.used)
        for old, new in zip(self.own, fresh.own, strict=True):
            kept = old[:, :, :, :, : self.used].permute(1, 3, 0, 2, 4, 5)[entry, column]  # (E', W', 2, heads, used, d)
            new[:, :, :, :, : self.used] = kept.permute(2, 0, 3, 1, 4, 5)
        return fresh
