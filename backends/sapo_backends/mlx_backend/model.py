"""A loaded mlx_lm model: its trained tensors by name, key-value caches, micro-batches as padded arrays, decoding and scores."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_unflatten
from mlx_lm.tuner.lora import LoRALinear
from numpy.typing import NDArray

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.common.update import Mask, Pair

# Key-value caches with the interface that mlx_lm's models expect: a prompt computed once, continued by many rows.
#
# mlx_lm calls, layer by layer, `cache.offset` (position of the first new token), `cache.update_and_fetch(keys,
# values)` and, once per forward pass, `make_mask`.

SHAPE_STEP = 16
"""Lengths are rounded up to a multiple of this, so that few different shapes occur: Metal's allocator keeps buffers by
size."""
SLOT_STEP = 64
"""The same for the filled part of a cache during decoding."""


def round_up(length: int, step: int = SHAPE_STEP) -> int:
    """The next multiple of step, at least one step."""
    return max(step, -(-length // step) * step)


class PromptCache:
    """Causal attention over right-padded prompts (P, T); keeps keys and values (P, kv_heads, T, d)."""

    offset = 0

    def __init__(self, by_group: bool = False) -> None:
        """by_group: the model's scores have an extra axis for the queries of each key."""
        self.keys: Any = None
        self.values: Any = None
        self.by_group = by_group

    def make_mask(self, length: int, window_size: int | None = None, return_array: bool = False) -> Any:
        """The mask that mlx_lm asks for."""
        if not return_array and (window_size is None or length <= window_size):
            return "causal"
        slot = mx.arange(length)
        distance = slot[:, None] - slot[None]
        return (distance >= 0) & (distance < (window_size or length))

    def shaped(self, mask: Any) -> Any:
        """mask (rows, 1, T, S) with as many axes as the model's scores."""
        return mask[:, None] if self.by_group else mask

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Add the new keys and values (rows, kv_heads, T, d); returns everything that attention reads."""
        self.keys, self.values = keys, values
        return keys, values


class GroupCache:
    """All tokens of C completions at once, each continuing one of the prompts; differentiable by the prompts.

    owner, offset (C,): each row's prompt and its length. mask (C, 1, c, p + c): True where a token sees.
    """

    def __init__(self, prompt: PromptCache, owner: Any, offset: Any, mask: Any) -> None:
        self._prompt, self._owner, self.offset, self._mask = prompt, owner, offset, mask

    def make_mask(self, length: int, window_size: int | None = None, **_options: Any) -> Any:
        """The mask that mlx_lm asks for."""
        mask = self._mask
        if window_size is not None:
            prompt = mask.shape[-1] - length
            own = mx.arange(length)[None, :, None] + self.offset[:, None, None]  # (C, c, 1), positions
            slot = mx.arange(mask.shape[-1])
            place = mx.where(slot < prompt, slot, slot - prompt + self.offset[:, None])[:, None]  # (C, 1, p + c)
            mask = mask & (own - place < window_size)[:, None]
        return self._prompt.shaped(mask)

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Add the new keys and values (rows, kv_heads, T, d); returns everything that attention reads."""
        prompt = self._prompt
        return (
            mx.concatenate([prompt.keys[self._owner], keys], axis=2),  # (C, kv_heads, p + c, d)
            mx.concatenate([prompt.values[self._owner], values], axis=2),
        )


