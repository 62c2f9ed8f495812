"""Any other Hugging Face causal language model, computed by transformers behind the interface of model.py.

Slower than our own decoder and imported only when needed. Its parameters become views of one flat tensor, so that
training, checkpoints and adapters are the same code for both. Of the hidden states only those that predict something go
through the unembedding, in chunks; prompts are computed once for all rows that continue them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sapo_backends.base import BackendError, TokenIds
from sapo_backends.checkpoints.families import LANGUAGE_PARTS
from sapo_backends.common.update import Pair, plan_micro_batches
from sapo_backends.common.widths import usual_widths
from sapo_backends.torch_backend.fallback.caches import only_keys_and_values
from sapo_backends.torch_backend.fallback.completions import CompletionStates
from sapo_backends.torch_backend.fallback.padding import padded_left
from sapo_backends.torch_backend.fallback.recompute import RecomputedLayers
from sapo_backends.torch_backend.fallback.recurrent_layers import use_kernels
from sapo_backends.torch_backend.fallback.unembedding import UnembeddingTap
from sapo_backends.torch_backend.model.flat_parameters import Entry, Layout, Part, move
from sapo_backends.torch_backend.model.lora import PREFIX, LoraWeights
from sapo_backends.torch_backend.ops.logprobs import TokenLogprobs, chosen_logprobs
from sapo_backends.torch_backend.ops.packing import Packed


@dataclass(frozen=True, slots=True)
class Bound:
    """What one forward pass computes with: parameters by name, and the adapter if there is one."""

    parameters: Mapping[str, Tensor]
    adapter: LoraWeights | None


class TransformersModel:
    """See model.Model. One thread at a time."""

    def __init__(self, module: nn.Module, device: torch.device, compute: torch.dtype) -> None:
        self.module, self.compute = module.eval(), compute
        named = dict(module.named_parameters())
        self.layout = Layout([Entry(n, tuple(p.shape), (Part(n, len(p)),)) for n, p in named.items()])
        self.base = torch.empty(self.layout.size, dtype=next(iter(named.values())).dtype, device=device)
        for name, view in move(named, self.layout.views(self.base)):
            named[name].requires_grad_(False)
            named[name].data = view
        module.to(device)  # what is left: buffers. The weights were never there twice
        use_kernels(module)
        self.adapter_layout: Layout | None = None
        self.flat: Tensor | None = None
        self.rank, self.alpha = 0, 0.0
        self._adapter: LoraWeights | None = None
        known = inspect.signature(module.forward).parameters
        self._has_state = bool(_widths(module)["recurrent"])
        again = self._has_state and not only_keys_and_values(module.config)
        self._predicting = CompletionStates(self, RecomputedLayers(module, self._remembered) if again else None)
        self._takes_positions = "position_ids" in known
        self._cache_name = "cache" if "cache" in known else "past_key_values"  # from transformers 5.24 on, and before
        self.head = UnembeddingTap(module)

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.base.device

    @property
    def computed_by(self) -> str:
        """See Model.computed_by."""
        return "transformers"

    @property
    def token_bytes(self) -> int:
        """See Model.token_bytes; by the usual names of the config, as if every layer kept keys and values."""
        widths = _widths(self.module)
        return 2 * widths["layers"] * widths["key_value"] * self.compute.itemsize

    @property
    def config(self) -> dict[str, Any] | None:
        """See Model.config. Of some multimodal models only the language part is read, a class with names of its own."""
        config: Any = self.module.config
        name = type(self.module).__name__
        if name in (config.architectures or ()) and name not in LANGUAGE_PARTS:
            return None
        told: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
        told.pop("_name_or_path", None)  # a folder of this machine
        return {**told, "architectures": [name]}

    def linear_layers(self) -> dict[str, nn.Linear]:
        """Every linear layer but the unembedding, by its name."""
        head = getattr(self.module, "get_output_embeddings", lambda: None)()
        return {n: m for n, m in self.module.named_modules() if isinstance(m, nn.Linear) and m is not head}

    def lora_layout(self, rank: int) -> Layout:
        """Hook an adapter to every linear layer; gives the layout of its tensors."""
        layers = self.linear_layers()
        if not layers:
            raise BackendError("This architecture has no linear layers for an adapter. Choose the method full.")
        entries = []
        for name, layer in layers.items():
            entries.append(
                Entry(f"{name}.A", (rank, layer.in_features), (Part(f"{PREFIX}{name}.lora_A.weight", rank),))
            )
            up = (Part(f"{PREFIX}{name}.lora_B.weight", layer.out_features),)
            entries.append(Entry(f"{name}.B0", (layer.out_features, rank), up))
            layer.register_forward_hook(self._hook(name))
        return Layout(entries)

    def _hook(self, name: str) -> Any:
        def add(_layer: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
            return output if self._adapter is None else output + self._adapter.delta(name, inputs[0])

        return add

    def _remembered(self) -> AbstractContextManager[None]:
        adapter = self._adapter

        @contextmanager
        def again() -> Iterator[None]:
            self._adapter = adapter
            try:
                yield
            finally:
                self._adapter = None

        return again()

    def weights(self, trained: Mapping[str, Tensor] | None) -> Bound:
        """See Model.weights."""
        if self.adapter_layout is None and trained is not None:
            return Bound(trained, None)
        adapter = None if trained is None else LoraWeights(trained, self.rank, self.alpha / self.rank)
        return Bound(self.layout.views(self.base.to(self.compute)), adapter)

    def decode_weights(self, trained: Mapping[str, Tensor] | None) -> Bound:
        """See Model.decode_weights."""
        return self.weights(trained)

    def hidden_states(self, bound: Bound, positions: Tensor, **inputs: Any) -> tuple[Tensor, Any]:
        """What goes into the unembedding (rows, T, hidden), for input_ids (rows, T) at positions (rows, T), and the
        cache."""
        with self.head.capturing():
            output = self.forward(bound, positions, **inputs)
        return self.head.taken(), getattr(output, "past_key_values", None)

    def forward(self, bound: Bound, positions: Tensor, **inputs: Any) -> Any:
        """transformers' output for input_ids (rows, T) at positions (rows, T)."""
        if self._takes_positions:
            inputs["position_ids"] = positions
        if "cache" in inputs:
            inputs[self._cache_name] = inputs.pop("cache")
        self._adapter = bound.adapter
        if self._has_state:  # decays make numbers near 1e-40, and products of these take a hundred times as long
            torch.set_flush_denormal(True)
        try:
            return functional_call(self.module, dict(bound.parameters), (), inputs)
        finally:
            self._adapter = None

    def session(self, prompts: Sequence[TokenIds], owner: Tensor, _steps: int, weights: Bound) -> TransformersSession:
        """See Model.session."""
        return TransformersSession(self, prompts, owner, weights)

    def micro_batches(self, pairs: Sequence[Pair], budget: int, workers: int) -> list[list[int]]:
        """See Model.micro_batches."""
        if not self._predicting.shares:  # each row has its prompt to itself
            pairs = [((), (*prompt, *completion) if completion else ()) for prompt, completion in pairs]
        return plan_micro_batches(pairs, budget, workers)

    def token_logprobs(self, packed: Packed, weights: Bound, temperature: float) -> TokenLogprobs:
        """See Model.token_logprobs."""
        masks = packed.masks or [None] * len(packed.pairs)
        every = [mask or (True,) * len(pair[1]) for mask, pair in zip(masks, packed.pairs, strict=True)]
        step = torch.tensor([i for mask in every for i, counts in enumerate(mask) if counts], device=self.device)
        states = self._predicting(packed, weights)  # (rows, completion, hidden)
        hidden = states[packed.sequence, step]
        rule = self.head.rule(self)
        if rule is None:
            return _in_full(self.head.logits(hidden, weights.parameters) / temperature, packed.targets)
        table = weights.parameters[self.head.name].to(hidden.dtype)
        return chosen_logprobs(hidden * rule.scale, table, packed.targets, temperature, rule.softcap)

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """See Model.merged. What the architecture keeps as buffers belongs to its weights."""
        buffers = dict(self.module.named_buffers())
        result = {name: tensor.clone() for name, tensor in self.module.state_dict().items() if name in buffers}
        result |= {name: view.clone() for name, view in self.layout.views(self.base).items()}
        if self.adapter_layout is not None and self.flat is not None:
            adapter = self.adapter_layout.views(self.flat)
            for name in self.linear_layers():
                delta = adapter[f"{name}.B0"] @ adapter[f"{name}.A"] * (self.alpha / self.rank)
                weight = result[f"{name}.weight"]
                result[f"{name}.weight"] = (weight.float() + delta).to(weight.dtype)
        return result

    def close(self) -> None:
        """See Model.close. Its hooks keep the module in memory for a while: the weights go by themselves."""
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            tensor.data = torch.empty(0)
        self.base, self.flat = torch.empty(0), None


