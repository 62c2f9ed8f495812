"""AdamW (arXiv 1711.05101) on one flat float32 tensor, by torch's fused kernel, which passes over memory once."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from sapo_backends.base import PolicyUpdate
from sapo_backends.torch_backend.runtime.workers import Workers, shares


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

        @torch.no_grad()  # of each thread
        def some(part: range) -> None:
            tensors = (t[part.start : part.stop] for t in (parameters, gradient, self.first, self.second))
            weights, grad, first, second = tensors
            adamw(
                [weights],
                [grad.mul_(shrink)],
                [first],
                [second],
                [],
                [torch.tensor(float(self.steps), device=weights.device)],
                fused=True,
                amsgrad=False,
                beta1=beta1,
                beta2=beta2,
                lr=policy.learning_rate,
                weight_decay=policy.weight_decay,
                eps=policy.adam_eps,
                maximize=False,
            )

        self._workers.map(some, shares(len(parameters), self._workers.count))
        self.steps += 1
        return norm
