"""Decoding with the compiled kernels: nothing is padded but vectors, and a row that leaves leaves everything in place."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from sapo_backends.base import TokenIds
from sapo_backends.spec import DecoderSpec
from sapo_backends.torch_backend.decode import Layer, add_linear, linear
from sapo_backends.torch_backend.drawing import Drawing
from sapo_backends.torch_backend.native.library import CHUNK, PAD, Kernels, Shape, at
from sapo_backends.torch_backend.rope import RopeTable


def _up(count: int) -> int:
    return -(-count // PAD) * PAD


class NativeSession:
    """See model.Session. All tensors are float32 in the processor's memory."""

    def __init__(
        self,
        kernels: Kernels,
        spec: DecoderSpec,
        rope: RopeTable,
        drawing: Drawing,
        prompts: Sequence[TokenIds],
        owner: Tensor,
        steps: int,
    ) -> None:
        self._kernels, self._spec, self._drawing = kernels, spec, drawing
        lengths = [len(prompt) for prompt in prompts]
        longest, slots = max(lengths), _up(steps)
        self._cos, self._sin = rope.tables(longest + steps)
        self._shape = Shape(spec.heads, spec.kv_heads, spec.head_dim, slots, spec.norm_eps)
        self._lengths = torch.tensor(lengths)
        ends = list(accumulate(spec.kv_heads * spec.head_dim * _up(length) for length in lengths))
        self._begins = torch.tensor([0, *ends[:-1]])
        self._keys_values = torch.empty(spec.layers, 2, ends[-1])
        width = CHUNK * (spec.heads // spec.kv_heads) * (_up(longest) + slots + 2 * spec.head_dim)
        self._scratch = torch.empty(width)
        self.logits = self._prefill(prompts)[owner]
        self._owner, self._rows, self._used = owner, torch.arange(len(owner)), 0
        # Slots behind the filled ones are multiplied and hidden afterwards: nothing there may be slow to compute with.
        self._own = torch.zeros(spec.layers, 2, len(owner) * spec.kv_heads * spec.head_dim * slots)

    def _prefill(self, prompts: Sequence[TokenIds]) -> Tensor:
        """Every prompt's keys and values; logits (prompts, V) after each."""
        spec, starts = self._spec, torch.tensor([0, *accumulate(len(prompt) for prompt in prompts)])[:-1]
        last = starts + self._lengths - 1
        x = F.embedding(
            torch.tensor([token for prompt in prompts for token in prompt]), self._drawing.weights.tensors["embed"]
        )
        for number, layer in enumerate(self._drawing.layers):
            qkv = self._projected(x, layer)
            mixed = x.new_empty(len(x), spec.heads * spec.head_dim)
            ends = number == spec.layers - 1
            self._kernels.library.sapo_prompts(
                ctypes.byref(self._shape),
                len(prompts),
                *map(at, (starts, self._lengths, self._begins, qkv, *_norms(layer), self._cos, self._sin)),
                *map(at, self._keys_values[number]),
                ends,
                *map(at, (mixed, self._scratch)),
            )
            if ends:
                x, mixed = x[last], mixed[last]
            x = self._mixed(x, mixed, layer)
        return self._headed(x)

    def step(self, tokens: Tensor) -> None:
        spec, rows = self._spec, len(tokens)
        x = F.embedding(tokens, self._drawing.weights.tensors["embed"])
        for number, layer in enumerate(self._drawing.layers):
            qkv = self._projected(x, layer)
            mixed = x.new_empty(rows, spec.heads * spec.head_dim)
            self._kernels.library.sapo_rows(
                ctypes.byref(self._shape),
                rows,
                *map(at, (self._rows, self._owner)),
                self._used,
                *map(at, (self._lengths, self._begins, qkv, *_norms(layer), self._cos, self._sin)),
                *map(at, (*self._keys_values[number], *self._own[number], mixed, self._scratch)),
            )
            x = self._mixed(x, mixed, layer)
        self._used += 1
        self.logits = self._headed(x)

    def keep(self, rows: Tensor) -> None:
        self.logits, self._owner, self._rows = self.logits[rows], self._owner[rows], self._rows[rows]

    def _projected(self, x: Tensor, layer: Layer) -> Tensor:
        """Queries, keys and values (N, (heads + 2 kv_heads) d), not normalised and not rotated."""
        return linear(self._kernels.normalise(x, layer.norm1, self._spec.norm_eps), layer.qkv)

    def _mixed(self, x: Tensor, mixed: Tensor, layer: Layer) -> Tensor:
        """The rest of a layer after its attention."""
        x = add_linear(mixed, layer.out, x)
        normal = self._kernels.normalise(x, layer.norm2, self._spec.norm_eps)
        return add_linear(self._kernels.gate(linear(normal, layer.mlp[0])), layer.down, x)

    def _headed(self, x: Tensor) -> Tensor:
        return linear(
            self._kernels.normalise(x, self._drawing.weights.tensors["norm"], self._spec.norm_eps), self._drawing.head
        )


def _norms(layer: Layer) -> tuple[Tensor | None, Tensor | None]:
    """Of queries and of keys."""
    return (layer.head_norms[0], layer.head_norms[1]) if layer.head_norms else (None, None)
