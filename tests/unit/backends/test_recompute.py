"""Gradient checkpointing of models that transformers computes and whose layers have a state."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from tests.support.families import TINY

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from sapo_backends.torch_backend.fallback import transformers_lm  # noqa: E402 - after the check for torch
from sapo_backends.torch_backend.fallback.transformers_lm import TransformersModel  # noqa: E402
from sapo_backends.torch_backend.ops.packing import pack  # noqa: E402

CPU = torch.device("cpu")
WIDTHS = {"vocab_size": 32, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 4}
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
    pairs = [((3, 5, 7) * 4, tuple((3 * row + i) % 32 for i in range(12))) for row in range(3)]
    torch.manual_seed(0)
    module, found = transformers.AutoModelForCausalLM.from_config(config), list[tuple[int, Any]]()
    for again in (True, False):
        if not again:
            monkeypatch.setattr(transformers_lm, "recompute_layers", lambda *_: None)
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
            packed = pack(pairs, [0, 1, 2], CPU)
            logprobs = model.token_logprobs(packed, model.weights(layout.views(leaf)), 1.0).logprobs
        found.append((sum(kept.values()) - leaf.nbytes, torch.autograd.grad(logprobs.sum(), leaf)[0]))
    (few, gradient), (many, expected) = found
    torch.testing.assert_close(gradient, expected)
    assert 3 * few < many
