"""Layers that keep for the backward pass only what goes into them, and compute the rest again when it is needed.

Linear attention and state-space layers are computed by transformers step by step where there are no kernels for them, and
autograd keeps each step: 0.2 to 0.5 MB a token in each layer (docs/benchmarks/memory.md).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from torch import Tensor, is_grad_enabled, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint


class Recomputed:
    """Stands in for a layer's forward. Gradient checkpointing (arXiv 1604.06174) with the weights of the forward pass, which
    the module no longer has when it is computed again."""

    def __init__(self, layer: nn.Module, remember: Callable[[], AbstractContextManager[None]]) -> None:
        """remember: what the layer looks up besides its weights, as it is now, for the second time."""
        self._layer, self._forward, self._remember = layer, layer.forward, remember
        self._inside = False

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """See nn.Module.forward."""
        if self._inside or not is_grad_enabled():
            return self._forward(*inputs, **named)
        weights, again = dict(self._layer.named_parameters()), self._remember()
        return checkpoint(
            self._compute,
            weights,
            *inputs,
            use_reentrant=False,
            preserve_rng_state=False,
            context_fn=lambda: (nullcontext(), again),
            **named,
        )

    def _compute(self, weights: Mapping[str, Tensor], *inputs: Any, **named: Any) -> Any:
        self._inside = True
        try:
            return functional_call(self._layer, dict(weights), inputs, named)
        finally:
            self._inside = False


def recompute_layers(module: nn.Module, remember: Callable[[], AbstractContextManager[None]]) -> None:
    """All of a model's layers from now on; see Recomputed."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    for layer in module.modules():
        if isinstance(layer, GradientCheckpointingLayer):
            layer.forward = Recomputed(layer, remember)