class DecodeCache:
    """One new token per row in preallocated slots; the first `prompt` slots hold each row's right-padded prompt.

    offset (rows,): position of the next token. filled: slots in use, equal for all rows.
    """

    def __init__(self, prompt: PromptCache, owner: Any, lengths: Any, steps: int) -> None:
        self.offset, self._lengths, self._shaped = lengths, lengths, prompt.shaped
        self._prompt = int(prompt.keys.shape[2])
        self.filled = self._prompt
        self._keys, self._values = (self._reserve(part[owner], steps) for part in (prompt.keys, prompt.values))

    def _reserve(self, part: Any, steps: int) -> Any:
        rows, heads, length, width = part.shape
        room = round_up(length + steps, SLOT_STEP) - length
        return mx.concatenate([part, mx.zeros((rows, heads, room, width), part.dtype)], axis=2)

    def make_mask(self, _length: int, window_size: int | None = None, **_options: Any) -> Any:
        """(rows, 1, 1, slots): True on the row's own prompt and sampled tokens, including the new one; with window_size
        only on the last that many of these."""
        slot = mx.arange(self._visible())
        sampled = (slot >= self._prompt) & (slot <= self.filled)
        visible = (slot[None] < self._lengths[:, None]) | sampled[None]
        if window_size is not None:
            place = mx.where(slot < self._prompt, slot, slot - self._prompt + self._lengths[:, None])
            visible = visible & (self.offset[:, None] - place < window_size)
        return self._shaped(visible[:, None, None, :])

    def _visible(self) -> int:
        """Slots handed to attention: all filled ones and the new token, rounded up."""
        return round_up(self.filled + 1, SLOT_STEP)

    def update_and_fetch(self, keys: Any, values: Any) -> tuple[Any, Any]:
        """Add the new keys and values (rows, kv_heads, T, d); returns everything that attention reads."""
        self._keys[:, :, self.filled : self.filled + 1] = keys
        self._values[:, :, self.filled : self.filled + 1] = values
        end = self._visible()
        self.filled += 1
        self.offset = self.offset + 1
        return self._keys[:, :, :end], self._values[:, :, :end]

    def keep(self, rows: Any) -> None:
        """Drop all rows but these."""
        self._keys, self._values = self._keys[rows], self._values[rows]
        self.offset, self._lengths = self.offset[rows], self._lengths[rows]

    @property
    def arrays(self) -> tuple[Any, Any]:
        """Keys and values (rows, kv_heads, slots, d)."""
        return self._keys, self._values


# A micro-batch as padded arrays of few shapes, in which completions share their prompt.


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """P prompts (P, p) and C completions; a completion token sees its prompt and what came before it.

    last (P,): each prompt's last position. inputs (C, c): completions without their last token, padded. targets
    (C, c + 1): completions, padded; valid (C, c + 1): where they are real and carry loss.
    """

    prompts: Any
    last: Any
    owner: Any
    offset: Any
    inputs: Any
    mask: Any
    targets: Any
    valid: Any


def pad_rows(rows: Sequence[TokenIds], width: int) -> NDArray[np.int32]:
    """Right-padded with 0: (rows, width)."""
    result = np.zeros((len(rows), width), np.int32)
    for row, ids in zip(result, rows, strict=True):
        row[: len(ids)] = ids
    return result


def pad_micro_batch(pairs: Sequence[Pair], members: list[int], masks: Sequence[Mask] = ()) -> PaddedBatch:
    """Lay out one micro-batch. Every member has a non-empty prompt and completion. masks: one per pair, as in
    TrainSample."""
    unique = list(dict.fromkeys(pairs[i][0] for i in members))
    row_of = {prompt: row for row, prompt in enumerate(unique)}
    completions = [pairs[i][1] for i in members]
    owner = np.array([row_of[pairs[i][0]] for i in members], np.int32)
    lengths = np.array([len(prompt) for prompt in unique], np.int32)
    p, c = round_up(int(lengths.max())), round_up(max(map(len, completions)) - 1)
    slot, time = np.arange(p + c), np.arange(c)
    in_prompt = slot[None, None] < lengths[owner][:, None, None]
    in_own = (slot[None, None] >= p) & (slot[None, None] - p <= time[None, :, None])
    sizes = np.array([len(completion) for completion in completions])
    valid = np.arange(c + 1)[None] < sizes[:, None]
    for row, i in enumerate(members):
        if masks and (mask := masks[i]) is not None:
            valid[row, : len(mask)] &= mask
    return PaddedBatch(
        prompts=mx.array(pad_rows(unique, p)),
        last=mx.array(lengths - 1),
        owner=mx.array(owner),
        offset=mx.array(lengths[owner]),
        inputs=mx.array(pad_rows([completion[:-1] for completion in completions], c)),
        mask=mx.array((in_prompt | in_own)[:, None]),
        targets=mx.array(pad_rows(completions, c + 1)),
        valid=mx.array(valid),
    )


# A loaded mlx_lm model: its trained tensors by name, decoding, and scores with a gradient path to those tensors.

