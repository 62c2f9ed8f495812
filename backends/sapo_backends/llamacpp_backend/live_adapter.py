"""The adapter that a trainer changes every round, swapped in without loading the model again.

Order matters (llama.cpp 0.3.36): an adapter with the same targets exists before the context; then each time: load the
new one, set it, free the old one (a freed address that is reused would look unchanged), clear the cache, which does
not notice that the adapter changed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sapo_backends.base import BackendError
from sapo_backends.checkpoints.gguf.adapter import write_adapter, zero_adapter
from sapo_backends.checkpoints.spec import DecoderSpec
from sapo_backends.llamacpp_backend.generation import prefill
from sapo_backends.llamacpp_backend.native import Adapter, Context, Model

Tensors = dict[str, NDArray[np.float32]]
PROBE = 3
"""Tokens of the text whose logits must change with the adapter."""
NOTICEABLE = 1e-3
"""A change of an element of B that must show in some logit; smaller ones may drown in rounding."""


class LiveAdapter:
    """The tensors in PEFT's names and the llama.cpp adapter made of them."""

    def __init__(self, spec: DecoderSpec, model: Model, rank: int, alpha: float) -> None:
        self._spec, self._model = spec, model
        self.tensors: Tensors = zero_adapter(spec, rank)
        self.alpha = alpha
        self._loaded = self._load(self.tensors, alpha)
        self._answer: NDArray[np.float32] = np.empty(0, np.float32)
        self._answered: Context | None = None  # the context that gave the answer, after the last swap

    def _load(self, tensors: Mapping[str, object], alpha: float) -> Adapter:
        with tempfile.TemporaryDirectory(prefix="sapo-adapter-") as folder:
            file = Path(folder) / "adapter.gguf"
            write_adapter(self._spec, tensors, alpha, file)
            return Adapter(self._model, file)

    def attach(self, context: Context) -> None:
        """Use the adapter in a new context."""
        context.use(self._loaded)
        context.clear()

    def swap(self, context: Context, tensors: Mapping[str, object], alpha: float) -> None:
        """Replace the adapter. Raises BackendError when it does not fit or does not take effect."""
        fresh: Tensors = {name: np.array(value, dtype=np.float32) for name, value in tensors.items()}
        self._check(fresh)
        before = self._answer if self._answered is context else self._probe(context)
        loaded = self._load(fresh, alpha)
        context.use(loaded)
        self._loaded.close()
        self._loaded = loaded
        noticeable = alpha != self.alpha or self._change(fresh) > NOTICEABLE
        self.tensors, self.alpha = fresh, alpha
        self._answer, self._answered = self._probe(context), context
        if np.array_equal(before, self._answer) and noticeable:
            raise BackendError("llama.cpp took the new adapter but computes as before. Load the model again.")

    def _check(self, fresh: Tensors) -> None:
        """All targets of the model, no others; the rank may differ."""
        if fresh.keys() != self.tensors.keys():
            odd = sorted(fresh.keys() ^ self.tensors.keys())[0]
            raise BackendError(f"The adapter does not fit this model: {odd} is missing or unknown.")
        for name, tensor in fresh.items():
            axis = 1 if ".lora_A." in name else 0
            if tensor.ndim != 2 or tensor.shape[axis] != self.tensors[name].shape[axis]:
                raise BackendError(f"The adapter does not fit this model: {name} has shape {tensor.shape}.")

    def _change(self, fresh: Tensors) -> float:
        """Largest change of an element of any B; 0 while A is 0, because the product then stays 0."""
        changes = [0.0]
        for name, tensor in fresh.items():
            if ".lora_B." in name and fresh[name.replace(".lora_B.", ".lora_A.")].any():
                old = self.tensors[name]
                same = old.shape == tensor.shape
                changes.append(float(np.abs(tensor - old if same else tensor).max()))
        return max(changes)

    def _probe(self, context: Context) -> NDArray[np.float32]:
        """Logits (V,) after a fixed text, computed in an empty cache."""
        context.clear()
        tokens = [i % self._model.vocabulary for i in range(3, 3 + PROBE)]
        logits = prefill(context, 0, tokens)
        context.clear()
        return logits

    def close(self) -> None:
        """Free the adapter."""
        self._loaded.close()
