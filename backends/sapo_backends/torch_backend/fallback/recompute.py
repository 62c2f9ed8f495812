"""Layers that keep for the backward pass only what goes into them, and compute the rest again when it is needed.

Linear attention and state-space layers are computed by transformers step by step where there are no kernels for them, and
autograd keeps each step: 0.2 to 0.5 MB a token in each layer (docs/benchmarks/memory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, is_grad_enabled, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from sapo_backends.torch_backend.fallback.caches import gathered, replaced


class Recomputed:
    """Stands in for a layer's forward. Gradient checkpointing (arXiv 1604.06174) with the weights of the forward pass, which
    the module no longer has when it is computed again, and with the cache as it was before the layer."""

    def __init__(self, model: RecomputedLayers, layer: nn.Module) -> None:
        self._model, self._layer, self._forward = model, layer, layer.forward
        numbers: list[Any] = [getattr(part, "layer_idx", None) for part in layer.modules()]
        self._places = sorted({number for number in numbers if isinstance(number, int)})
        self._inside = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """See nn.Module.forward."""
        owner = self._model.owner
        if self._inside or (owner is None and not is_grad_enabled()):
            return self._forward(*inputs, **named)
        name = next((name for name, value in named.items() if hasattr(value, "reorder_cache")), None)
        cache, kept = None if name is None else named.pop(name), list[Any]()
        before = [] if cache is None else [cache.layers[place] for place in self._places]

        def compute(weights: Mapping[str, Tensor], before: Sequence[Any], *inputs: Any, **named: Any) -> Any:
            if name is not None:
                own = [gathered(layer, owner) for layer in before]
                kept[:] = kept or own  # of the first time
                named[name] = replaced(cache, self._places, own)
            return self._compute(weights, *inputs, **named)

        weights = dict(self._layer.named_parameters())
        if is_grad_enabled():
            contexts = nullcontext(), self._model.remember()
            output = checkpoint(
                compute,
                weights,
                before,
                *inputs,
                use_reentrant=False,
                preserve_rng_state=False,
                context_fn=lambda: contexts,
                **named,
            )
        else:
            output = compute(weights, before, *inputs, **named)
        if owner is None and cache is not None:
            for place, layer in zip(self._places, kept, strict=True):
                cache.layers[place] = layer
        return output

    def _compute(self, weights: Mapping[str, Tensor], *inputs: Any, **named: Any) -> Any:
        self._inside = True
        try:
            return functional_call(self._layer, dict(weights), inputs, named)
        finally:
            self._inside = False


class RecomputedLayers:
    """All of a model's layers from now on. owner: of rows that continue prompts, the number of each row's prompt in the cache,
    which stays as it is."""

    def __init__(self, module: nn.Module, remember: Callable[[], AbstractContextManager[None]]) -> None:
        """remember: what a layer looks up besides its weights, as it is now, for the second time."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.remember = remember
        self.owner: Tensor | None = None
        for layer in list(module.modules()):
            if isinstance(layer, GradientCheckpointingLayer):
                layer.forward = Recomputed(self, layer)

    @contextmanager
    def continuing(self, owner: Tensor) -> Iterator[None]:
        """While a forward pass runs, also its second time: its rows continue these prompts of the cache."""
        self.owner = owner
        try:
            yield
        finally:
            self.owner = None
