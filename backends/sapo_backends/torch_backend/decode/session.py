"""Decoding several rows with our own decoder: prefill, then one token a row and step."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.torch_backend.decode.cuda_graph import CAPTURE, CapturedStep, StepInputs
from sapo_backends.torch_backend.decode.kv_cache import KVCache, grid
from sapo_backends.torch_backend.decode.step import Frame, Shape, next_logits, scripted_step
from sapo_backends.torch_backend.decode.weights import DecodeWeights
from sapo_backends.torch_backend.model.decoder import hidden_states
from sapo_backends.torch_backend.ops.attention import PromptAttention
from sapo_backends.torch_backend.ops.packing import filled, pack_prompts
from sapo_backends.torch_backend.ops.rope import RopeTable


class DecoderSession:
    """Decoding with a preallocated cache; see model.Session."""

    def __init__(
        self,
        spec: DecoderSpec,
        rope: RopeTable,
        weights: DecodeWeights,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._spec, self._weights = spec, weights
        self._captured: CapturedStep | None = None
        flat, starts = pack_prompts(prompts, owner.device)
        begins, lengths = torch.tensor([starts, [len(prompt) for prompt in prompts]], device=owner.device)
        longest = flat.longest
        self._lengths, self._angles = lengths, rope.tables(longest + steps)
        slot = torch.arange(longest, device=owner.device)
        places = begins[:, None] + torch.minimum(slot, lengths[:, None] - 1)
        prefill = PromptAttention(flat.slabs, places, lengths, spec.layers)
        last = hidden_states(spec, weights.prefill, rope, flat, prefill, filled(begins + lengths - 1))
        self.logits = F.linear(last, weights.prefill.head)[owner]
        self._owner = owner
        places, place_of = grid(owner, lengths, 0)
        self._seat(places, place_of)
        self._cache = KVCache(prefill.keys_values, lengths, owner[places[:, 0]], places.shape[1], steps)
        self._positions = lengths[owner[places.flatten()]]  # of the next token, (places,)

    def step(self, tokens: Tensor) -> None:
        """See Session.step."""
        cache = self._cache
        if self._captured is not None:
            captured = CAPTURE.replay(self._captured, tokens, lambda: self._compute(tokens, self._positions))
            if captured is None:
                self._captured = None
            self.logits = self._compute(tokens, self._positions) if captured is None else captured
        elif CAPTURE.wanted(tokens.device):
            inputs = StepInputs.of(tokens, self._positions, cache.used, cache.slots, cache.kind)
            self._captured = CAPTURE.capture(inputs, lambda now: self._compute(now.tokens, now.positions, now))
            self.logits = self._compute(tokens, self._positions) if self._captured is None else self._captured.logits
        else:
            self.logits = self._compute(tokens, self._positions)
        cache.used += 1
        self._positions = self._positions + 1

    def _compute(self, tokens: Tensor, positions: Tensor, captured: StepInputs | None = None) -> Tensor:
        """Compute every place, then pick the rows; both in numbers that products are compiled for."""
        spec, cache, weights = self._spec, self._cache, self._weights
        frame = Frame(weights.prefill.tensors["embed"], weights.prefill.tensors["norm"], weights.head, *self._angles)
        shape = Shape(spec.heads, spec.kv_heads, cache.entries, cache.width, cache.used, spec.norm_eps)
        step, slot, hidden = scripted_step(), None, None
        if captured is not None:  # Python's part of a step is not captured, and TorchScript's profiling must not be
            step, slot, hidden = next_logits, captured.slot, captured.hidden
        keys = weights.layers, cache.layers, cache.ends, cache.biases
        return step(tokens, positions, self._fed, self._picked, frame, *keys, shape, slot, hidden)[: len(self._owner)]

    def _seat(self, places: Tensor, place_of: Tensor) -> None:
        """places, place_of: as cache.grid gives them."""
        self._captured = None
        self._place_of, self._fed, self._picked = place_of, filled(places.flatten()), filled(place_of)

    def keep(self, rows: Tensor) -> None:
        """See Session.keep."""
        self.logits, self._owner = self.logits[rows], self._owner[rows]
        places, place_of = grid(self._owner, self._lengths, self._cache.used)
        old_places = self._place_of[rows[places]]  # (E, W)
        self._cache = self._cache.keep(old_places)
        self._positions = self._positions[old_places.flatten()]
        self._seat(places, place_of)
