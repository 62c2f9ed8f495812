"""What an update costs of models that transformers computes: products, memory of layers with a state, tiny numbers."""

from __future__ import annotations

import copy
import sys
from typing import Any

import pytest
from tests.support.families import TINY

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sapo_backends.torch_backend import (  # noqa: E402
    runtime,
    transformers_layers,
    transformers_lm,
)
from sapo_backends.torch_backend.packing import pack_micro_batch  # noqa: E402
from sapo_backends.torch_backend.transformers_layers import gather_layer  # noqa: E402
from sapo_backends.torch_backend.transformers_lm import (  # noqa: E402
    CompletionStates,
    TransformersModel,
)

CPU = torch.device("cpu")
WIDTHS = {"vocab_size": 37, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
WIDTHS |= {"num_attention_heads": 4, "num_key_value_heads": 2}


@pytest.mark.parametrize("family", ["qwen3_5_text", "granitemoehybrid"])
@pytest.mark.parametrize("trained", ["all", "adapter"])
def test_layers_with_a_state_keep_what_goes_in_and_give_the_same_gradient(
    family: str, trained: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each layer is computed again in the backward pass, with the weights and the adapter of the forward pass."""
    config = transformers.AutoConfig.for_model(
        family, **WIDTHS, **TINY[family] | {"layer_types": 2 * TINY[family]["layer_types"]}
    )
    pairs = [((3, 5, 7) * 4, tuple((3 * row + i) % 37 for i in range(12))) for row in range(3)]
    torch.manual_seed(0)
    module, found = transformers.AutoModelForCausalLM.from_config(config), list[tuple[int, Any]]()
    for again in (True, False):
        if not again:
            monkeypatch.setattr(transformers_lm, "RecomputedLayers", lambda *_: None)
        model = TransformersModel(copy.deepcopy(module), CPU, torch.float32)
        layout, generator = model.layout, torch.Generator().manual_seed(0)
        leaf = model.base.clone()
        if trained == "adapter":
            model.adapter_layout = layout = model.lora_layout(4)
            model.rank, model.alpha = 4, 8.0
            leaf = torch.randn(layout.size, generator=generator) * 0.1
        leaf.requires_grad_()
        kept = dict[int, int]()

        def note(tensor: torch.Tensor, kept: dict[int, int] = kept) -> torch.Tensor:
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            packed = pack_micro_batch(pairs, [0, 1, 2], CPU)
            logprobs = model.token_logprobs(packed, model.weights(layout.views(leaf)), 1.0).logprobs
        found.append((sum(kept.values()) - leaf.nbytes, torch.autograd.grad(logprobs.sum(), leaf)[0]))
    (few, gradient), (many, expected) = found
    assert float((gradient - expected).norm() / expected.norm()) < 1e-5
    assert 3 * few < many


SHARED = [((3, 5, 7) * 4, tuple((3 * row + i) % 37 for i in range(12))) for row in range(3)]
SHARED += [((3, 5, 7, 9), tuple((5 * row + i) % 37 for i in range(9))) for row in range(2)]
"""Completions of two prompts of different lengths."""


def _module(family: str) -> Any:
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(family, **WIDTHS | {"num_hidden_layers": 2}, **TINY[family])
    return transformers.AutoModelForCausalLM.from_config(config)


@pytest.mark.parametrize("family", ["lfm2", "qwen3_5_text", "granitemoehybrid", "falcon_h1"])
def test_rows_continue_one_prompt_where_layers_have_a_state(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Log-probabilities, with gradients and without, and the gradient are those of rows with a prompt each."""
    module, found = _module(family), list[tuple[torch.Tensor, ...]]()
    for shared in (True, False):
        if not shared:
            monkeypatch.setattr(CompletionStates, "shares", False)
        model, computed = TransformersModel(copy.deepcopy(module), CPU, torch.float32), list[int]()
        leaf, packed = model.base.clone().requires_grad_(), pack_micro_batch(SHARED, list(range(5)), CPU)
        model.micro_batches(SHARED, 1024, 1)  # tries whether prompts can be shared
        model.head.rule(model)
        model.module.register_forward_pre_hook(
            lambda _, __, given, seen=computed: seen.append(given["input_ids"].numel()), with_kwargs=True
        )
        with torch.no_grad():
            plain = model.token_logprobs(packed, model.weights(model.layout.views(leaf)), 1.0).logprobs
        logprobs = model.token_logprobs(packed, model.weights(model.layout.views(leaf)), 1.0).logprobs
        found.append((plain, logprobs.detach(), torch.autograd.grad(logprobs.sum(), leaf)[0]))
        assert sum(computed) == (2 * (2 * 12 + 5 * 11) if shared else 2 * 5 * 23)
    for mine, alone in zip(*found, strict=True):
        torch.testing.assert_close(mine, alone, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("family", ["qwen3_5_text", "granitemoehybrid", "falcon_h1"])
def test_compiled_kernels_give_what_transformers_own_operations_give(family: str) -> None:
    """Log-probabilities, the gradient, and the logits of one token after another in generation."""
    model, found = TransformersModel(_module(family), CPU, torch.float32), list[tuple[torch.Tensor, ...]]()
    packed, prompts = pack_micro_batch(SHARED, list(range(5)), CPU), [SHARED[0][0], SHARED[3][0]]
    for names in ((), ("native",)):
        leaf = model.base.clone().requires_grad_()
        with runtime.without_paths(*names):
            logprobs = model.token_logprobs(packed, model.weights(model.layout.views(leaf)), 1.0).logprobs
            gradient = torch.autograd.grad(logprobs.sum(), leaf)[0]
            with torch.inference_mode():
                session = model.session(prompts, torch.tensor([0, 0, 1]), 3, model.weights(None))
                for token in (3, 8, 2):
                    session.step(torch.full((3,), token))
        found.append((logprobs.detach(), gradient, session.logits))
    for mine, theirs in zip(*found, strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) < 1e-5


def test_without_kernels_few_tokens_are_not_filled_up_to_hundreds(monkeypatch: pytest.MonkeyPatch) -> None:
    """Mamba 2 takes 256 at a time where a model says so; the results are the same."""
    module, seen, found = _module("granitemoehybrid"), list[int](), list[torch.Tensor]()
    file = sys.modules[type(module).__module__]
    monkeypatch.setattr(file, "segment_sum", _noting(file.segment_sum, seen))
    for size in (256, 16):
        for layer in module.modules():
            if hasattr(layer, "chunk_size"):
                layer.chunk_size = size
        with runtime.without_paths("native"):
            model = TransformersModel(copy.deepcopy(module), CPU, torch.float32)
            found.append(model.token_logprobs(pack_micro_batch(SHARED, [3], CPU), model.weights(None), 1.0).logprobs)
    torch.testing.assert_close(*found)
    assert max(seen) == 64


def _noting(function: Any, seen: list[int]) -> Any:
    def noted(x: torch.Tensor) -> Any:
        seen.append(x.shape[-1])
        return function(x)

    return noted


@pytest.mark.parametrize("wrong", ["lost", "unknown"])
def test_a_state_that_does_not_get_through_is_found_before_anything_is_trained(
    wrong: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another version of transformers may start several tokens with an empty state, or keep it elsewhere."""

    def forgetful(layer: Any, owner: torch.Tensor | None) -> Any:
        own = gather_layer(layer, owner)
        if owner is not None and isinstance(getattr(own, "recurrent_states", None), dict):
            own.recurrent_states = {0: torch.zeros_like(own.recurrent_states[0])} if wrong == "lost" else {}
        return own

    monkeypatch.setattr(transformers_layers, "gather_layer", forgetful)
    model = TransformersModel(_module("qwen3_5_text"), CPU, torch.float32)
    batches = model.micro_batches(SHARED, 64, 1)
    assert max(sum(len(p) + len(c) for p, c in (SHARED[i] for i in batch)) for batch in batches) <= 64


class _Products(TorchDispatchMode):
    """Notes the shapes of the factors of matrix products."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes = set[tuple[int, ...]]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.ops.aten.bmm.default, torch.ops.aten.mm.default):
            self.shapes.update(tuple(tensor.shape) for tensor in args[:2])
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("rows", [1, 3])
def test_the_unembedding_is_never_copied_for_a_product(rows: int) -> None:
    """As a batch of one it would be: a transposed copy of 500 MB for each micro-batch of a Qwen3.5-0.8B."""
    config = transformers.AutoConfig.for_model("mixtral", **WIDTHS, **TINY["mixtral"])
    model = TransformersModel(transformers.AutoModelForCausalLM.from_config(config), CPU, torch.float32)
    pairs, seen = [((3, 5, 7), (row, 2, 3)) for row in range(rows)], _Products()
    owner = torch.zeros(rows, dtype=torch.int64)
    with seen:
        model.token_logprobs(pack_micro_batch(pairs, list(range(rows)), CPU), model.weights(None), 1.0)
        model.session([(3, 5, 7)], owner, 2, model.weights(None)).step(owner)
    assert {shape for shape in seen.shapes if WIDTHS["vocab_size"] in shape} == {(64, 37)}


def test_numbers_too_small_to_be_normal_are_zero_where_layers_decay() -> None:
    """Products with them take a hundred times as long."""
    config = transformers.AutoConfig.for_model("qwen3_5_text", **WIDTHS, **TINY["qwen3_5_text"] | {"layer_types": None})
    model = TransformersModel(transformers.AutoModelForCausalLM.from_config(config), CPU, torch.float32)
    assert torch.set_flush_denormal(False), "this processor can"
    try:
        model.token_logprobs(pack_micro_batch([((3, 5), (7, 2))], [0], CPU), model.weights(None), 1.0)
        assert float(torch.tensor([1e-39]) * 1.0) == 0.0
    finally:
        torch.set_flush_denormal(False)
