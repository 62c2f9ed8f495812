"""AdamW (arXiv 1711.05101) on one flat float32 tensor, in slices that stay in a core's cache."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sapo_backends.base import PolicyUpdate
from sapo_backends.torch_backend.workers import Workers, shares

SLICE = 1 << 16


class FlatAdamW:
    """first, second: moment estimates of the gradient, as long as the parameters. steps: taken so far."""

    def __init__(self, parameters: Tensor, workers: Workers) -> None:
        self.first = torch.zeros_like(parameters)
        self.second = torch.zeros_like(parameters)
        self.steps = 0
        self._workers = workers

    @torch.no_grad()
    def step(self, parameters: Tensor, gradient: Tensor, policy: PolicyUpdate) -> float:
        """Clip by the global norm and step, in place; gives the norm before clipping. A gradient that is not finite
        changes nothing."""
        norm = float(torch.linalg.vector_norm(gradient))
        if not math.isfinite(norm):
            return norm
        shrink = min(1.0, policy.max_grad_norm / (norm + 1e-6))
        beta1, beta2 = policy.adam_betas
        self.steps += 1
        rate = policy.learning_rate / (1.0 - beta1**self.steps)
        correction = math.sqrt(1.0 - beta2**self.steps)
        width = SLICE if parameters.device.type == "cpu" else parameters.numel()
        tensors = (torch.split(t, width) for t in (parameters, gradient, self.first, self.second))
        slices = list(zip(*tensors, strict=True))

        @torch.no_grad()  # of each thread
        def some(part: range) -> None:
            for weights, slope, first, second in slices[part.start : part.stop]:
                slope.mul_(shrink)
                weights.mul_(1.0 - policy.learning_rate * policy.weight_decay)
                first.lerp_(slope, 1.0 - beta1)
                second.mul_(beta2).addcmul_(slope, slope, value=1.0 - beta2)
                weights.addcdiv_(first, (second.sqrt() / correction).add_(policy.adam_eps), value=-rate)

        self._workers.map(some, shares(len(slices), self._workers.count))
        return norm
