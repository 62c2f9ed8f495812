"""Rollouts with 8-bit products: how exact they are, when they are used, and that everything else is as exact as before."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from tests.unit.backends.test_torch_native import KEEP_AT, LENGTHS, MODELS, VOCABULARY, model_of  # noqa: E402

from sapo_backends.base import Engine, LoadRequest, Sampling, TokenSequence  # noqa: E402
from sapo_backends.torch_backend import TorchBackend  # noqa: E402
from sapo_backends.torch_backend.decode_session import DecoderSession, DecodeWeights  # noqa: E402
from sapo_backends.torch_backend.decoder import LoraWeights, lora_layout  # noqa: E402
from sapo_backends.torch_backend.integer_session import (  # noqa: E402
    IntegerDecodeWeights,
    IntegerProjection,
    IntegerSession,
    integer_kernels,
)
from sapo_backends.torch_backend.native import NativeKernels  # noqa: E402
from sapo_backends.torch_backend.runtime import packs_bfloat16, without_paths  # noqa: E402

PROMPTS = [[5, 6, 7, 8, 9], [5, 6, 11], [40, 41, 42, 43]]
ROLLOUTS = Sampling(max_new_tokens=12, for_training=True)


@pytest.fixture
def kernels() -> NativeKernels:
    """Those of this processor, if it multiplies bytes."""
    known = integer_kernels()
    if known is None:
        pytest.skip("this processor has no products of bytes, or there is no C compiler")
    return known


@pytest.fixture
def engine(kernels: NativeKernels) -> Iterator[Engine]:
    """A small model with an adapter that computes in bfloat16, whose rollouts are rounded."""
    if not packs_bfloat16():
        pytest.skip("small models in float32 have kernels of their own")
    loaded = TorchBackend().load(
        LoadRequest("starter-1m", method="lora", precision="bfloat16", device="cpu", threads=1)
    )
    yield loaded
    loaded.close()


@pytest.mark.parametrize("rows", [1, 7, 8, 21])
@pytest.mark.parametrize(("outputs", "depth"), [(32, 16), (75, 112), (48, 576)])
@pytest.mark.parametrize("terms", [1, 2])
def test_products_of_bytes_are_off_by_a_hundredth(
    kernels: NativeKernels, rows: int, outputs: int, depth: int, terms: int
) -> None:
    """Of normally distributed numbers, with rows, outputs and groups that fill nothing, a bias, weights of either type;
    the second integer of an input leaves the error of the weights alone."""
    generator = torch.Generator().manual_seed(rows)
    weight, bias, x = (
        torch.randn(shape, generator=generator) for shape in ((outputs, depth), (outputs,), (rows, depth))
    )
    for stored in (weight, weight.bfloat16()):
        exact = x.double() @ stored.double().t() + bias.double()
        y = IntegerProjection.of(kernels, stored, bias, terms=terms)(x)
        steps = kernels.library.sapo_integer_steps()
        assert float((y - exact).norm() / exact.norm()) < (0.012 if terms == 1 else 0.007) * (240 / steps)


def test_a_block_of_a_four_bit_file_is_met_exactly(kernels: NativeKernels) -> None:
    """Sixteen levels between two extremes are a whole number of steps apart."""
    generator = torch.Generator().manual_seed(0)
    levels = torch.randint(0, 16, (40, 3, 32), generator=generator)
    levels[..., 0], levels[..., 1] = 0, 15
    step, lowest = torch.rand(40, 3, 1, generator=generator) + 0.1, torch.randn(40, 3, 1, generator=generator)
    weight = (levels * step + lowest).view(40, 96)
    x = torch.randint(-127, 128, (5, 96), generator=generator).float()
    x[:, ::32] = 127.0  # so that the inputs are met exactly too
    expected = x.double() @ weight.double().t()
    torch.testing.assert_close(IntegerProjection.of(kernels, weight)(x).double(), expected, rtol=1e-5, atol=2e-2)


def test_a_large_input_costs_only_its_neighbours_precision(kernels: NativeKernels) -> None:
    """Numbers that share no scale with it are as exact as without it."""
    generator = torch.Generator().manual_seed(0)
    weight, x = torch.randn(64, 256, generator=generator), torch.randn(4, 256, generator=generator)
    weight[:, :32] = 0.0
    exact = x @ weight.t()
    x[:, 3] = 3000.0
    assert float((IntegerProjection.of(kernels, weight)(x) - exact).norm() / exact.norm()) < 0.02


@pytest.mark.parametrize("threads", [1, 3])
@MODELS
def test_a_step_with_8_bit_products_is_close_to_float32(
    kernels: NativeKernels, model: tuple[str, int, int, int], threads: int
) -> None:
    """Biases, head norms, an adapter, a common prefix, groups of none, one and more than a chunk, rows that leave."""
    exact, generator, before = model_of(*model), torch.Generator().manual_seed(1), torch.get_num_threads()
    layout = lora_layout(exact.spec, 4)
    adapter = torch.randn(layout.size, generator=generator) * 0.2
    weights = replace(exact.weights(None), kernels=None, adapter=LoraWeights(layout.views(adapter), 4, 2.0))
    common = torch.randint(0, VOCABULARY, (20,), generator=generator).tolist()
    prompts = [common + torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    owner = torch.arange(len(prompts)).repeat_interleave(torch.tensor([3, 0, 20, 2, 5]))
    errors = []
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            plain_weights = DecodeWeights.of(exact.spec, weights, "as stored")
            plain = DecoderSession(exact.spec, exact.rope, plain_weights, prompts, owner, 20)
            rounded_weights = IntegerDecodeWeights.of(kernels, exact.spec, weights)
            rounded = IntegerSession(exact.spec, exact.rope, rounded_weights, prompts, owner, 20)
            for step in range(20):
                errors.append(float((rounded.logits - plain.logits).norm() / plain.logits.norm()))
                if step in KEEP_AT:
                    keep = torch.arange(len(plain.logits))[KEEP_AT[step]]
                    plain.keep(keep)
                    rounded.keep(keep)
                tokens = torch.randint(0, VOCABULARY, (len(plain.logits),), generator=generator)
                plain.step(tokens)
                rounded.step(tokens)
    finally:
        torch.set_num_threads(before)
    assert 0.0 < max(errors) < 0.06


def test_only_rollouts_are_rounded(engine: Engine) -> None:
    """What is not trained on, an evaluation at any temperature or a chat, is what it is without 8-bit products."""
    rounded = engine.generate(PROMPTS, 4, ROLLOUTS, 1)
    for temperature in (0.0, 1.0):
        exact = engine.generate(PROMPTS, 4, Sampling(temperature, max_new_tokens=12), 1)
        with without_paths("int8"):
            other = TorchBackend().load(
                LoadRequest("starter-1m", method="lora", precision="bfloat16", device="cpu", threads=1)
            )
        assert other.generate(PROMPTS, 4, Sampling(temperature, max_new_tokens=12), 1) == exact
        assert other.generate(PROMPTS, 4, replace(ROLLOUTS, temperature=temperature), 1) == exact
        assert not other.separate_generator
        other.close()
        assert exact != rounded
    assert engine.separate_generator
    assert engine.info.extra["computed_by"].endswith("rollouts with 8-bit products")


def test_a_rollouts_log_probabilities_are_close_to_those_it_is_trained_with(engine: Engine) -> None:
    groups = engine.generate(PROMPTS, 16, ROLLOUTS, 1)
    sampled = [completion for group in groups for completion in group]
    sequences = [TokenSequence(prompt, c.tokens) for prompt, group in zip(PROMPTS, groups, strict=True) for c in group]
    scored = engine.logprobs(sequences)
    gaps = [
        abs(a - b) for c, known in zip(sampled, scored, strict=True) for a, b in zip(c.logprobs, known, strict=True)
    ]
    assert 0.0 < math.fsum(gaps) / len(gaps) < 0.05


def test_a_model_trained_whole_is_not_rounded(kernels: NativeKernels) -> None:
    full = TorchBackend().load(LoadRequest("starter-1m", method="full", precision="bfloat16", device="cpu", threads=1))
    assert not full.separate_generator
    full.close()