_SUMMED = 256
"""Number of terms that are summed one after another, see blocked_logsumexp."""


def blocked_logsumexp(logits: Any) -> Any:
    """logits (N, V) in float32 -> (N,). In blocks: on a processor MLX adds one term after another, and over a
    vocabulary the rounding adds up to 1e-4 nats, always in the same direction."""
    padding = -logits.shape[-1] % _SUMMED
    padded = mx.pad(logits, [(0, 0), (0, padding)], constant_values=-math.inf) if padding else logits
    blocks = mx.logsumexp(padded.reshape(len(logits), -1, _SUMMED), axis=-1)
    return mx.logsumexp(blocks, axis=-1)


CHUNK_ELEMENTS = 1 << 24
"""Logits held at once: 64 MiB in float32. The backward pass recomputes each chunk's."""
Tensors = dict[str, Any]


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """logprobs, entropy (C, c + 1) of a packed micro-batch's targets; finite but meaningless in the padding."""

    logprobs: Any
    entropy: Any


class MlxModel:
    """network: mlx_lm's module. trained: float32 tensors by their names in it; computation uses a copy of them
    in the compute type."""

    def __init__(self, network: Any, spec: DecoderSpec, trained: Tensors, compute: Any) -> None:
        self.network, self.spec, self.trained, self.compute = network, spec, trained, compute
        self.settle()

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values in decoding."""
        return 2 * self.spec.layers * self.spec.kv_width * int(self.compute.size)

    def use(self, tensors: Mapping[str, Any]) -> None:
        """Compute with these values of the trained tensors."""
        cast = [(name, tensor.astype(self.compute)) for name, tensor in tensors.items()]
        self.network.update(tree_unflatten(cast))

    def settle(self) -> None:
        """Compute with the current trained tensors. They are evaluated at once: lazy work in mlx belongs to
        the thread that requested it, and another thread could not finish it."""
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
        """The unembedding's output, scaled and capped as the family requires."""
        scaled = logits if self.spec.logit_scale == 1.0 else logits * self.spec.logit_scale
        cap = self.spec.logit_softcap
        return mx.tanh(scaled / cap) * cap if cap else scaled

    @property
    def _by_group(self) -> bool:
        """Whether attention has separate axes for key heads and queries per key, so that masks need an extra axis."""
        return self.spec.architecture == "Gemma2ForCausalLM" and self.spec.heads > self.spec.kv_heads

    def prefill(self, ids: Any) -> tuple[Any, list[PromptCache]]:
        """Right-padded prompts (P, T) -> hidden states (P, T, hidden) and one cache per layer."""
        caches = [PromptCache(self._by_group) for _ in range(self.spec.layers)]
        return self.network.model(ids, caches), caches

    def token_logprobs(self, packed: PaddedBatch, temperature: float) -> TokenLogprobs:
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
        """hidden (N, width) predicts targets (N,): log-probabilities and entropies (N,); the logits are not kept."""
        head = self._head
        quantised = isinstance(head, (nn.QuantizedLinear, nn.QuantizedEmbedding))

        def scores(weight: Any, hidden: Any) -> tuple[Any, Any]:
            logits = self.logits(hidden) if quantised else self._finished(hidden @ weight.T)
            logits = logits.astype(mx.float32) / temperature
            total = blocked_logsumexp(logits)
            chosen = mx.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
            mean = (mx.softmax(logits, axis=-1) * logits).sum(axis=-1)
            return chosen - total, mx.stop_gradient(total - mean)

        logprobs, entropy = mx.checkpoint(scores)(head.weight, hidden)
        return logprobs, entropy


