"""Changes to the layers of a model that transformers computes: caches, recomputation, recurrent layers, unembedding."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import wraps
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, is_grad_enabled, nn
from torch.func import functional_call
from torch.utils.checkpoint import checkpoint

from sapo_backends.errors import BackendError
from sapo_backends.torch_backend import recurrence
from sapo_backends.torch_backend.ops import apply_softcap

# transformers' caches: what their layers keep, and one layer's part of a cache.


def only_keys_and_values(config: Any) -> bool:
    """Whether no layer keeps the state of a convolution or of linear attention; also False if a config does not say."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer, LinearAttentionCacheLayerMixin

    try:
        layers = DynamicCache(config=config).layers
    except (AttributeError, KeyError, ValueError):  # an architecture with its own kind of cache
        return False
    return bool(layers) and all(
        isinstance(layer, DynamicLayer) and not isinstance(layer, LinearAttentionCacheLayerMixin) for layer in layers
    )


def gather_layer(layer: Any, owner: Tensor | None) -> Any:
    """A writable copy of a layer's part of a cache, leaving the original unchanged. owner: None for the same rows, else
    (N,), for rows that continue these; their states are not needed afterwards."""
    own = copy.copy(layer)
    for name, value in vars(layer).items():
        if isinstance(value, dict):  # states by index
            setattr(own, name, dict(value))
    if owner is not None:
        own.reorder_cache(owner)
        own.update_recurrent_state = lambda states, *_, **__: states  # in place it would overwrite what autograd kept
    return own


def replace_layers(cache: Any, places: Sequence[int], layers: Sequence[Any]) -> Any:
    """A cache with some layers replaced, those at `places`."""
    other = copy.copy(cache)
    other.layers = list(cache.layers)
    for place, layer in zip(places, layers, strict=True):
        other.layers[place] = layer
    return other


# Layers that keep only their inputs for the backward pass and recompute the rest when it is needed.
#
# Without kernels, transformers computes linear attention and state-space layers step by step, and
# autograd keeps each step: 0.2 to 0.5 MB per token and layer (docs/benchmarks/memory.md).


class CheckpointedForward:
    """Replaces a layer's forward. Gradient checkpointing (arXiv 1604.06174) with the weights of the forward pass, which
    the module no longer has at recomputation, and with the cache as it was before the layer."""

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
        cache, caches = None if name is None else named.pop(name), list[Any]()
        before = [] if cache is None else [cache.layers[place] for place in self._places]

        def compute(weights: Mapping[str, Tensor], before: Sequence[Any], *inputs: Any, **named: Any) -> Any:
            if name is not None:
                own = [gather_layer(layer, owner) for layer in before]
                caches[:] = caches or own  # set in the first pass
                named[name] = replace_layers(cache, self._places, own)
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
            for place, layer in zip(self._places, caches, strict=True):
                cache.layers[place] = layer
        return output

    def _compute(self, weights: Mapping[str, Tensor], *inputs: Any, **named: Any) -> Any:
        self._inside = True
        try:
            return functional_call(self._layer, dict(weights), inputs, named)
        finally:
            self._inside = False


class RecomputedLayers:
    """Makes all of a model's layers recompute. owner: for rows that continue prompts, each row's prompt in the cache,
    which stays unchanged."""

    def __init__(self, module: nn.Module, remember: Callable[[], AbstractContextManager[None]]) -> None:
        """remember: captures what a layer looks up besides its weights, so that the second pass finds the same."""
        from transformers.modeling_layers import GradientCheckpointingLayer

        self.remember = remember
        self.owner: Tensor | None = None
        for layer in list(module.modules()):
            if isinstance(layer, GradientCheckpointingLayer):
                layer.forward = CheckpointedForward(self, layer)

    @contextmanager
    def continuing(self, owner: Tensor) -> Iterator[None]:
        """During a forward pass and its recomputation, the rows continue these prompts of the cache."""
        self.owner = owner
        try:
            yield
        finally:
            self.owner = None


# Layers with a state in models that transformers computes, by the compiled kernels where these support them.
#
# transformers looks for such functions in packages that are for GPUs, and otherwise computes them in many
# operations, each of which reads and writes the states of all rows. They are replaced by name; if the name is missing,
# nothing is replaced.

