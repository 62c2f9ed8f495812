"""A loaded mlx_lm model: its trained tensors by name, decoding, and scores with a gradient path to those tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx.utils import tree_unflatten

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.mlx_backend.kv_cache import DecodeCache, GroupCache, PromptCache, rounded
from sapo_backends.mlx_backend.packing import Packed, padded

CHUNK_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32. The backward pass makes each chunk's again."""
Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """logprobs, entropy (C, c + 1) of a packed micro-batch's targets; padding holds anything finite."""

    logprobs: Any
    entropy: Any


class MlxModel:
    """network: mlx_lm's module. trained: float32 tensors by their names in it; what is computed with is their copy
    in the compute type."""

    def __init__(self, network: Any, spec: DecoderSpec, trained: Tensors, compute: Any) -> None:
        self.network, self.spec, self.trained, self.compute = network, spec, trained, compute
        self.settle()

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token in decoding."""
        return 2 * self.spec.layers * self.spec.kv_width * int(self.compute.size)

    def use(self, tensors: Mapping[str, Any]) -> None:
        """Compute with these values of the trained tensors."""
        cast = [(name, tensor.astype(self.compute)) for name, tensor in tensors.items()]
        self.network.update(tree_unflatten(cast))

    def settle(self) -> None:
        """Compute with the trained tensors as they are now. Evaluated at once: work that mlx has put off belongs to
        the thread that asked for it, and another thread could not finish it."""
        self.use(self.trained)
        mx.eval(self.network.parameters(), self.trained)

    @property
    def _head(self) -> Any:
        """The module whose weight (V, hidden) turns hidden states into logits."""
        return self.network.model.embed_tokens if self.spec.tied else self.network.lm_head

    def logits(self, hidden: Any) -> Any:
        """(N, hidden) -> (N, V) in the compute type."""
        return self._finished(self._head.as_linear(hidden) if self.spec.tied else self._head(hidden))

    def _finished(self, logits: Any) -> Any:
        """What the unembedding gives, scaled and capped as the family does."""
        scaled = logits if self.spec.logit_scale == 1.0 else logits * self.spec.logit_scale
        cap = self.spec.logit_softcap
        return mx.tanh(scaled / cap) * cap if cap else scaled

    @property
    def _by_group(self) -> bool:
        """Whether the network has an axis of key heads and one of queries a key, so that masks need one more."""
        return self.spec.architecture == "Gemma2ForCausalLM" and self.spec.heads > self.spec.kv_heads

    def prefill(self, ids: Any) -> tuple[Any, list[PromptCache]]:
        """Right-padded prompts (P, T) -> hidden states (P, T, hidden) and a cache a layer."""
        caches = [PromptCache(self._by_group) for _ in range(self.spec.layers)]
        return self.network.model(ids, caches), caches

    def token_logprobs(self, packed: Packed, temperature: float) -> TokenLogprobs:
        """Log-probability and entropy of every completion token, each prompt computed once."""
        hidden, prompts = self.prefill(packed.prompts)
        rows = mx.arange(hidden.shape[0])
        last = hidden[rows, packed.last][packed.owner][:, None]  # (C, 1, hidden), predicts the first token
        caches = [GroupCache(prompt, packed.owner, packed.offset, packed.mask) for prompt in prompts]
        states = mx.concatenate([last, self.network.model(packed.inputs, caches)], axis=1)  # (C, c + 1, hidden)
        flat, targets = states.reshape(-1, states.shape[-1]), packed.targets.reshape(-1)
        step = max(1, CHUNK_ELEMENTS // self.spec.vocabulary)
        chunks = [
            self._chunk(flat[at : at + step], targets[at : at + step], temperature) for at in range(0, len(flat), step)
        ]
        shape = packed.targets.shape
        return TokenLogprobs(*(mx.concatenate(list(parts)).reshape(shape) for parts in zip(*chunks, strict=True)))

    def _chunk(self, hidden: Any, targets: Any, temperature: float) -> tuple[Any, Any]:
        """hidden (N, width) predicts targets (N,): log-probabilities and entropies (N,), logits not kept."""
        head = self._head
        quantised = isinstance(head, (nn.QuantizedLinear, nn.QuantizedEmbedding))

        def scores(weight: Any, hidden: Any) -> tuple[Any, Any]:
            logits = self.logits(hidden) if quantised else self._finished(hidden @ weight.T)
            logits = logits.astype(mx.float32) / temperature
            total = mx.logsumexp(logits, axis=-1)
            chosen = mx.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
            mean = (mx.softmax(logits, axis=-1) * logits).sum(axis=-1)
            return chosen - total, mx.stop_gradient(total - mean)

        logprobs, entropy = mx.checkpoint(scores)(head.weight, hidden)
        return logprobs, entropy


class Session:
    """Decoding of several rows. logits (rows, V) of the next token."""

    def __init__(self, model: MlxModel, prompts: Sequence[TokenIds], owner: Sequence[int], steps: int) -> None:
        """Prefill each prompt once; owner says which prompt each row continues, for up to `steps` tokens."""
        self._model = model
        longest = rounded(max(map(len, prompts)))
        hidden, caches = model.prefill(mx.array(padded(prompts, longest)))
        lengths, rows = mx.array([len(p) for p in prompts]), mx.array(list(owner))
        last = hidden[mx.arange(len(prompts)), lengths - 1]  # (P, hidden)
        self.logits = model.logits(last)[rows]
        self._caches = [DecodeCache(cache, rows, lengths[rows], steps) for cache in caches]
        mx.eval(self.logits, [cache.arrays for cache in self._caches])

    def step(self, tokens: Any) -> None:
        """Append one token a row (rows,) and compute the next logits."""
        hidden = self._model.network.model(tokens[:, None], self._caches)
        self.logits = self._model.logits(hidden[:, 0])

    def keep(self, rows: Any) -> None:
        """Drop all rows but these."""
        for cache in self._caches:
            cache.keep(rows)
        self.logits = self.logits[rows]
