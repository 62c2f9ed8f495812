"""A loaded model: its frozen and trained tensors, and what an engine does with it.

`session` starts decoding; `token_logprobs` gives log-probabilities with a gradient path to the trained tensors, which
are views of a single tensor, `flat`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec, fused_projections
from sapo_backends.common.update import Pair, plan_micro_batches
from sapo_backends.torch_backend.attention import GroupAttention
from sapo_backends.torch_backend.decode_session import (
    DecoderSession,
    DecodeWeights,
    NativeDecodeWeights,
    NativeSession,
    PackedSession,
)
from sapo_backends.torch_backend.decoder import DecoderWeights, LoraWeights, TensorLayout, hidden_states
from sapo_backends.torch_backend.integer_session import IntegerDecodeWeights, IntegerSession, integer_kernels
from sapo_backends.torch_backend.native import suits_kernels
from sapo_backends.torch_backend.ops import FourBit, RopeTable, SequenceAttention, TokenLogprobs, chosen_logprobs
from sapo_backends.torch_backend.packing import PackedBatch, pad_to_bucket, slab_per_prompt
from sapo_backends.torch_backend.paths import choose_paths

LaidOutWeights = DecodeWeights | NativeDecodeWeights | IntegerDecodeWeights


class DecodeSession(Protocol):
    """Decoding of several rows. logits: (rows, V) of the next token. COPIES: whether `keep` copies the cache."""

    COPIES: ClassVar[bool]
    logits: Tensor

    def step(self, tokens: Tensor) -> None:
        """Append one token per row (rows,) and compute the next logits."""

    def keep(self, rows: Tensor) -> None:
        """Drop all rows but these."""


class CausalModel(Protocol):
    """What the engine needs of a model: our own DecoderModel, or a transformers model behind the same interface.

    base: all weights in one tensor laid out by `layout`. flat: what is trained (float32), or None; in full fine-tuning
    it is base, otherwise it holds the adapter laid out by `adapter_layout`, of rank `rank` and scale alpha / rank.
    """

    compute: torch.dtype
    layout: TensorLayout
    base: Tensor
    adapter_layout: TensorLayout | None
    flat: Tensor | None
    rank: int
    alpha: float

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""

    @property
    def computed_by(self) -> str:
        """Which decoder and path compute it, in words."""

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in decoding."""

    @property
    def config(self) -> dict[str, Any] | None:
        """The config that fits the names of `merged`; None if it is that of the folder that was read, or of the
        language part of the model there."""

    def weights(self, trained: Mapping[str, Tensor] | None) -> Any:
        """The tensors to compute with, differentiable by `trained` (see trained_tensors) if these need gradients."""

    @property
    def rounds_rollouts(self) -> bool:
        """Whether decode_weights for training are less exact than others."""

    def decode_weights(self, trained: Mapping[str, Tensor] | None, for_training: bool = False) -> Any:
        """The same for decoding, without gradients; several sessions may share the result. for_training: of
        rollouts."""

    def session(self, prompts: Sequence[TokenIds], owner: Tensor, steps: int, weights: Any) -> DecodeSession:
        """Prefill each prompt once; owner (rows,), ascending, says which prompt each row continues."""

    def micro_batches(self, pairs: Sequence[Pair], budget: int, workers: int) -> list[list[int]]:
        """update.plan_micro_batches with the padding counted if token_logprobs pads."""

    def token_logprobs(self, packed: PackedBatch, weights: Any, temperature: float) -> TokenLogprobs:
        """Log-probability and entropy of every completion token of a packed micro-batch."""

    def merged(self) -> dict[str, Tensor]:
        """Weights by Hugging Face name, the adapter merged in float32, in the type they are stored in."""

    def close(self) -> None:
        """Release all weights."""


def trained_tensors(model: CausalModel) -> dict[str, Tensor] | None:
    """The trained tensors in the compute type, by name; None if nothing is trained. Without a gradient path to
    model.flat."""
    if model.flat is None:
        return None
    return (model.adapter_layout or model.layout).views(model.flat.detach().to(model.compute))


