"""A micro-batch as flat tensors without padding between sequences, in which completions share their prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress

import torch
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.common.update import Mask, Pair, bucket_size

SLAB_PADDING = 128
"""On a CPU, a slab takes more of a prompt's completions as long as they need no more padding than this: little
attention is wasted, and the products are still large."""


def pad_to_bucket(x: Tensor) -> Tensor:
    """x (n,) padded with zeros to bucket_size(n)."""
    return torch.nn.functional.pad(x, (0, bucket_size(len(x)) - len(x)))


def decode_rows(count: int) -> int:
    """Rows that a step's products are compiled for: as bucket_size, but multiples of 16 up to 128."""
    return min(bucket_size(count), -(-count // 16) * 16) if count <= 128 else bucket_size(count)


class SequenceSlab:
    """Sequences that attention processes together, right-padded to one width.

    first, end: its range of flat tokens, one sequence after another. sees: the number of the slab whose sequences they
    continue (None: they are prompts); owner (rows,): for each row, which of those sequences. seen: number of slots that
    a row sees, its prompt's and its own.
    """

    def __init__(
        self,
        first: int,
        lengths: list[int],
        device: torch.device,
        sees: tuple[int, SequenceSlab, Sequence[int]] | None = None,
    ) -> None:
        """lengths: tokens of each sequence. sees: number of the slab, the slab, and for each row which of its sequences
        it continues."""
        self.first, self.end, self.rows, self.width = first, first + sum(lengths), len(lengths), max(lengths)
        self.lengths = torch.tensor(lengths, device=device)
        self.sees: int | None = None
        self._prompts: SequenceSlab | None = None
        owner: Sequence[int] = ()
        if sees is not None:
            self.sees, self._prompts, owner = sees
        self.owner = torch.tensor(owner, dtype=torch.int64, device=device)
        self.seen = self.width + (0 if self._prompts is None else self._prompts.width)
        self._biases: dict[tuple[torch.dtype, int], Tensor] = {}
        self.places: Tensor | None = None
        if min(lengths) < self.width:
            places = [row * self.width + i for row, length in enumerate(lengths) for i in range(length)]
            self.places = torch.tensor(places, device=device)

    def bias(self, kind: torch.dtype, window: int = 0) -> Tensor:
        """0 where a token sees a slot (its real prompt, itself and earlier tokens), else -inf: (1 or rows, 1, width,
        seen). window: how many of these it sees, itself included; 0 for all."""
        if (kind, window) not in self._biases:
            time = torch.arange(self.width, device=self.lengths.device)
            hidden = self._beyond(time[:, None] - time[None, :], window)[None]
            if self._prompts is not None:
                slot, lengths = torch.arange(self._prompts.width, device=time.device), self._prompts.lengths[self.owner]
                unseen = (slot[None, :] >= lengths[:, None])[:, None].expand(-1, self.width, -1)
                if window:
                    unseen = unseen | ((lengths[:, None] + time[None])[:, :, None] - slot >= window)
                hidden = torch.cat((unseen, hidden.expand(self.rows, -1, -1)), dim=2)
            bias = torch.zeros(hidden.shape, dtype=kind, device=hidden.device)
            self._biases[kind, window] = bias.masked_fill_(hidden, float("-inf"))[:, None]
        return self._biases[kind, window]

    @staticmethod
    def _beyond(distance: Tensor, window: int) -> Tensor:
        """-inf where an earlier token at this distance is outside the window, else 0."""
        return (distance < 0) | (distance >= window) if window else distance < 0

    def causal(self, kind: torch.dtype, window: int = 0) -> Tensor:
        """The same among a row's own tokens only: (width, width)."""
        bias = torch.full((self.width, self.width), float("-inf"), dtype=kind, device=self.lengths.device)
        return bias.triu_(1) if not window else bias.triu_(1) + torch.full_like(bias, float("-inf")).tril_(-window)

    def beyond(self, kind: torch.dtype, window: int) -> Tensor | None:
        """The same for the single prompt that all rows continue: (width, p). None if all of it is seen."""
        if not window or self._prompts is None:
            return None
        time = torch.arange(self.width, device=self.lengths.device) + self._prompts.width
        hidden = time[:, None] - torch.arange(self._prompts.width, device=time.device) >= window
        return torch.zeros(hidden.shape, dtype=kind, device=time.device).masked_fill_(hidden, float("-inf"))

    def padded(self, x: Tensor) -> Tensor:
        """(count, ...) -> (rows, width, ...), 0 in the padding."""
        if self.places is not None:
            x = x.new_zeros(self.rows * self.width, *x.shape[1:]).index_copy_(0, self.places, x)
        return x.view(self.rows, self.width, *x.shape[1:])


@dataclass(frozen=True, slots=True)
class FlatTokens:
    """Tokens of several sequences concatenated: ids, positions (N,), where N is a `bucket_size`.

    What follows the last slab only pads to N. longest: greater than every position.
    """

    ids: Tensor
    positions: Tensor
    longest: int
    slabs: list[SequenceSlab]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """One micro-batch: flat prompts and completions (each without its last token).

    pairs: its sequences, in the order of their targets; masks: one per sequence, as in TrainSample. predicts, targets
    (T,): for every completion token that the masks keep, the flat position whose hidden state predicts it, and its id.
    sequence (T,): its row.
    """

    pairs: list[Pair]
    flat: FlatTokens
    predicts: Tensor
    targets: Tensor
    sequence: Tensor
    masks: Sequence[Mask] = ()


class _Layout:
    """Lays token sequences out one after another."""

    def __init__(self, device: torch.device) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.slabs: list[SequenceSlab] = []
        self._device = device

    def add(
        self, texts: Sequence[tuple[TokenIds, int]], sees: int | None = None, owner: Sequence[int] = ()
    ) -> list[int]:
        """Add one slab of non-empty texts, each with the position of its first token; returns where each text begins."""
        first, begins = len(self.ids), []
        for text, position in texts:
            begins.append(len(self.ids))
            self.ids += text
            self.positions += range(position, position + len(text))
        lengths = [len(text) for text, _ in texts]
        known = None if sees is None else (sees, self.slabs[sees], owner)
        self.slabs.append(SequenceSlab(first, lengths, self._device, known))
        return begins

    def flat(self) -> FlatTokens:
        longest = max(self.positions) + 1
        ids, positions = (pad_to_bucket(torch.tensor(x, device=self._device)) for x in (self.ids, self.positions))
        return FlatTokens(ids, positions, longest, self.slabs)


def slab_per_prompt(device: torch.device) -> bool:
    """Whether each prompt gets its own slab, so that its completions read its keys in place and the pieces of attention
    stay in the processor's cache. On other devices all prompts share one slab, because each slab costs kernel launches.
    """
    return device.type == "cpu"


SHARED_PREFIX = 16
"""Minimum number of common leading tokens for computing them once for all prompts; below it, the extra slab costs as
much."""


def shared_prefix(prompts: Sequence[TokenIds]) -> int:
    """How many leading tokens all prompts share, leaving each at least one of its own; 0 if a separate slab would not
    pay off.

    The prompts of one task share their instruction: 49 of 68 tokens with a table's usual wording.
    """
    first, last = min(prompts, key=tuple), max(prompts, key=tuple)
    most = min(map(len, prompts)) - 1
    length = next((i for i in range(most) if first[i] != last[i]), most)
    return length if length >= SHARED_PREFIX and len(prompts) > 1 else 0


def pack_prompts(prompts: Sequence[TokenIds], device: torch.device) -> tuple[FlatTokens, Tensor]:
    """Prompts alone, and places (prompts, p): where each prompt's tokens are, the last one repeated up to the longest
    prompt.

    Their common prefix is stored once, in a slab that the others continue.
    """
    layout, common = _Layout(device), shared_prefix(prompts)
    begins, sees = [0] * len(prompts), None
    if common:
        layout.add([(prompts[0][:common], 0)])
        sees = 0
    for part in _prompt_slabs(prompts, device, continued=common > 0):
        starts = layout.add([(prompts[i][common:], common) for i in part], sees, [0] * len(part) if common else ())
        for i, start in zip(part, starts, strict=True):
            begins[i] = start - common
    lengths = torch.tensor([len(prompt) for prompt in prompts])
    slot = torch.minimum(torch.arange(int(lengths.max())), lengths[:, None] - 1)
    places = torch.where(slot < common, slot, torch.tensor(begins)[:, None] + slot)
    return layout.flat(), places.to(device)


def _prompt_slabs(prompts: Sequence[TokenIds], device: torch.device, continued: bool) -> list[list[int]]:
    """Numbers of the prompts, slab by slab. continued: they continue a common prefix."""
    if not slab_per_prompt(device):
        return [list(range(len(prompts)))]
    if not continued:
        return [[i] for i in range(len(prompts))]
    return _slabs(range(len(prompts)), [len(prompt) for prompt in prompts])


def pack_micro_batch(
    pairs: Sequence[Pair], members: list[int], device: torch.device, masks: Sequence[Mask] = ()
) -> PackedBatch:
    """Lay out one micro-batch. Every member has a non-empty prompt and completion. masks: one per pair, or () for none."""
    chosen = [pairs[i] for i in members]
    rows_of: dict[tuple[int, ...], list[int]] = {}
    for row, (prompt, _) in enumerate(chosen):
        rows_of.setdefault(prompt, []).append(row)
    layout, ends, begins = _Layout(device), dict[tuple[int, ...], int](), dict[int, int]()
    prompts, completions = list(rows_of), [len(completion) for _, completion in chosen]
    for part in [[prompt] for prompt in prompts] if slab_per_prompt(device) else [prompts]:
        starts = layout.add([(prompt, 0) for prompt in part])
        ends |= {prompt: start + len(prompt) - 1 for prompt, start in zip(part, starts, strict=True)}
        sees, index = len(layout.slabs) - 1, {prompt: i for i, prompt in enumerate(part)}
        rows = [row for prompt in part for row in rows_of[prompt] if len(chosen[row][1]) > 1]
        for slab in _slabs(rows, completions) if slab_per_prompt(device) else filter(None, [rows]):
            texts = [(chosen[row][1][:-1], len(chosen[row][0])) for row in slab]
            starts = layout.add(texts, sees, [index[chosen[row][0]] for row in slab])
            begins |= dict(zip(slab, starts, strict=True))
    predicts: list[int] = []
    for row, (prompt, completion) in enumerate(chosen):
        start = begins.get(row, 0)
        predicts += [ends[prompt], *range(start, start + len(completion) - 1)]
    targets = [token for _, completion in chosen for token in completion]
    sequence = [row for row, (_, completion) in enumerate(chosen) for _ in completion]
    member_masks = [masks[i] for i in members] if any(mask is not None for mask in masks) else []
    if member_masks:
        places = [mask or (True,) * len(pair[1]) for mask, pair in zip(member_masks, chosen, strict=True)]
        counts = [counted for place in places for counted in place]
        predicts, targets, sequence = (list(compress(values, counts)) for values in (predicts, targets, sequence))
    return PackedBatch(
        pairs=chosen,
        flat=layout.flat(),
        predicts=torch.tensor(predicts, device=device),
        targets=torch.tensor(targets, device=device),
        sequence=torch.tensor(sequence, device=device),
        masks=member_masks,
    )


def _slabs(rows: Sequence[int], lengths: Sequence[int]) -> list[list[int]]:
    """Rows that continue one prompt, grouped into slabs of similar length, longest first. lengths: of every row."""
    slabs: list[list[int]] = []
    padding = 0
    for row in sorted(rows, key=lambda row: -lengths[row]):
        if slabs:
            padding += lengths[slabs[-1][0]] - lengths[row]
        if slabs and padding <= SLAB_PADDING:
            slabs[-1].append(row)
        else:
            slabs.append([row])
            padding = 0
    return slabs
