"""Weights in 4 bits beside what the contract asks of every engine: how they are rounded, what is refused."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.contract.conftest import write_model

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, TrainSample
from sapo_backends.common import round_memory
from sapo_backends.errors import BackendError, BackendUnavailable

torch = pytest.importorskip("torch")
needed = pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
BATCH = [
    TrainSample((5, 6, 7), (9, 8, 200), 1.0),
    TrainSample((5, 6, 7), (11, 12), -1.0),
    TrainSample(tuple(range(40)), tuple(range(60, 90)), 0.5),
]


def opened(folder: Path, precision: str, **wanted: Any) -> Engine:
    request = LoadRequest(
        str(folder), **{"method": "lora", "lora_rank": 4, "threads": 1, **wanted}, precision=precision
    )
    return registry.get_backend("torch")().load(request)


def rough(tmp_path: Path, family: str) -> Path:
    """A model whose weights 4 bits cannot say."""
    folder = write_model(tmp_path, family)
    weights = load_file(folder / "model.safetensors")
    rng = np.random.default_rng(0)
    rounded = {n: (w + 0.05 * rng.standard_normal(w.shape)).astype(np.float32) for n, w in weights.items()}
    save_file(rounded, folder / "model.safetensors", {"format": "pt"})
    return folder


@needed
@pytest.mark.parametrize("family", ["qwen2", "phi3", "gemma2"])
def test_forward_and_backward_equal_those_of_the_same_weights_in_float32(tmp_path: Path, family: str) -> None:
    """Whatever was rounded: the export holds the weights that are computed with, and a float32 engine of it is the reference.

    Phi-3 has fused projections, Gemma 2 norms behind its layers and another activation.
    """
    (tmp_path / "base").mkdir()
    (tmp_path / "dense").mkdir()
    four = opened(rough(tmp_path / "base", family), "4bit-float32")
    four.export(tmp_path / "dense")
    dense = opened(tmp_path / "dense", "float32")
    rng = np.random.default_rng(1)
    adapter = {n: 0.1 * rng.standard_normal(np.shape(t)).astype(np.float32) for n, t in four.adapter().items()}
    gradients = []
    for engine in (four, dense):
        engine.set_adapter(adapter, 8.0)
        gradients.append(engine.gradient(BATCH, PolicyUpdate(1e-3)))  # type: ignore[attr-defined]
    largest = max(float(np.abs(grad).max()) for grad in gradients[1].values())
    for name, grad in gradients[1].items():
        np.testing.assert_allclose(gradients[0][name], grad, atol=1e-5 * largest, err_msg=name)


@needed
def test_the_rounding_is_that_of_bitsandbytes_and_a_tenth_of_a_weight() -> None:
    from bitsandbytes import functional

    from sapo_backends.torch_backend.ops import FourBit, quantise_nf4

    weight = torch.randn(96, 192, generator=torch.Generator().manual_seed(0)) * 0.02
    codes, state = functional.quantize_4bit(weight, quant_type="nf4", blocksize=64)
    found, scales = quantise_nf4(weight.view(-1))
    assert torch.equal(found, codes.view(-1))
    assert torch.equal(scales, state.absmax)
    stored = FourBit.empty(96, 192, torch.float32, torch.device("cpu"))
    stored.write(0, weight.view(-1)[:640])
    stored.write(640, weight.view(-1)[640:])
    assert torch.equal(stored.dense(), functional.dequantize_4bit(codes, state))
    assert float((stored.dense() - weight).abs().mean() / weight.abs().mean()) < 0.1


@needed
def test_the_weights_take_as_little_memory_as_planned(model_folder: Callable[[str], Path]) -> None:
    four, dense = (opened(model_folder("qwen2"), precision, method="none") for precision in ("4bit-float32", "float32"))
    assert four.info.precision == "4bit-float32"
    assert "4-bit weights" in four.info.extra["computed_by"]
    tables = 300 * 64
    body = dense._model.base.numel() - tables  # type: ignore[attr-defined]
    model = four._model  # type: ignore[attr-defined]
    held = model.base.nbytes + sum(weight.codes.nbytes + weight.scales.nbytes for weight in model.four_bit.values())
    assert held == pytest.approx(4 * tables + round_memory.FOUR_BIT_BYTES * body, rel=0.1)


@needed
@pytest.mark.parametrize(
    ("family", "wanted", "said"),
    [
        ("qwen2", {"method": "full"}, "--method lora"),
        ("qwen2", {"precision": "4bit-int8"}, "no precision"),
        ("gpt_neox", {}, "Only the own decoder"),
    ],
)
def test_what_cannot_be_is_refused_in_a_sentence(
    model_folder: Callable[[str], Path], family: str, wanted: dict[str, Any], said: str
) -> None:
    with pytest.raises((BackendError, BackendUnavailable), match=said):
        opened(model_folder(family), **{"precision": "4bit", **wanted})


def test_without_bitsandbytes_the_command_that_adds_it_is_told(
    monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path]
) -> None:
    from sapo_backends.torch_backend import ops

    ops.require_bitsandbytes.cache_clear()
    monkeypatch.setitem(__import__("sys").modules, "bitsandbytes", None)
    with pytest.raises(BackendUnavailable, match="bitsandbytes") as refused:
        opened(model_folder("qwen2"), "4bit")
    assert "pip install" in (refused.value.fix_command or "")
    ops.require_bitsandbytes.cache_clear()


@needed
def test_four_bits_whose_operation_fails_on_the_device_are_refused_before_the_weights_are_read(
    monkeypatch: pytest.MonkeyPatch, model_folder: Callable[[str], Path]
) -> None:
    """As bitsandbytes does where it has no library for this CUDA: on the processor all is well."""
    from sapo_backends.torch_backend import loading, ops

    computed = ops.dequantise_nf4

    def on_processors(codes: Any, scales: Any, like: Any) -> Any:
        if like.device.type != "cpu":
            raise RuntimeError("\nCUDA version mismatch\nand much more")
        return computed(codes, scales, like)

    monkeypatch.setattr(ops, "dequantise_nf4", on_processors)
    monkeypatch.setattr(loading, "pick_device", lambda _: torch.device("meta"))
    monkeypatch.setattr(loading, "_load_decoder", lambda *_: pytest.fail("the weights are read"))
    with pytest.raises(
        BackendUnavailable, match=r"does not work on meta \(CUDA version mismatch\)\. Fix: pip install -U"
    ):
        opened(model_folder("qwen2"), "4bit-float32")
