"""The keys and values of decoding, in which the completions of a group share their prompt's.

Attention for one new token a row is bound by memory traffic and by the number of operations. So the prompt's part is
read once for all rows of a group, as one matrix product, and a token's keys and values are written at once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from sapo_backends.torch_backend.captured import RECORDER
from sapo_backends.torch_backend.decode import Keys

STEP_COST = 256
"""What a row's projections cost in a decode step, in units of one token of attention."""
CLASS_COST = 1500
"""What a further length class costs a step on a CPU, in units of one token of one place: its operations."""


def grid(owner: Tensor, lengths: Tensor, own_tokens: int) -> tuple[Tensor, Tensor]:
    """Places for rows of prompts owner (rows,), ascending: entries of equally many places, each entry of one prompt.

    lengths (prompts,): tokens of each prompt; entries with shorter ones come first. Gives (entries, width) row of each
    place, and (rows,) place of each row. A place left over repeats a row. A prompt with many rows may get several entries:
    the width is chosen so that little is computed in vain.
    """
    used, counts = torch.unique_consecutive(owner.cpu(), return_counts=True)
    tokens = lengths.cpu()[used]

    def cost(width: int) -> int:
        entries = (counts + width - 1) // width
        return int(entries.sum()) * width * (STEP_COST + own_tokens) + int((entries * tokens).sum())

    width = min(range(1, int(counts.max()) + 1), key=cost)
    starts = (counts.cumsum(0) - counts).tolist()
    rows_of, place_of = list[list[int]](), [0] * len(owner)
    for prompt in tokens.argsort(stable=True).tolist():
        first, count = starts[prompt], int(counts[prompt])
        for start in range(0, count, width):
            for column in range(min(width, count - start)):
                place_of[first + start + column] = len(rows_of) * width + column
            rows_of.append([first + min(start + i, count - 1) for i in range(width)])
    return torch.tensor(rows_of, device=owner.device), torch.tensor(place_of, device=owner.device)


def classes(lengths: Sequence[int], width: int) -> list[int]:
    """Where to cut entries of ascending prompt length into classes that are each padded to their longest only.

    Gives the end of each class. A cut is made where it saves more than it costs.
    """

    def cut(begin: int, end: int) -> list[int]:
        saved, middle = max(
            (((m - begin) * width * (lengths[end - 1] - lengths[m - 1]), m) for m in range(begin + 1, end)),
            default=(0, end),
        )
        return [end] if saved <= CLASS_COST else cut(begin, middle) + cut(middle, end)

    return cut(0, len(lengths))


class Cache:
    """Keys and values of E entries, each with one prompt, times W places with their own tokens.

    used: filled slots of the places' own tokens. Entries lie in classes of similar prompt length: ends, the end of each;
    biases (E' * kv_heads, 1, p): -inf on the padding of a class's shorter prompts, None when all are equally long. On a
    CPU the cache is float32: products with one query are bound by overhead, and the bfloat16 kernels have several times
    more of it.
    """

    def __init__(
        self, prompts: list[Tensor], lengths: Tensor, entry_prompt: Tensor, width: int, slots: int, used: int = 0
    ) -> None:
        """prompts: keys and values (2, prompts, kv_heads, p, d) of each layer. lengths (prompts,): their real tokens.
        entry_prompt (E,): each entry's prompt, by ascending length. slots: how many tokens will be drawn."""
        heads, size, device = prompts[0].shape[2], prompts[0].shape[4], lengths.device
        kind = torch.float32 if device.type == "cpu" else prompts[0].dtype
        self._prompts, self._lengths, self._entry_prompt = prompts, lengths, entry_prompt
        self.used, self._slots = used, slots
        tokens = lengths[entry_prompt]
        # Elsewhere a class costs launches of kernels, which are the time of a step.
        self.ends = classes(tokens.tolist(), width) if device.type == "cpu" else [len(entry_prompt)]
        parts = [slice(begin, end) for begin, end in zip([0, *self.ends], self.ends, strict=False)]
        longest = [int(tokens[part.stop - 1]) for part in parts]
        self.biases = [_bias(tokens[part], p, heads, kind) for part, p in zip(parts, longest, strict=True)]
        shape = (2, len(entry_prompt), heads, width, slots, size)
        # A recorded step reads every slot and hides those that are not filled yet: nothing there may be infinite.
        new = torch.zeros if RECORDER.wanted(device) else torch.empty
        self.own = [new(shape, dtype=kind, device=device) for _ in prompts]
        self.layers: list[Keys] = []
        for keys_values, own in zip(prompts, self.own, strict=True):
            kept = [
                keys_values[:, :, :, :p].index_select(1, entry_prompt[part]).to(kind).flatten(1, 2)
                for part, p in zip(parts, longest, strict=True)
            ]
            own_k, own_v = own.flatten(1, 3)
            keys = [kv[0].transpose(1, 2) for kv in kept]
            self.layers.append(Keys(keys, [kv[1] for kv in kept], own, own_k.transpose(1, 2), own_v))

    @property
    def slots(self) -> int:
        return self._slots

    @property
    def entries(self) -> int:
        return self.own[0].shape[1]

    @property
    def width(self) -> int:
        return self.own[0].shape[3]

    def keep(self, places: Tensor) -> Cache:
        """A cache of only these places, (E', W'): those of one entry belong to one prompt."""
        entry, column = places // self.width, places % self.width
        prompt = self._entry_prompt[entry[:, 0]]
        fresh = Cache(self._prompts, self._lengths, prompt, places.shape[1], self._slots, self.used)
        for old, new in zip(self.own, fresh.own, strict=True):
            kept = old[:, :, :, :, : self.used].permute(1, 3, 0, 2, 4, 5)[entry, column]  # (E', W', 2, heads, used, d)
            new[:, :, :, :, : self.used] = kept.permute(2, 0, 3, 1, 4, 5)
        return fresh


def _bias(lengths: Tensor, longest: int, heads: int, kind: torch.dtype) -> Tensor | None:
    """-inf where a prompt of these lengths (E',) is padded to the longest: (E' * heads, 1, longest)."""
    padding = torch.arange(longest, device=lengths.device) >= lengths[:, None]
    if not bool(padding.any()):
        return None
    bias = torch.zeros(padding.shape, dtype=kind, device=lengths.device).masked_fill_(padding, float("-inf"))
    return bias.repeat_interleave(heads, dim=0)[:, None]
