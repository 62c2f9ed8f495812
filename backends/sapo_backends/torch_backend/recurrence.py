"""Layers that carry a state from token to token, computed by the compiled kernels; native/states.c documents the rule.

q, k (rows, tokens, groups, keys), v (rows, tokens, heads, values), decay (rows, tokens, heads), beta the same or None
for no delta rule, state (rows, heads, keys, values); all in float32. Heads of a group share one q and k.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from sapo_backends.torch_backend.native import PAD, NativeKernels, data_pointer, load_kernels
from sapo_backends.torch_backend.runtime import fall_back, leave_out


class _States(ctypes.Structure):
    """The struct in states.c."""

    _fields_ = tuple((name, ctypes.c_int64) for name in ("rows", "tokens", "groups", "heads", "keys", "values"))


def kernels_that_work() -> NativeKernels | None:
    """The compiled kernels, if they exist and agree with the rule; a disagreement is recorded as a fallback."""
    kernels = load_kernels()
    if kernels is not None and not _works(kernels):
        leave_out("native")
        fall_back("native", "layers with a state come out different")
        return None
    return kernels


@cache
def _works(found: NativeKernels) -> bool:
    """Checks in a separate thread, so that inference mode and gradient checkpointing's hooks do not affect it."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_give_the_rule, found).result()


def _give_the_rule(found: NativeKernels) -> bool:
    """Compares values and gradients on a small example: a compiler is not trusted blindly."""
    some = torch.Generator().manual_seed(0)
    q, k, v, state = (torch.randn(1, size, 2, PAD, generator=some) for size in (3, 3, 3, PAD))
    (decay, beta), state = torch.rand(2, 1, 3, 2, generator=some), state.transpose(1, 2)
    for rule in (beta, None):
        results = list[list[Tensor]]()
        for compute in (by_the_rule, partial(NativeRecurrence.apply, found)):
            leaves: list[Any] = [
                None if x is None else x.clone().requires_grad_() for x in (q, k, v, decay, rule, state)
            ]
            outputs = compute(*leaves)
            total = outputs[0].square().sum() + outputs[1].square().sum()
            results.append([*outputs, *torch.autograd.grad(total, [x for x in leaves if x is not None])])
        if not all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip(*results, strict=True)):
            return False
    return True


def by_the_rule(
    q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor
) -> tuple[Tensor, Tensor]:
    """The same rule token by token in torch operations: the reference for the kernels."""
    queries, keys = (x.repeat_interleave(v.shape[2] // x.shape[2], dim=2) for x in (q, k))
    out = list[Tensor]()
    for t in range(v.shape[1]):
        a, key, u = decay[:, t, :, None], keys[:, t], v[:, t]
        if beta is not None:
            u = beta[:, t, :, None] * (u - a * (state.mT @ key[..., None])[..., 0])
        state = a[..., None] * state + key[..., None] * u[..., None, :]
        out.append((state.mT @ queries[:, t][..., None])[..., 0])
    return torch.stack(out, dim=1), state


def suits_recurrence(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels support these shapes."""
    return q.device.type == "cpu" and q.shape[-1] % PAD == 0 and v.shape[-1] % PAD == 0


def advance_state(
    kernels: NativeKernels, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor | None, state: Tensor
) -> Tensor:
    """The outputs, shaped like v; state, contiguous, is updated to the one after the last token. Without gradients."""
    out = torch.empty(v.shape)
    _on_threads(kernels, "states", q, v, (q, k, v, decay, beta, state, out))
    return out


def step_state(kernels: NativeKernels, q: Tensor, k: Tensor, v: Tensor, decay: Tensor, state: Tensor) -> Tensor:
    """The same for one token, no delta rule and a state (rows, heads, values, keys); the other tensors have no token
    dimension."""
    out = torch.empty(v.shape)
    _on_threads(kernels, "state_step", q[:, None], v[:, None], (q, k, v, decay, state, out))
    return out


class NativeRecurrence(torch.autograd.Function):
    """The outputs and the state after the last token. Only the inputs are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        kernels: NativeKernels,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        decay: Tensor,
        beta: Tensor | None,
        state: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """See torch.autograd.Function."""
        ctx.save_for_backward(q, k, v, decay, beta, state)
        ctx.kernels, after = kernels, state.clone(memory_format=torch.contiguous_format)
        return advance_state(kernels, q, k, v, decay, beta, after), after

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        """See torch.autograd.Function."""
        q, k, v, decay, beta, state = ctx.saved_tensors
        grad_out, grad_state = gradients[0].contiguous(), gradients[1].clone(memory_format=torch.contiguous_format)
        grads = *(None if x is None else torch.zeros(x.shape) for x in (q, k, v, decay, beta)), grad_state
        _on_threads(ctx.kernels, "states_backward", q, v, (q, k, v, decay, beta, state, grad_out, *grads))
        return None, *grads


def _on_threads(kernels: NativeKernels, name: str, q: Tensor, v: Tensor, tensors: Sequence[Tensor | None]) -> None:
    """Call kernels.library.sapo_{name} on as many threads as torch has, each with some of the rows and its own
    workspace."""
    arguments = [None if x is None else x.contiguous() for x in tensors]
    function, part = getattr(kernels.library, f"sapo_{name}"), -(-len(q) // torch.get_num_threads())

    def share(first: int) -> None:
        some = [None if x is None else x[first : first + part] for x in arguments]
        shape = _States(min(part, len(q) - first), q.shape[1], q.shape[2], v.shape[2], q.shape[3], v.shape[3])
        room = torch.empty(
            kernels.library.sapo_states_workspace(ctypes.byref(shape)) if name == "states_backward" else 0
        )
        function(ctypes.byref(shape), *map(data_pointer, some), *([room.data_ptr()] if len(room) else []))

    starts = range(0, len(q), part)
    if len(starts) == 1:
        share(0)
    else:
        with ThreadPoolExecutor(len(starts)) as pool:
            list(pool.map(share, starts))