CHUNK = 64
"""Maximum tokens that transformers' own functions process at once and pad to. The model's own setting, 256, is for
mamba_ssm's kernels: without these, 160 tokens of Granite 4.0 H with gradients take 2.7 times as long."""


def use_kernels(module: nn.Module) -> None:
    """Use the kernels from now on, in the modules that define a model's layers."""
    for file in {sys.modules[type(layer).__module__] for layer in module.modules()}:
        for name, better in _BETTER.items():
            original = vars(file).get(name)
            if original is not None and not hasattr(original, "by_kernels"):
                setattr(file, name, _either(original, better))


def _either(original: Callable[..., Any], better: Callable[..., Any]) -> Callable[..., Any]:
    fills_up = find_spec("mamba_ssm") is None

    @wraps(original)
    def either(*given: Any, **named: Any) -> Any:
        result = better(*given, **named)
        if result is not None:
            return result
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
    kernels = recurrence.kernels_that_work()
    if kernels is None or cu_seqlens is not None or not recurrence.suits_recurrence(query, value):
        return None
    q, k, v = query.float(), key.float(), value.float()
    if use_qk_l2norm_in_kernel:
        q, k = _unit(q), _unit(k)
    rows, _, heads, values = v.shape
    inputs = (q * q.shape[-1] ** -0.5, k, v, g.float().exp(), beta.float())
    state = v.new_zeros(rows, heads, q.shape[-1], values) if initial_state is None else initial_state.float()
    if state.is_contiguous() and not torch.is_grad_enabled():
        out = recurrence.advance_state(kernels, *inputs, state)  # in place: the cache takes over the returned state
    else:
        out, state = recurrence.NativeRecurrence.apply(kernels, *inputs, state)  # type: ignore[no-untyped-call]
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
    kernels = recurrence.kernels_that_work()
    if kernels is None or z is not None or seq_idx is not None or not recurrence.suits_recurrence(B, hidden_states):
        return None
    dt = dt if dt_bias is None else dt + dt_bias.to(dt.dtype)
    dt = (F.softplus(dt) if dt_softplus else dt).clamp(min=dt_limit[0], max=dt_limit[1]).float()
    x = hidden_states.float()
    rows, _, heads, values = x.shape
    start = x.new_zeros(rows, heads, B.shape[-1], values) if initial_states is None else initial_states.float().mT
    inputs = (C.float(), B.float(), x * dt[..., None], (A.float() * dt).exp(), None)
    out, state = recurrence.NativeRecurrence.apply(kernels, *inputs, start)  # type: ignore[no-untyped-call]
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
    """One token: state (rows, heads, values, keys), changed in place; hidden_states (rows, heads, values); dt like it;
    A (heads, values, keys), D, dt_bias (heads, values), each constant within a head; B, C (rows, groups, keys)."""
    kernels = recurrence.kernels_that_work()
    alike = dt.stride(-1) == 0 and A.stride()[-2:] == (0, 0)
    ready = state.dtype == torch.float32 and state.is_contiguous() and not torch.is_grad_enabled()
    if kernels is None or z is not None or not (alike and ready and recurrence.suits_recurrence(B, hidden_states)):
        return None
    dt = dt[..., 0] if dt_bias is None else dt[..., 0] + dt_bias[..., 0].to(dt.dtype)
    dt = (F.softplus(dt) if dt_softplus else dt).float()
    x = hidden_states.float()
    out = recurrence.step_state(
        kernels, C.float(), B.float(), x * dt[..., None], (A[:, 0, 0].float() * dt).exp(), state
    )
    return (out if D is None else out + x * D).to(hidden_states.dtype)


_BETTER: dict[str, Callable[..., Any]] = {
    "torch_chunk_gated_delta_rule": _delta_rule,
    "torch_recurrent_gated_delta_rule": _delta_rule,
    "mamba2_chunk_scan": _chunk_scan,
    "mamba2_selective_state_update": _state_update,
}
"""transformers' functions -> the equivalent; it returns None if the kernels do not support the call."""


# The hidden states before a transformers model's unembedding, and how the model turns them into logits.
#
# A model's own forward pass computes logits of every token, which for a vocabulary of 150k is most of its memory. A
# hook before the unembedding takes the hidden states out and passes only one token on.

