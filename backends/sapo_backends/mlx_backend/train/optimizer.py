"""AdamW (arXiv 1711.05101) with the torch engine's arithmetic: global norm clip, decoupled decay, bias correction."""

from __future__ import annotations

import math
from typing import Any

import mlx.core as mx

from sapo_backends.base import PolicyUpdate
from sapo_backends.mlx_backend.model import Tensors


class AdamW:
    """first, second: moment estimates by tensor name. steps: taken so far."""

    def __init__(self, tensors: Tensors) -> None:
        self.first: Tensors = {name: mx.zeros_like(tensor) for name, tensor in tensors.items()}
        self.second: Tensors = {name: mx.zeros_like(tensor) for name, tensor in tensors.items()}
        self.steps = 0
        mx.eval(self.first, self.second)

    def step(self, tensors: Tensors, gradient: Tensors, policy: PolicyUpdate) -> float:
        """Replace the entries of `tensors`; gives the gradient's norm before clipping. A gradient that is not finite
        changes nothing."""
        squares: Any = sum((grad.square().sum() for grad in gradient.values()), mx.array(0.0))
        norm = math.sqrt(float(squares))
        if not math.isfinite(norm):
            return norm
        shrink = min(1.0, policy.max_grad_norm / (norm + 1e-6))
        beta1, beta2 = policy.adam_betas
        self.steps += 1
        rate = policy.learning_rate / (1.0 - beta1**self.steps)
        correction = math.sqrt(1.0 - beta2**self.steps)
        decay = 1.0 - policy.learning_rate * policy.weight_decay
        for name, grad in gradient.items():
            grad = grad * shrink
            first = self.first[name] + (1.0 - beta1) * (grad - self.first[name])
            second = self.second[name] * beta2 + (1.0 - beta2) * grad.square()
            tensors[name] = tensors[name] * decay - rate * first / (second.sqrt() / correction + policy.adam_eps)
            self.first[name], self.second[name] = first, second
        mx.eval(tensors, self.first, self.second)
        return norm
