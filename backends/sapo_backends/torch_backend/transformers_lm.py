"""Any other Hugging Face causal language model, computed by transformers behind the interface of our own."""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import functional_call

from sapo_backends.base import TokenIds
from sapo_backends.checkpoints.spec import LANGUAGE_PARTS
from sapo_backends.common.round_memory import usual_widths
from sapo_backends.common.update import Pair, plan_micro_batches
from sapo_backends.errors import BackendError, BackendUnavailable, ModelNotFound
from sapo_backends.packages import install_command
from sapo_backends.torch_backend.decoder import PREFIX, FusedPart, FusedTensor, LoraWeights, TensorLayout, move_tensors
from sapo_backends.torch_backend.ops import TokenLogprobs, chosen_logprobs
from sapo_backends.torch_backend.packing import PackedBatch, pack_micro_batch
from sapo_backends.torch_backend.transformers_layers import (
    RecomputedLayers,
    UnembeddingTap,
    only_keys_and_values,
    use_kernels,
)

# Loading a model with transformers.


def read_module(folder: Path, dtype: torch.dtype) -> nn.Module:
    """The model loaded by transformers: safetensors only, no code from the folder. Raises BackendUnavailable,
    ModelNotFound."""
    try:
        from transformers import AutoModelForCausalLM
    except ImportError as error:
        raise BackendUnavailable(
            "This architecture needs transformers.", install_command("transformers", "peft")
        ) from error
    try:
        module: nn.Module
        module, info = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            trust_remote_code=False,
            use_safetensors=True,
            local_files_only=True,
            output_loading_info=True,
        )
    except (ValueError, KeyError, OSError, ImportError, RuntimeError) as error:
        reason = next(iter(str(error).splitlines()), "")  # further lines list every known class
        if reason.startswith("Unrecognized configuration class"):
            reason = "it has no causal language model for that architecture. Choose a model that only writes text."
        raise ModelNotFound(f"transformers cannot load {folder}: {reason[:400]}") from error
    if missing := info["missing_keys"]:  # transformers gave them random values
        raise ModelNotFound(f"{folder} lacks {len(missing)} tensors, for one {min(missing)}.")
    if any(not tensor.is_floating_point() or tensor.element_size() < 2 for tensor in module.parameters()):
        raise BackendError(f"{folder.name} has quantised weights. Choose the same model before it was quantised.")
    return module


# Rows of token ids padded to one length, as transformers takes them.


