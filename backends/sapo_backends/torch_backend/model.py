"""A loaded model: its frozen and trained tensors, and the three things asked of it.

`session` starts decoding, `score` gives log-probabilities with a gradient path to `flat`, the one trained tensor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.torch_backend.attention import GroupAttention, PromptAttention
from sapo_backends.torch_backend.cache import CacheAttention, grid
from sapo_backends.torch_backend.decoder import Weights, hidden_states
from sapo_backends.torch_backend.layout import Layout, linears
from sapo_backends.torch_backend.lora import LoraWeights
from sapo_backends.torch_backend.packing import Packed, pad_prompts
from sapo_backends.torch_backend.rope import RopeTable
from sapo_backends.torch_backend.scoring import Scores, chosen_logprobs
from sapo_backends.torch_backend.spec import DecoderSpec


class Session(Protocol):
    """Decoding of several rows. logits: (rows, V) of the next token."""

    logits: Tensor

    def step(self, tokens: Tensor) -> None:
        """Append one token a row (rows,) and compute the next logits."""

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""


class Model(Protocol):
    """What the engine needs of a model: LeanModel, or transformers' behind the same interface.

    base: all weights in one tensor as `layout` says. flat: what is trained (float32), or None; in full fine-tuning it
    is base, else it holds the adapter as `adapter_layout` says, of rank `rank` and scale alpha / rank.
    """

    compute: torch.dtype
    layout: Layout
    base: Tensor
    adapter_layout: Layout | None
    flat: Tensor | None
    rank: int
    alpha: float

    @property
    def device(self) -> torch.device: ...

    def weights(self, flat: Tensor | None) -> Any:
        """The tensors to compute with, differentiable by flat if it asks for a gradient."""

    def session(self, prompts: Sequence[TokenIds], owner: Tensor, steps: int, weights: Any) -> Session:
        """Prefill each prompt once; owner (rows,), ascending, says which prompt each row continues."""

    def score(self, packed: Packed, flat: Tensor | None, temperature: float) -> Scores:
        """Log-probability and entropy of every completion token of a packed micro-batch."""

    def merged(self) -> dict[str, Tensor]:
        """Weights by Hugging Face name, the adapter added in float32, in the type they are kept in."""


class LeanModel:
    """A decoder computed by this package; see Model."""

    def __init__(self, spec: DecoderSpec, layout: Layout, base: Tensor, compute: torch.dtype) -> None:
        self.spec, self.layout, self.base, self.compute = spec, layout, base, compute
        self.rope = RopeTable(spec, base.device, compute)
        self.adapter_layout: Layout | None = None
        self.flat: Tensor | None = None
        self.rank, self.alpha = 0, 0.0

    @property
    def device(self) -> torch.device:
        return self.base.device

    def weights(self, flat: Tensor | None) -> Weights:
        if self.adapter_layout is None:
            return Weights(self.layout.views((self.base if flat is None else flat).to(self.compute)))
        base = self.layout.views(self.base.to(self.compute))
        if flat is None:
            return Weights(base)
        adapter = self.adapter_layout.views(flat.to(self.compute))
        return Weights(base, LoraWeights(adapter, self.rank, self.alpha / self.rank))

    def session(self, prompts: Sequence[TokenIds], owner: Tensor, steps: int, weights: Weights) -> Session:
        return LeanSession(self, prompts, owner, steps, weights)

    def score(self, packed: Packed, flat: Tensor | None, temperature: float) -> Scores:
        weights = self.weights(flat)
        attend = GroupAttention(packed.prompts, packed.prompt_tokens, packed.owner, packed.bias)
        hidden = hidden_states(self.spec, weights, self.rope, packed.ids, packed.positions, packed.longest, attend)
        return chosen_logprobs(hidden[packed.predicts], weights.head, packed.targets, temperature)

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        result = {name: view.clone() for name, view in self.layout.named_parts(self.base)}
        if self.adapter_layout is None or self.flat is None:
            return result
        adapter = self.adapter_layout.views(self.flat)
        for layer in range(self.spec.layers):
            for name, _, parts, _ in linears(self.spec, layer):
                lows = torch.split(adapter[f"{name}.A"], self.rank)
                for i, (module, _) in enumerate(parts):
                    weight = result[f"{module}.weight"]
                    delta = (adapter[f"{name}.B{i}"] @ lows[i]) * (self.alpha / self.rank)
                    result[f"{module}.weight"] = (weight.float() + delta).to(weight.dtype)
        return result


class LeanSession:
    """Decoding with a preallocated cache; see Session."""

    def __init__(
        self, model: LeanModel, prompts: Sequence[TokenIds], owner: Tensor, steps: int, weights: Weights
    ) -> None:
        self._model, self._weights = model, weights
        ids, lengths = pad_prompts(prompts, model.device)
        count, longest = ids.shape
        prefill = PromptAttention(count, [])
        positions = torch.arange(longest, device=ids.device).repeat(count)
        hidden = hidden_states(model.spec, weights, model.rope, ids.flatten(), positions, longest, prefill)
        last = hidden.view(count, longest, -1)[torch.arange(count, device=ids.device), lengths - 1]  # (P, hidden)
        self.logits = torch.nn.functional.linear(last, weights.head)[owner]
        self._owner, self._longest, self._steps = owner, longest, steps
        places, self._place_of = grid(owner, longest, 0)
        self._row_of = places.flatten()
        first = owner[places[:, 0]]
        self._cache = CacheAttention(prefill, lengths, first, places.shape[1], steps)
        self._positions = lengths[owner[self._row_of]]  # of the next token, (places,)

    @property
    def _full(self) -> bool:
        """Whether every place is a row, in order."""
        return len(self._place_of) == len(self._row_of)

    def step(self, tokens: Tensor) -> None:
        model = self._model
        tokens = tokens if self._full else tokens[self._row_of]
        longest = self._longest + self._steps
        hidden = hidden_states(model.spec, self._weights, model.rope, tokens, self._positions, longest, self._cache)
        self._cache.used += 1
        self._positions = self._positions + 1
        hidden = hidden if self._full else hidden[self._place_of]
        self.logits = torch.nn.functional.linear(hidden, self._weights.head)

    def keep(self, rows: Tensor) -> None:
        self.logits, self._owner = self.logits[rows], self._owner[rows]
        places, place_of = grid(self._owner, self._longest, self._cache.used)
        old_places = self._place_of[rows[places]]  # (E, W)
        self._cache.keep(old_places)
        self._positions = self._positions[old_places.flatten()]
        self._row_of, self._place_of = places.flatten(), place_of
