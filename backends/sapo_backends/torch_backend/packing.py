"""A micro-batch as flat tensors, in which completions share their prompt."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.packing import Pair


@dataclass(frozen=True, slots=True)
class Packed:
    """One micro-batch as flat tokens: padded prompt rows, then padded completion rows (without each last token).

    members: indices of its sequences in the batch, in the order of their targets. predicts, targets (T,): for every
    completion token, the flat position whose hidden state predicts it, and its id. sequence (T,): its row.
    """

    members: list[int]
    ids: Tensor
    positions: Tensor
    longest: int
    prompts: int
    prompt_tokens: int
    owner: Tensor
    bias: Tensor
    predicts: Tensor
    targets: Tensor
    sequence: Tensor


def pad_prompts(prompts: Sequence[TokenIds], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded ids (P, longest) and lengths (P,)."""
    longest = max(map(len, prompts))
    rows = [[*prompt, *[0] * (longest - len(prompt))] for prompt in prompts]
    return torch.tensor(rows, device=device), torch.tensor([len(p) for p in prompts], device=device)


def pack(pairs: Sequence[Pair], members: list[int], device: torch.device, kind: torch.dtype) -> Packed:
    """Lay out one micro-batch; kind: the compute type. Every member has a non-empty prompt and completion."""
    unique = list(dict.fromkeys(pairs[i][0] for i in members))
    index = {prompt: row for row, prompt in enumerate(unique)}
    prompt_ids, prompt_lengths = pad_prompts(unique, device)
    owner = torch.tensor([index[pairs[i][0]] for i in members], device=device)
    completions = [pairs[i][1] for i in members]
    inputs = [completion[:-1] or (0,) for completion in completions]
    completion_ids, _ = pad_prompts(inputs, device)
    p, c = prompt_ids.shape[1], completion_ids.shape[1]
    offset = torch.arange(c, device=device)
    positions = (prompt_lengths[owner][:, None] + offset).flatten()
    predicts: list[int] = []
    targets: list[int] = []
    sequence: list[int] = []
    base = len(unique) * p
    for row, completion in enumerate(completions):
        prompt_row = index[pairs[members[row]][0]]
        start = base + row * c
        predicts += [prompt_row * p + len(unique[prompt_row]) - 1, *range(start, start + len(completion) - 1)]
        targets += completion
        sequence += [row] * len(completion)
    return Packed(
        members=list(members),
        ids=torch.cat((prompt_ids.flatten(), completion_ids.flatten())),
        positions=torch.cat((torch.arange(p, device=device).repeat(len(unique)), positions)),
        longest=p + c,
        prompts=len(unique),
        prompt_tokens=base,
        owner=owner,
        bias=_bias(prompt_lengths[owner], p, c, kind),
        predicts=torch.tensor(predicts, device=device),
        targets=torch.tensor(targets, device=device),
        sequence=torch.tensor(sequence, device=device),
    )


def _bias(prompt_lengths: Tensor, p: int, c: int, kind: torch.dtype) -> Tensor:
    """0 where completion token t sees key slot s, its real prompt, itself and what came before, else -inf:
    (C, 1, c, p + c)."""
    slot = torch.arange(p + c, device=prompt_lengths.device)
    time = torch.arange(c, device=prompt_lengths.device)
    in_prompt = slot[None, None, :] < prompt_lengths[:, None, None]
    in_own = (slot[None, None, :] >= p) & (slot[None, None, :] - p <= time[None, :, None])
    hidden = ~(in_prompt & (slot < p) | in_own)[:, None]
    return torch.zeros(hidden.shape, dtype=kind, device=hidden.device).masked_fill_(hidden, float("-inf"))