class DecoderModel:
    """A decoder computed by this package; see CausalModel."""

    def __init__(
        self,
        spec: DecoderSpec,
        layout: TensorLayout,
        base: Tensor,
        compute: torch.dtype,
        four_bit: Mapping[str, FourBit] | None = None,
    ) -> None:
        """four_bit: the fused weights that are stored in 4 bits instead of in base."""
        self.spec, self.layout, self.base, self.compute = spec, layout, base, compute
        self.four_bit = dict(four_bit or {})
        self._in_base = layout.without(self.four_bit)
        self.rope = RopeTable(spec, base.device, compute)
        self.paths = choose_paths(spec, base.device, compute, layout.size, bool(self.four_bit))
        self.kernels = self.paths.kernels
        rounds = self.kernels is None and not self.four_bit and base.device.type == "cpu" and suits_kernels(spec)
        self._integers = integer_kernels() if rounds else None
        self.adapter_layout: TensorLayout | None = None
        self.flat: Tensor | None = None
        self.rank, self.alpha = 0, 0.0

    @property
    def device(self) -> torch.device:
        """The device that holds the weights."""
        return self.base.device

    @property
    def computed_by(self) -> str:
        """See CausalModel.computed_by."""
        return f"{self.paths}; rollouts with 8-bit products" if self.rounds_rollouts else str(self.paths)

    @property
    def token_bytes(self) -> int:
        """See CausalModel.token_bytes. On a processor they are float32 (kv_cache.KVCache)."""
        itemsize = 4 if self.device.type == "cpu" else self.compute.itemsize
        return 2 * self.spec.layers * self.spec.kv_width * itemsize

    @property
    def config(self) -> None:
        """See CausalModel.config."""
        return None

    def weights(self, trained: Mapping[str, Tensor] | None) -> DecoderWeights:
        """See CausalModel.weights."""
        if self.adapter_layout is None and trained is not None:
            return DecoderWeights(self.spec, trained, None, self.kernels)
        base = {**self._in_base.views(self.base.to(self.compute)), **self.four_bit}
        adapter = None if trained is None else LoraWeights(trained, self.rank, self.alpha / self.rank)
        return DecoderWeights(self.spec, base, adapter, self.kernels)

    @property
    def rounds_rollouts(self) -> bool:
        """See CausalModel.rounds_rollouts. Where all weights are trained, one step changes most by less than their
        integers resolve."""
        return self._integers is not None and self.adapter_layout is not None

    def decode_weights(self, trained: Mapping[str, Tensor] | None, for_training: bool = False) -> LaidOutWeights:
        """See CausalModel.decode_weights."""
        weights = self.weights(trained)
        if for_training and self.rounds_rollouts:
            assert self._integers is not None
            return IntegerDecodeWeights.of(self._integers, self.spec, weights)
        if self.kernels is None:
            return DecodeWeights.of(self.spec, weights, self.paths.layout)
        return NativeDecodeWeights.of(self.kernels, self.spec, weights)

    def session(self, prompts: Sequence[TokenIds], owner: Tensor, steps: int, weights: LaidOutWeights) -> DecodeSession:
        """See CausalModel.session."""
        if isinstance(weights, IntegerDecodeWeights):
            return IntegerSession(self.spec, self.rope, weights, prompts, owner, steps)
        if isinstance(weights, NativeDecodeWeights):
            return NativeSession(self.spec, self.rope, weights, prompts, owner, steps)
        if self.paths.attention is not None:
            return PackedSession(self.spec, self.rope, weights, self.paths.attention, prompts, owner, steps)
        return DecoderSession(self.spec, self.rope, weights, prompts, owner, steps)

    def micro_batches(self, pairs: Sequence[Pair], budget: int, workers: int) -> list[list[int]]:
        """See CausalModel.micro_batches."""
        return plan_micro_batches(pairs, budget, workers, flat=slab_per_prompt(self.device))

    def token_logprobs(self, packed: PackedBatch, weights: DecoderWeights, temperature: float) -> TokenLogprobs:
        """See CausalModel.token_logprobs."""
        slabs, wanted = packed.flat.slabs, pad_to_bucket(packed.predicts)
        attend = (
            GroupAttention(self.spec, packed.flat.longest, slabs)
            if self.kernels is None
            else SequenceAttention(self.kernels, slabs)
        )
        chosen = hidden_states(self.spec, weights, self.rope, packed.flat, attend, wanted)
        scores = chosen_logprobs(
            chosen, weights.head, pad_to_bucket(packed.targets), temperature, self.spec.logit_softcap
        )
        count = len(packed.targets)
        return TokenLogprobs(scores.logprobs[:count], scores.entropy[:count])

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """See CausalModel.merged."""
        result = {name: view.clone() for name, view in self._in_base.named_parts(self.base)}
        for entry in self.layout.entries:
            if entry.name in self.four_bit:
                result |= entry.split(self.four_bit[entry.name].dense())
        if self.adapter_layout is None or self.flat is None:
            return result
        adapter = self.adapter_layout.views(self.flat)
        for layer in range(self.spec.layers):
            for name, _, parts, _ in fused_projections(self.spec, layer):
                lows = torch.split(adapter[f"{name}.A"], self.rank)
                for i, (module, _) in enumerate(parts):
                    weight = result[f"{module}.weight"]
                    delta = (adapter[f"{name}.B{i}"] @ lows[i]) * (self.alpha / self.rank)
                    result[f"{module}.weight"] = (weight.float() + delta).to(weight.dtype)
        return result

    def close(self) -> None:
        """See CausalModel.close."""
        self.base, self.flat, self.four_bit = torch.empty(0), None, {}