TOLERANCE = 1e-2
"""Tolerance of logits, relative to the largest: what bfloat16 rounds."""


@dataclass(frozen=True, slots=True)
class HeadRule:
    """logits = c tanh(scale W x / c), c = softcap, without tanh if it is 0."""

    scale: float
    softcap: float


class UnembeddingTap:
    """name: of the unembedding's weight among the model's parameters."""

    def __init__(self, module: nn.Module) -> None:
        """Raises BackendError for a module without an unembedding."""
        self._module: Any = module
        self._head = getattr(module, "get_output_embeddings", lambda: None)()
        if not isinstance(self._head, nn.Linear):
            raise BackendError("This architecture has no output layer that predicts tokens; choose another model.")
        self.name = next(name for name, tensor in module.named_parameters() if tensor is self._head.weight)
        self.bias = next((n for n, tensor in module.named_parameters() if tensor is self._head.bias), None)
        self._mode, self._states = "", list[Tensor]()
        self._rule: HeadRule | str | None = "unknown"
        self._head.register_forward_pre_hook(self._before)

    def _before(self, _head: nn.Module, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...] | None:
        if not self._mode:
            return None
        if self._mode == "last":
            return (_apart(inputs[0][:, -1:]),)
        self._states.append(inputs[0])
        return (_apart(inputs[0][:1, -1:].detach()),)

    @contextmanager
    def _in_mode(self, mode: str) -> Iterator[None]:
        self._mode = mode
        try:
            yield
        finally:
            self._mode = ""

    def capturing(self) -> Any:
        """A context for a forward pass whose hidden states are kept for `taken`."""
        return self._in_mode("capture")

    def last_only(self) -> Any:
        """A context for a forward pass that computes only the logits of each row's last token."""
        return self._in_mode("last")

    def taken(self) -> Tensor:
        """The hidden states (rows, T, hidden) of the last forward pass."""
        return self._states.pop()

    def logits(self, hidden: Tensor, parameters: Mapping[str, Tensor]) -> Tensor:
        """W x + b of hidden (N, width), for models without a known HeadRule: they only have a bias."""
        bias = None if self.bias is None else parameters[self.bias].to(hidden.dtype)
        return F.linear(hidden, parameters[self.name].to(hidden.dtype), bias)

    def rule(self, model: Any) -> HeadRule | None:
        """How a TransformersModel computes logits, found once by comparing with its own; None if only a bias is added.

        Raises BackendError if neither reproduces the model's logits, so that no wrong logits are ever trained on.
        """
        if isinstance(self._rule, str):
            self._rule = self._found(model)
        return self._rule

    @torch.no_grad()
    def _found(self, model: Any) -> HeadRule | None:
        ids = torch.arange(3, 11, device=model.device)[None]
        positions, bound = torch.arange(ids.shape[1], device=model.device)[None], model.weights(None)
        with self.capturing():
            own = model.forward(bound, positions, input_ids=ids, use_cache=False).logits[0, -1].float()
        hidden = self.taken()[0, -1:]
        table, config = bound.parameters[self.name].to(hidden.dtype), self._module.config.get_text_config()
        scales = (1.0, 1.0 / float(getattr(config, "logits_scaling", 0) or 1), getattr(config, "logit_scale", 0) or 1)
        caps = (0.0, float(getattr(config, "final_logit_softcapping", 0) or 0))

        def same(logits: Tensor) -> bool:
            return bool((logits[0].float() - own).abs().max() <= TOLERANCE * own.abs().max().clamp_(min=1e-6))

        for scale in scales:
            for cap in caps:
                if self.bias is None and same(apply_softcap(F.linear(hidden * float(scale), table).float(), cap)):
                    return HeadRule(float(scale), cap)
        if same(self.logits(hidden, bound.parameters)):
            return None
        raise BackendError(
            "This architecture does something to its output that is not known here, so training it would be wrong. "
            "Choose another model."
        )


def _apart(few: Tensor) -> Tensor:
    """The rows in separate memory: for a slice of a larger tensor, the product would be computed with a transposed copy
    of the whole unembedding, which takes seconds for a large vocabulary. contiguous() does not copy a slice of a
    single row."""
    return few.clone(memory_format=torch.contiguous_format)
