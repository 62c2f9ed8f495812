"""Batched sampling from a recipe model: each prompt is read once, its cache shared by its group."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from recipe.model import Cache, Qwen2
from recipe.tokenizer import END, STOP, token_id


@dataclass(frozen=True)
class Sample:
    """One completion. tokens: how many were drawn, with the stop token when there was one."""

    text: str
    tokens: int
    stopped: bool


class _Rows:
    """The rows still being written: caches, lengths and what each row is."""

    def __init__(self, caches: list[Cache], lengths: Tensor, origin: Tensor) -> None:
        self.caches, self.lengths, self.origin = caches, lengths, origin

    def keep(self, rows: Tensor) -> None:
        for cache in self.caches:
            cache.keys, cache.values = cache.keys[rows], cache.values[rows]
        self.lengths, self.origin = self.lengths[rows], self.origin[rows]


def _prefill(model: Qwen2, prompts: list[list[int]], group: int, room: int, pad: int) -> tuple[_Rows, Tensor]:
    """Read right-padded prompts; gives rows repeated `group` times and the logits after each prompt."""
    device = model.embed_tokens.weight.device
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), pad)
    for number, prompt in enumerate(prompts):
        ids[number, : len(prompt)] = torch.tensor(prompt)
    ids = ids.to(device)
    lengths = torch.tensor([len(p) for p in prompts], device=device)
    caches = [Cache(len(prompts), model.shape, longest + room, model.embed_tokens.weight) for _ in model.layers]
    at = torch.arange(longest, device=device).expand(len(prompts), -1)
    mask = torch.ones(longest, longest + room, dtype=torch.bool, device=device).tril()[None, None]
    hidden = model(ids, caches, at, mask)
    last = model.logits(hidden[torch.arange(len(prompts), device=device), lengths - 1])
    rows = _Rows(caches, lengths, torch.arange(len(prompts), device=device))
    rows.keep(torch.arange(len(prompts), device=device).repeat_interleave(group))
    return rows, last.repeat_interleave(group, dim=0)


def _draw(logits: Tensor, temperature: float, generator: torch.Generator) -> Tensor:
    if temperature == 0:
        return logits.argmax(-1)
    weights = torch.softmax(logits.double() / temperature, -1)
    return torch.multinomial(weights, 1, generator=generator).squeeze(1)


@torch.inference_mode()
def _sample_batch(
    model: Qwen2, prompts: list[list[int]], group: int, room: int, temperature: float, pad: int, stop: int, seed: int
) -> list[list[int]]:
    device = model.embed_tokens.weight.device
    generator = torch.Generator(device=device).manual_seed(seed)
    rows, logits = _prefill(model, prompts, group, room, pad)
    rows.origin = torch.arange(len(prompts) * group, device=device)
    written: list[list[int]] = [[] for _ in range(len(prompts) * group)]
    for _ in range(room):
        drawn = _draw(logits, temperature, generator)
        for row, token in zip(rows.origin.tolist(), drawn.tolist(), strict=True):
            written[row].append(token)
        going = (drawn != stop).nonzero().squeeze(1)
        if not len(going):
            break
        if len(going) < 0.75 * len(drawn):  # finished rows leave, in bunches: moving the caches costs as well
            rows.keep(going)
            drawn = drawn[going]
        at = rows.lengths[:, None]
        mask = torch.arange(rows.caches[0].keys.shape[2], device=device)[None, None, None] <= at[:, None, :, None]
        logits = model.logits(model(drawn[:, None], rows.caches, at, mask)[:, 0])
        rows.lengths = (rows.lengths + 1).clamp(max=rows.caches[0].keys.shape[2] - 1)
    return [ids[: ids.index(stop) + 1] if stop in ids else ids for ids in written]


def sample(
    model: Qwen2,
    tokenizer: Tokenizer,
    prompts: list[str],
    group: int = 8,
    room: int = 96,
    temperature: float = 1.0,
    seed: int = 0,
    batch: int = 32,
) -> Iterator[tuple[int, list[Sample]]]:
    """(index of the prompt, its group of samples), in order of prompt length. prompts: full chat texts."""
    pad, stop = token_id(tokenizer, END), token_id(tokenizer, STOP)
    ids = [e.ids for e in tokenizer.encode_batch(prompts)]
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for begin in range(0, len(order), batch):
        chosen = order[begin : begin + batch]
        texts = _sample_batch(model, [ids[i] for i in chosen], group, room, temperature, pad, stop, seed + begin)
        for number, index in enumerate(chosen):
            mine = texts[number * group : (number + 1) * group]
            yield index, [Sample(tokenizer.decode(t), len(t), t[-1] == stop) for t in mine]
