"""The layers with a state of models that transformers computes, by the compiled kernels where these are for them.

transformers looks for such functions in packages that are for GPUs, and otherwise computes them in many operations, each of which
reads and writes the states of all rows. They are replaced by name; without that name nothing is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import wraps
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sapo_backends.torch_backend.ops import recurrence

CHUNK = 64
"""Tokens at most that transformers' own functions take at once, to which they fill up. What a model asks for, 256, is for
mamba_ssm's kernels: without these 160 tokens of Granite 4.0 H with gradients take 2.7 times as long."""


def use_kernels(module: nn.Module) -> None:
    """From now on, in the files that a model's layers come from."""
    for file in {sys.modules[type(layer).__module__] for layer in module.modules()}:
        for name, better in _BETTER.items():
            original = vars(file).get(name)
            if original is not None and not hasattr(original, "by_kernels"):
                setattr(file, name, _either(original, better))


def _either(original: Callable[..., Any], better: Callable[..., Any]) -> Callable[..., Any]:
    fills_up = find_spec("mamba_ssm") is None

    @wraps(original)
    def either(*given: Any, **named: Any) -> Any:
        found = better(*given, **named)
        if found is not None:
            return found
        if fills_up and "chunk_size" in named:
            named["chunk_size"] = min(named["chunk_size"], CHUNK)
        return original(*given, **named)

    either.by_kernels = True  # type: ignore[attr-defined]
    return either


def _delta_rule(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    g: Tensor,
    beta: Tensor,
    *,
    initial_state: Tensor | None = None,
    output_final_state: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    cu_seqlens: Any = None,
    **_others: Any,
) -> tuple[Tensor, Tensor | None] | None:
    """query, key (rows, tokens, groups, keys), value (rows, tokens, heads, values), g, the logarithm of the decay, and beta
    (rows, tokens, heads), initial_state (rows, heads, keys, values)."""
    found = recurrence.kernels_that_work()
    if found is None or cu_seqlens is not None or not recurrence.suits(query, value):
        return None
    q, k, v = query.float(), key.float(), value.float()
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    rows, _, heads, values = v.shape
    given = (q * q.shape[-1] ** -0.5, k, v, g.float().exp(), beta.float())
    state = v.new_zeros(rows, heads, q.shape[-1], values) if initial_state is None else initial_state.float()
    if state.is_contiguous() and not torch.is_grad_enabled():
        out = recurrence.advance(found, *given, state)  # in place: the cache takes over what is given back
    else:
        out, state = recurrence.Recurrence.apply(found, *given, state)  # type: ignore[no-untyped-call]
    return out.to(query.dtype), state if output_final_state else None


def _unit(x: Tensor) -> Tensor:
    return x * torch.rsqrt((x * x).sum(dim=-1, keepdim=True) + 1e-6)


def _chunk_scan(
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    *,
    D: Tensor | None = None,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    initial_states: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, float("inf")),
    return_final_states: bool = False,
    seq_idx: Any = None,
    **_others: Any,
) -> Tensor | tuple[Tensor, Tensor] | None:
    """hidden_states (rows, tokens, heads, values), dt (rows, tokens, heads), A, D (heads,), B, C (rows, tokens, groups, keys),
    initial_states (rows, heads, values, keys)."""
    found = recurrence.kernels_that_work()
    if found is None or z is not None or seq_idx is not None or not recurrence.suits(B, hidden_states):
        return None
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(min=dt_limit[0], max=dt_limit[1]).float()
    x = hidden_states.float()
    rows, _, heads, values = x.shape
    start = x.new_zeros(rows, heads, B.shape[-1], values) if initial_states is None else initial_states.float().mT
    given = (C.float(), B.float(), x * dt[..., None], (A.float() * dt).exp(), None)
    out, state = recurrence.Recurrence.apply(found, *given, start)  # type: ignore[no-untyped-call]
    out = out if D is None else out + D[..., None] * x
    return (out, state.mT.contiguous()) if return_final_states else out


def _state_update(
    state: Tensor,
    hidden_states: Tensor,
    dt: Tensor,
    A: Tensor,
    B: Tensor,
    C: Tensor,
    D: Tensor | None = None,
    *,
    z: Tensor | None = None,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    **_others: Any,
) -> Tensor | None:
    """One token: state (rows, heads, values, keys), changed in place; hidden_states (rows, heads, values); dt like it, A (heads,
    values, keys), D, dt_bias (heads, values), each of a head alike; B, C (rows, groups, keys)."""
    found = recurrence.kernels_that_work()
    alike = dt.stride(-1) == 0 and A.stride()[-2:] == (0, 0)
    ready = state.dtype == torch.float32 and state.is_contiguous() and not torch.is_grad_enabled()
    if found is None or z is not None or not (alike and ready and recurrence.suits(B, hidden_states)):
        return None
    dt = dt[..., 0] if dt_bias is None else dt[..., 0] + dt_bias[..., 0].to(dt.dtype)
    dt = (F.softplus(dt) if dt_softplus else dt).float()
    x = hidden_states.float()
    out = recurrence.step(found, C.float(), B.float(), x * dt[..., None], (A[:, 0, 0].float() * dt).exp(), state)
    return (out if D is None else out + x * D).to(hidden_states.dtype)


_BETTER: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba2_selective_state_update": _state_update,
}
"""transformers' functions, and what gives the same; None where it is not for the kernels."""