class TransformersSession:
    """Decoding with transformers' own cache: each prompt prefilled once, then its cache repeated for its group."""

    def __init__(self, model: TransformersModel, prompts: Sequence[TokenIds], owner: Tensor, weights: Bound) -> None:
        self._model, self._weights = model, weights
        real, ids = padded_left(prompts, model.device)
        positions = (real.cumsum(dim=1) - 1).clamp_(min=0)
        with model.head.last_only():
            output = model.forward(weights, positions, input_ids=ids, attention_mask=real, use_cache=True)
        self._cache: Any = getattr(output, "past_key_values", None)
        if not hasattr(self._cache, "reorder_cache"):
            raise BackendError("This architecture keeps a state that a group cannot share; choose another model.")
        self._real, self._positions = real, positions[:, -1:]
        self.logits: Tensor = output.logits[:, -1]
        self.keep(owner)

    def keep(self, rows: Tensor) -> None:
        """See Session.keep."""
        self._cache.reorder_cache(rows)
        self._real, self._positions, self.logits = self._real[rows], self._positions[rows], self.logits[rows]

    def step(self, tokens: Tensor) -> None:
        """See Session.step."""
        self._real = torch.cat((self._real, self._real.new_ones(len(tokens), 1)), dim=1)
        self._positions = self._positions + 1
        self.logits = self._model.forward(
            self._weights,
            self._positions,
            input_ids=tokens[:, None],
            attention_mask=self._real,
            cache=self._cache,
            use_cache=True,
        ).logits[:, -1]


def _widths(module: nn.Module) -> dict[str, int]:
    config: Any = module.config
    return usual_widths(config.get_text_config().to_dict())


def _in_full(logits: Tensor, targets: Tensor) -> TokenLogprobs:
    """Of logits (T, V) that only the model itself can make."""
    logprobs = logits.float().log_softmax(dim=-1)
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(dim=-1)
    return TokenLogprobs(logprobs.gather(1, targets[:, None])[:, 0], entropy)