def padded_left(prompts: Sequence[TokenIds], device: torch.device) -> tuple[Tensor, Tensor]:
    """The mask (1 for real tokens) and the tokens, each (prompts, longest)."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + list(p) for p in prompts], device=device)
    real = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=device)
    return real, ids


def padded_right(texts: Sequence[TokenIds], width: int, device: torch.device) -> Tensor:
    """(texts, width), padded with 0."""
    return torch.tensor([[*text, *[0] * (width - len(text))] for text in texts], device=device)


# Computes the hidden states that predict completions: each prompt once for all rows that continue it.

TOLERANCE = {torch.float32: 1e-3}
ROUNDED = 0.1
"""Maximum relative difference of hidden states, and of a gradient, that rounding explains even in coarse types: a state
that was not passed on makes the difference 0.3 or more."""


class CompletionStates:
    """The hidden states of a TransformersModel that predict completions. layers: for models whose layers are
    recomputed."""

    def __init__(self, model: Any, layers: RecomputedLayers | None) -> None:
        self._model, self._layers = model, layers
        self._shares: bool | None = only_keys_and_values(model.module.config) or None

    @property
    def shares(self) -> bool:
        """Whether a prompt is computed once. For layers with a state it depends on the architecture and on
        transformers' version whether several tokens can continue one, so it is tried out, with a gradient."""
        if self._shares is None:
            self._shares = self._is_the_same()
        return self._shares

    def __call__(self, packed: PackedBatch, weights: Any) -> Tensor:
        """(rows, longest completion, hidden) of a batch."""
        longest = max(len(completion) for _, completion in packed.pairs)
        prompts = len({prompt for prompt, _ in packed.pairs})
        if prompts < len(packed.pairs) and longest > 1 and self.shares:
            return self._shared(packed, weights, longest)
        return self._repeated(packed, weights, longest)

    def _shared(self, packed: PackedBatch, weights: Any, longest: int) -> Tensor:
        model = self._model
        prompts = list(dict.fromkeys(prompt for prompt, _ in packed.pairs))
        real, ids = padded_left(prompts, model.device)
        positions = (real.cumsum(dim=1) - 1).clamp_(min=0)
        inputs = {"input_ids": ids, "attention_mask": real, "use_cache": True}
        states, cache = model.hidden_states(weights, positions, **inputs)
        number = {prompt: i for i, prompt in enumerate(prompts)}
        owner = torch.tensor([number[prompt] for prompt, _ in packed.pairs], device=model.device)
        rows = padded_right([completion[:-1] for _, completion in packed.pairs], longest - 1, model.device)
        offset = positions[owner, -1:] + 1 + torch.arange(longest - 1, device=model.device)
        mask = torch.cat((real[owner], torch.ones_like(rows)), dim=1)
        inputs = {"input_ids": rows, "attention_mask": mask, "cache": cache, "use_cache": True}
        if self._layers is None:
            cache.reorder_cache(owner)
            continued, _ = model.hidden_states(weights, offset, **inputs)
        else:
            with self._layers.continuing(owner):
                continued, _ = model.hidden_states(weights, offset, **inputs)
        return torch.cat((states[owner, -1:], continued), dim=1)

    def _repeated(self, packed: PackedBatch, weights: Any, longest: int) -> Tensor:
        """The same, with a copy of the prompt for each row."""
        model = self._model
        texts = [[*prompt, *completion[:-1]] for prompt, completion in packed.pairs]
        rows = padded_right(texts, max(map(len, texts)), model.device)
        positions = torch.arange(rows.shape[1], device=model.device).expand_as(rows)
        states, _ = model.hidden_states(weights, positions, input_ids=rows, use_cache=False)
        first = torch.tensor([len(prompt) - 1 for prompt, _ in packed.pairs], device=model.device)
        place = (first[:, None] + torch.arange(longest, device=model.device)).clamp_(max=rows.shape[1] - 1)
        predicting: Tensor = states.gather(1, place[:, :, None].expand(-1, -1, states.shape[2]))
        return predicting

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _is_the_same(self) -> bool:
        """Compares both ways on two short prompts and three completions, with the gradient of the first weight that is
        a vector, whose path goes through all later layers."""
        model = self._model
        pairs = [((3, 4, 5, 6, 7), (8, 9, 10)), ((3, 4, 5, 6, 7), (5, 3, 4)), ((9, 4, 8), (6, 7, 3))]
        packed, bound = pack_micro_batch(pairs, list(range(len(pairs))), model.device), model.weights(None)
        name = next(name for name, tensor in bound.parameters.items() if tensor.ndim == 1)
        results = list[Tensor]()
        for compute in (self._shared, self._repeated):
            leaf = bound.parameters[name].detach().clone().requires_grad_()
            try:
                states = compute(packed, type(bound)({**bound.parameters, name: leaf}, None), 3)
                wave = torch.linspace(0.0, 9.0, states.numel(), device=model.device).cos().view_as(states)
                gradient = torch.autograd.grad((states.float() * wave).sum(), leaf)[0]
            except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError):
                return False  # transformers' way of saying that it cannot
            results += [states.detach().float(), gradient.float()]
        most = TOLERANCE.get(model.compute, ROUNDED)
        distances = [float((a - b).norm() / b.norm()) for a, b in zip(results[:2], results[2:], strict=True)]
        return all(math.isfinite(distance) and distance <= most for distance in distances)


# Any other Hugging Face causal language model, computed by transformers behind the interface of causal_lm.py.
#
# Slower than our own decoder and imported only when needed. Its parameters become views of one flat tensor, so that
# training, checkpoints and adapters share their code. Only hidden states that predict something go
# through the unembedding, in chunks; prompts are computed once for all rows that continue them.


@dataclass(frozen=True, slots=True)
class BoundWeights:
    """The parameters by name for one forward pass, and the adapter if there is one."""

    parameters: Mapping[str, Tensor]
    adapter: LoraWeights | None


