"""What predicts the tokens of completions: a prompt is computed once for all rows that continue it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from sapo_backends.torch_backend.fallback.caches import only_keys_and_values
from sapo_backends.torch_backend.fallback.padding import padded_left, padded_right
from sapo_backends.torch_backend.fallback.recompute import RecomputedLayers
from sapo_backends.torch_backend.ops.packing import Packed, pack

TOLERANCE = {torch.float32: 1e-3}
ROUNDED = 0.1
"""Relative distance of hidden states and of a gradient that are the same, and in types that round more: a state that did not
get through makes it 0.3 and more."""


class CompletionStates:
    """The hidden states of a TransformersModel that predict completions. layers: of models whose layers are computed again."""

    def __init__(self, model: Any, layers: RecomputedLayers | None) -> None:
        self._model, self._layers = model, layers
        self._shares: bool | None = only_keys_and_values(model.module.config) or None

    @property
    def shares(self) -> bool:
        """Whether a prompt is computed once. For layers with a state it depends on the architecture and on transformers'
        version whether several tokens can continue one, so it is tried, with a gradient."""
        if self._shares is None:
            self._shares = self._is_the_same()
        return self._shares

    def __call__(self, packed: Packed, weights: Any) -> Tensor:
        """(rows, longest completion, hidden) of a batch."""
        longest = max(len(completion) for _, completion in packed.pairs)
        prompts = len({prompt for prompt, _ in packed.pairs})
        if prompts < len(packed.pairs) and longest > 1 and self.shares:
            return self._shared(packed, weights, longest)
        return self._repeated(packed, weights, longest)

    def _shared(self, packed: Packed, weights: Any, longest: int) -> Tensor:
        model = self._model
        prompts = list(dict.fromkeys(prompt for prompt, _ in packed.pairs))
        real, ids = padded_left(prompts, model.device)
        positions = (real.cumsum(dim=1) - 1).clamp_(min=0)
        inputs = {"input_ids": ids, "attention_mask": real, "use_cache": True}
        states, cache = model.hidden_states(weights, positions, **inputs)
        number = {prompt: i for i, prompt in enumerate(prompts)}
        owner = torch.tensor([number[prompt] for prompt, _ in packed.pairs], device=model.device)
        rows = padded_right([completion[:-1] for _, completion in packed.pairs], longest - 1, model.device)
        offset = positions[owner, -1:] + 1 + torch.arange(longest - 1, device=model.device)
        seen = torch.cat((real[owner], torch.ones_like(rows)), dim=1)
        inputs = {"input_ids": rows, "attention_mask": seen, "cache": cache, "use_cache": True}
        if self._layers is None:
            cache.reorder_cache(owner)
            continued, _ = model.hidden_states(weights, offset, **inputs)
        else:
            with self._layers.continuing(owner):
                continued, _ = model.hidden_states(weights, offset, **inputs)
        return torch.cat((states[owner, -1:], continued), dim=1)

    def _repeated(self, packed: Packed, weights: Any, longest: int) -> Tensor:
        """The same, each row with its own copy of its prompt."""
        model = self._model
        texts = [[*prompt, *completion[:-1]] for prompt, completion in packed.pairs]
        rows = padded_right(texts, max(map(len, texts)), model.device)
        positions = torch.arange(rows.shape[1], device=model.device).expand_as(rows)
        states, _ = model.hidden_states(weights, positions, input_ids=rows, use_cache=False)
        first = torch.tensor([len(prompt) - 1 for prompt, _ in packed.pairs], device=model.device)
        place = (first[:, None] + torch.arange(longest, device=model.device)).clamp_(max=rows.shape[1] - 1)
        predicting: Tensor = states.gather(1, place[:, :, None].expand(-1, -1, states.shape[2]))
        return predicting

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _is_the_same(self) -> bool:
        """Of two short prompts and three completions, with the gradient of the first weights that are a vector, whose way goes
        through all layers behind them."""
        model = self._model
        pairs = [((3, 4, 5, 6, 7), (8, 9, 10)), ((3, 4, 5, 6, 7), (5, 3, 4)), ((9, 4, 8), (6, 7, 3))]
        packed, bound = pack(pairs, list(range(len(pairs))), model.device), model.weights(None)
        name = next(name for name, tensor in bound.parameters.items() if tensor.ndim == 1)
        found = list[Tensor]()
        for compute in (self._shared, self._repeated):
            leaf = bound.parameters[name].detach().clone().requires_grad_()
            try:
                states = compute(packed, type(bound)({**bound.parameters, name: leaf}, None), 3)
                wave = torch.linspace(0.0, 9.0, states.numel(), device=model.device).cos().view_as(states)
                gradient = torch.autograd.grad((states.float() * wave).sum(), leaf)[0]
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                return False  # transformers' way of saying that it cannot
            found += [states.detach().float(), gradient.float()]
        most = TOLERANCE.get(model.compute, ROUNDED)
        distances = [float((a - b).norm() / b.norm()) for a, b in zip(found[:2], found[2:], strict=True)]
        return all(math.isfinite(distance) and distance <= most for distance in distances)