class DecodeSession:
    """Decoding of several rows. logits (rows, V) of the next token."""

    def __init__(self, model: MlxModel, prompts: Sequence[TokenIds], owner: Sequence[int], steps: int) -> None:
        """Prefill each prompt once; owner says which prompt each row continues, for up to `steps` tokens."""
        self._model = model
        longest = round_up(max(map(len, prompts)))
        hidden, caches = model.prefill(mx.array(pad_rows(prompts, longest)))
        lengths, rows = mx.array([len(p) for p in prompts]), mx.array(list(owner))
        last = hidden[mx.arange(len(prompts)), lengths - 1]  # (P, hidden)
        self.logits = model.logits(last)[rows]
        self._caches = [DecodeCache(cache, rows, lengths[rows], steps) for cache in caches]
        mx.eval(self.logits, [cache.arrays for cache in self._caches])

    def step(self, tokens: Any) -> None:
        """Append one token per row (rows,) and compute the next logits."""
        hidden = self._model.network.model(tokens[:, None], self._caches)
        self.logits = self._model.logits(hidden[:, 0])

    def keep(self, rows: Any) -> None:
        """Drop all rows but these."""
        for cache in self._caches:
            cache.keep(rows)
        self.logits = self.logits[rows]


# Names and layouts of trained tensors: mlx_lm's inside, PEFT's and Hugging Face's outside.

PREFIX = "base_model.model."
_PEFT = {".lora_a": ".lora_A.weight", ".lora_b": ".lora_B.weight"}
Arrays = dict[str, NDArray[np.float32]]


def to_peft_name(name: str) -> str:
    """mlx_lm's name of a trained tensor -> PEFT's for a LoRA tensor, Hugging Face's otherwise."""
    for suffix, peft in _PEFT.items():
        if name.endswith(suffix):
            return f"{PREFIX}{name.removesuffix(suffix)}{peft}"
    return name


def _is_lora(name: str) -> bool:
    return name.endswith(tuple(_PEFT))


def to_arrays(tensors: Mapping[str, Any]) -> Arrays:
    """Arrays by outside names; LoRA tensors are transposed, because mlx_lm stores (in, r) and (r, out)."""
    return {
        to_peft_name(name): np.ascontiguousarray(np.array(tensor).T if _is_lora(name) else np.array(tensor))
        for name, tensor in tensors.items()
    }


def from_arrays(like: Mapping[str, Any], arrays: Mapping[str, object]) -> Tensors:
    """The inverse of to_arrays, for tensors with the names and shapes of `like`. Raises ValueError on a mismatch."""
    odd = sorted(arrays.keys() ^ {to_peft_name(name) for name in like})
    if odd:
        raise ValueError(f"{odd[0]} is {'unknown' if odd[0] in arrays else 'missing'}")
    fresh: Tensors = {}
    for name, tensor in like.items():
        array = np.asarray(arrays[to_peft_name(name)], dtype=np.float32)
        array = array.T if _is_lora(name) else array
        if array.shape != tuple(tensor.shape):
            raise ValueError(f"{to_peft_name(name)} has another shape, {array.shape}")
        fresh[name] = mx.array(np.ascontiguousarray(array))
    mx.eval(fresh)
    return fresh


def linear_layers(network: Any) -> Iterator[tuple[str, Any]]:
    """(name, module) of every linear layer in the decoder's blocks; these get an adapter."""
    for name, module in network.named_modules():
        if ".layers." in name and isinstance(module, (nn.Linear, nn.QuantizedLinear)):
            yield name, module


def add_adapter(network: Any, rank: int, alpha: float, seed: int) -> Tensors:
    """Put LoRA on every linear layer and return its tensors: A uniform as in PEFT's initialisation, B zero."""
    rng = np.random.default_rng(seed)
    layers = [(name, LoRALinear.from_base(m, r=rank, scale=alpha / rank)) for name, m in linear_layers(network)]
    network.update_modules(tree_unflatten(layers))
    tensors: Tensors = {}
    for name, layer in layers:
        bound = 1.0 / math.sqrt(layer.lora_a.shape[0])
        initial = rng.uniform(-bound, bound, layer.lora_a.shape).astype(np.float32)
        tensors[f"{name}.lora_a"] = mx.array(initial)
        tensors[f"{name}.lora_b"] = mx.zeros(layer.lora_b.shape, mx.float32)
    return tensors


def adapter_scale(network: Any) -> float:
    """alpha / rank, the same in every adapted layer."""
    return next(float(module.scale) for _, module in network.named_modules() if isinstance(module, LoRALinear))


def set_scale(network: Any, scale: float) -> None:
    """Set alpha / rank in every adapted layer."""
    for _, module in network.named_modules():
        if isinstance(module, LoRALinear):
            module.scale = scale