class TransformersModel:
    """See causal_lm.CausalModel. One thread at a time."""

    def __init__(self, module: nn.Module, device: torch.device, compute: torch.dtype) -> None:
        self.module, self.compute = module.eval(), compute
        named = dict(module.named_parameters())
        self.layout = TensorLayout([FusedTensor(n, tuple(p.shape), (FusedPart(n, len(p)),)) for n, p in named.items()])
        self.base = torch.empty(self.layout.size, dtype=next(iter(named.values())).dtype, device=device)
        for name, view in move_tensors(named, self.layout.views(self.base)):
            named[name].requires_grad_(False)
            named[name].data = view
        module.to(device)  # only buffers are left: the weights were never held twice
        use_kernels(module)
        self.adapter_layout: TensorLayout | None = None
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
        """See CausalModel.computed_by."""
        return "transformers"

    @property
    def token_bytes(self) -> int:
        """See CausalModel.token_bytes; by the usual names of the config, as if every layer kept keys and values."""
        widths = _widths(self.module)
        return 2 * widths["layers"] * widths["key_value"] * self.compute.itemsize

    @property
    def config(self) -> dict[str, Any] | None:
        """See CausalModel.config. From some multimodal models only the language part is loaded, a class with its own
        names."""
        config: Any = self.module.config
        name = type(self.module).__name__
        if name in (config.architectures or ()) and name not in LANGUAGE_PARTS:
            return None
        settings: dict[str, Any] = json.loads(config.to_json_string(use_diff=False))
        settings.pop("_name_or_path", None)  # a folder of this machine
        return {**settings, "architectures": [name]}

    def linear_layers(self) -> dict[str, nn.Linear]:
        """Every linear layer except the unembedding, by its name."""
        head = getattr(self.module, "get_output_embeddings", lambda: None)()
        return {n: m for n, m in self.module.named_modules() if isinstance(m, nn.Linear) and m is not head}

    def lora_layout(self, rank: int) -> TensorLayout:
        """Hook an adapter to every linear layer; returns the layout of its tensors."""
        layers = self.linear_layers()
        if not layers:
            raise BackendError("This architecture has no linear layers for an adapter. Choose the method full.")
        entries = []
        for name, layer in layers.items():
            entries.append(
                FusedTensor(f"{name}.A", (rank, layer.in_features), (FusedPart(f"{PREFIX}{name}.lora_A.weight", rank),))
            )
            up = (FusedPart(f"{PREFIX}{name}.lora_B.weight", layer.out_features),)
            entries.append(FusedTensor(f"{name}.B0", (layer.out_features, rank), up))
            layer.register_forward_hook(self._hook(name))
        return TensorLayout(entries)

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

    def weights(self, trained: Mapping[str, Tensor] | None) -> BoundWeights:
        """See CausalModel.weights."""
        if self.adapter_layout is None and trained is not None:
            return BoundWeights(trained, None)
        adapter = None if trained is None else LoraWeights(trained, self.rank, self.alpha / self.rank)
        return BoundWeights(self.layout.views(self.base.to(self.compute)), adapter)

    @property
    def rounds_rollouts(self) -> bool:
        """See CausalModel.rounds_rollouts."""
        return False

    def decode_weights(self, trained: Mapping[str, Tensor] | None, for_training: bool = False) -> BoundWeights:
        """See CausalModel.decode_weights."""
        del for_training
        return self.weights(trained)

    def hidden_states(self, bound: BoundWeights, positions: Tensor, **inputs: Any) -> tuple[Tensor, Any]:
        """The unembedding's input (rows, T, hidden), for input_ids (rows, T) at positions (rows, T), and the
        cache."""
        with self.head.capturing():
            output = self.forward(bound, positions, **inputs)
        return self.head.taken(), getattr(output, "past_key_values", None)

    def forward(self, bound: BoundWeights, positions: Tensor, **inputs: Any) -> Any:
        """transformers' output for input_ids (rows, T) at positions (rows, T)."""
        if self._takes_positions:
            inputs["position_ids"] = positions
        if "cache" in inputs:
            inputs[self._cache_name] = inputs.pop("cache")
        self._adapter = bound.adapter
        if self._has_state:  # decays lead to numbers near 1e-40, whose products take a hundred times as long
            torch.set_flush_denormal(True)
        try:
            return functional_call(self.module, dict(bound.parameters), (), inputs)
        finally:
            self._adapter = None

    def session(
        self, prompts: Sequence[TokenIds], owner: Tensor, _steps: int, weights: BoundWeights
    ) -> TransformersSession:
        """See CausalModel.session."""
        return TransformersSession(self, prompts, owner, weights)

    def micro_batches(self, pairs: Sequence[Pair], budget: int, workers: int) -> list[list[int]]:
        """See CausalModel.micro_batches."""
        if not self._predicting.shares:  # each row has its own prompt
            pairs = [((), (*prompt, *completion) if completion else ()) for prompt, completion in pairs]
        return plan_micro_batches(pairs, budget, workers)

    def token_logprobs(self, packed: PackedBatch, weights: BoundWeights, temperature: float) -> TokenLogprobs:
        """See CausalModel.token_logprobs."""
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
        """See CausalModel.merged. Buffers of the architecture count as weights."""
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
        """See CausalModel.close. Hooks keep the module alive for a while, so the weights are freed separately."""
        for tensor in (*self.module.parameters(), *self.module.buffers()):
            tensor.data = torch.empty(0)
        self.base, self.flat = torch.empty(0), None


class TransformersSession:
    """Decoding with transformers' own cache: each prompt prefilled once, then its cache repeated for its group."""

    COPIES: ClassVar[bool] = True

    def __init__(
        self, model: TransformersModel, prompts: Sequence[TokenIds], owner: Tensor, weights: BoundWeights
    ) -> None:
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
        """See DecodeSession.keep."""
        self._cache.reorder_cache(rows)
        self._real, self._positions, self.logits = self._real[rows], self._positions[rows], self.logits[rows]

    def step(self, tokens: Tensor) -> None:
        """See DecodeSession.step."""
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
    """Log-probabilities from logits (T, V) that only the model itself can compute."""
    logprobs = logits.float().log_softmax(dim=-1)
    entropy = -(logprobs.detach().exp() * logprobs.detach()).sum(dim=-1)
    return TokenLogprobs(logprobs.gather(1, targets[:, None])[:, 0], entropy)
