"""Any other Hugging Face causal language model, computed by transformers behind the interface of model.py.

Slower than our own decoder and imported only when needed. Its parameters become views of one flat tensor, so that
training, checkpoints and adapters are the same code for both.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sapo_backends.base import BackendError, BackendUnavailable, ModelNotFound, TokenIds
from sapo_backends.torch_backend.model.flat_parameters import Entry, Layout, Part
from sapo_backends.torch_backend.model.lora import PREFIX, LoraWeights
from sapo_backends.torch_backend.ops.logprobs import TokenLogprobs
from sapo_backends.torch_backend.ops.packing import Packed


@dataclass(frozen=True, slots=True)
class Bound:
    """What one forward pass computes with: parameters by name, and the adapter if there is one."""

    parameters: Mapping[str, Tensor]
    adapter: LoraWeights | None


def read_module(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The model by transformers: safetensors only, no code from the folder. Raises BackendUnavailable,
    ModelNotFound."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise BackendUnavailable(
            "This architecture needs transformers.", "pip install 'sapo-desktop[torch]'"
        ) from error
    try:
        module: nn.Module = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, trust_remote_code=False, use_safetensors=True, local_files_only=True
        )
    except (ValueError, KeyError, OSError, ImportError) as error:
        raise ModelNotFound(f"transformers cannot load {folder}: {error}") from error
    return module


class TransformersModel:
    """See model.Model. One thread at a time."""

    def __init__(self, module: nn.Module, device: torch.device, compute: torch.dtype) -> None:
        self.module, self.compute = module.eval().to(device), compute
        named = dict(module.named_parameters())
        self.layout = Layout([Entry(n, tuple(p.shape), (Part(n, len(p)),)) for n, p in named.items()])
        self.base = torch.empty(self.layout.size, dtype=next(iter(named.values())).dtype, device=device)
        for name, view in self.layout.views(self.base).items():
            view.copy_(named[name].detach())
            named[name].requires_grad_(False)
            named[name].data = view
        self.adapter_layout: Layout | None = None
        self.flat: Tensor | None = None
        self.rank, self.alpha = 0, 0.0
        self._adapter: LoraWeights | None = None
        self._takes_positions = "position_ids" in inspect.signature(module.forward).parameters

    @property
    def device(self) -> torch.device:
        """Where the weights lie."""
        return self.base.device

    @property
    def computed_by(self) -> str:
        """See Model.computed_by."""
        return "transformers"

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

    def weights(self, trained: Mapping[str, Tensor] | None) -> Bound:
        """See Model.weights."""
        if self.adapter_layout is None and trained is not None:
            return Bound(trained, None)
        adapter = None if trained is None else LoraWeights(trained, self.rank, self.alpha / self.rank)
        return Bound(self.layout.views(self.base.to(self.compute)), adapter)

    def decode_weights(self, trained: Mapping[str, Tensor] | None) -> Bound:
        """See Model.decode_weights."""
        return self.weights(trained)

    def forward(self, bound: Bound, positions: Tensor, **inputs: Any) -> Any:
        """transformers' output for input_ids (rows, T) at positions (rows, T)."""
        if self._takes_positions:
            inputs["position_ids"] = positions
        self._adapter = bound.adapter
        try:
            return functional_call(self.module, dict(bound.parameters), (), inputs)
        finally:
            self._adapter = None

    def session(self, prompts: Sequence[TokenIds], owner: Tensor, _steps: int, weights: Bound) -> TransformersSession:
        """See Model.session."""
        return TransformersSession(self, prompts, owner, weights)

    def token_logprobs(self, packed: Packed, weights: Bound, temperature: float) -> TokenLogprobs:
        """See Model.token_logprobs."""
        texts = [[*prompt, *completion[:-1]] for prompt, completion in packed.pairs]
        width = max(map(len, texts))
        rows = torch.tensor([text + [0] * (width - len(text)) for text in texts], device=self.device)
        prompts = torch.tensor([len(prompt) for prompt, _ in packed.pairs], device=self.device)
        positions = torch.arange(rows.shape[1], device=rows.device).expand_as(rows)
        logits = self.forward(weights, positions, input_ids=rows, use_cache=False).logits
        first = torch.searchsorted(packed.sequence, torch.arange(len(rows), device=rows.device))
        step = torch.arange(len(packed.targets), device=rows.device) - first[packed.sequence]
        at = prompts[packed.sequence] - 1 + step
        logprobs = (logits[packed.sequence, at].float() / temperature).log_softmax(dim=-1)  # (T, V)
        entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(dim=-1)
        return TokenLogprobs(logprobs.gather(1, packed.targets[:, None])[:, 0], entropy)

    @torch.no_grad()
    def merged(self) -> dict[str, Tensor]:
        """Weights by name, the adapter added in float32, in the type they are stored in."""
        result = {name: view.clone() for name, view in self.layout.views(self.base).items()}
        if self.adapter_layout is not None and self.flat is not None:
            adapter = self.adapter_layout.views(self.flat)
            for name in self.linear_layers():
                delta = adapter[f"{name}.B0"] @ adapter[f"{name}.A"] * (self.alpha / self.rank)
                weight = result[f"{name}.weight"]
                result[f"{name}.weight"] = (weight.float() + delta).to(weight.dtype)
        return result


class TransformersSession:
    """Decoding with transformers' own cache: each prompt prefilled once, then its cache repeated for its group."""

    def __init__(self, model: TransformersModel, prompts: Sequence[TokenIds], owner: Tensor, weights: Bound) -> None:
        self._model, self._weights = model, weights
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=model.device)
        real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
        positions = (real.cumsum(dim=1) - 1).clamp_(min=0)
        output = model.forward(weights, positions, input_ids=ids, attention_mask=real, use_cache=True)
        self._cache: Any = getattr(output, "past_key_values", None)
        if not hasattr(self._cache, "batch_select_indices"):
            raise BackendError("This architecture keeps a state that a group cannot share; choose another model.")
        self._real, self._positions = real, positions[:, -1:]
        self.logits: Tensor = output.logits[:, -1]
        self.keep(owner)

    def keep(self, rows: Tensor) -> None:
        """See Session.keep."""
        self._cache.batch_select_indices(rows)
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
            past_key_values=self._cache,
            use_cache=True,
        ).logits[:, -1]
