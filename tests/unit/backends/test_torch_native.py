"""The compiled kernels of decoding and of updates against the same in torch's operations."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sapo_backends.checkpoints.spec import decoder_spec  # noqa: E402
from sapo_backends.common import hardware  # noqa: E402
from sapo_backends.torch_backend import native as compiler  # noqa: E402
from sapo_backends.torch_backend import native as library  # noqa: E402
from sapo_backends.torch_backend.causal_lm import DecoderModel  # noqa: E402
from sapo_backends.torch_backend.decode_session import (  # noqa: E402
    DecoderSession,
    DecodeWeights,
    NativeDecodeWeights,
    NativeSession,
    PackedSession,
)
from sapo_backends.torch_backend.decoder import (  # noqa: E402
    LoraWeights,
    decoder_layout,
    lora_layout,
)
from sapo_backends.torch_backend.generation import draw_uniforms, inverse_cdf  # noqa: E402
from sapo_backends.torch_backend.packing import pack_micro_batch  # noqa: E402

pytestmark = pytest.mark.skipif(
    hardware.c_compiler() is None and os.environ.get("CI") != "true", reason="no C compiler. Fix: apt-get install gcc"
)

VOCABULARY = 70
LENGTHS = [1, 15, 16, 17, 40]
"""Of prompts: shorter than a vector, as long, longer, and more than are attended to at once."""
KEEP_AT = {3: slice(1, None), 4: slice(None, None, 2), 17: slice(None, 1)}
"""step -> the rows that stay."""


def model_of(architecture: str, heads: int, kv_heads: int, head_dim: int, compute: Any = torch.float32) -> DecoderModel:
    """A random decoder of two layers."""
    config = {
        "architectures": [architecture],
        "vocab_size": VOCABULARY,
        "hidden_size": 48,
        "intermediate_size": 80,
        "num_hidden_layers": 2,
        "num_attention_heads": heads,
        "num_key_value_heads": kv_heads,
        "head_dim": head_dim,
        "tie_word_embeddings": True,
    }
    spec = decoder_spec(config)
    layout, generator = decoder_layout(spec), torch.Generator().manual_seed(0)
    return DecoderModel(spec, layout, torch.randn(layout.size, generator=generator).mul_(0.3).to(compute), compute)


MODELS = pytest.mark.parametrize(
    "model", [("Qwen2ForCausalLM", 4, 2, 16), ("Qwen3ForCausalLM", 3, 1, 32), ("LlamaForCausalLM", 2, 2, 80)]
)
"""architecture, heads, heads of keys, head size."""


@pytest.mark.parametrize("groups", [[1, 1, 1, 1, 1], [3, 0, 20, 2, 5]])
@pytest.mark.parametrize("adapted", [False, True])
@MODELS
def test_kernels_decode_what_torch_decodes(model: tuple[str, int, int, int], adapted: bool, groups: list[int]) -> None:
    """Biases, head norms, heads of several sizes, an adapter, groups of none, one and more than a chunk, rows that
    leave, and more own tokens than a vector holds: the logits after every step agree to rounding."""
    found = model_of(*model)
    weights = replace(found.weights(None), kernels=None)
    generator = torch.Generator().manual_seed(1)
    if adapted:
        layout = lora_layout(found.spec, 4)
        adapter = torch.randn(layout.size, generator=generator) * 0.2
        weights = replace(weights, adapter=LoraWeights(layout.views(adapter), 4, 2.0))
    kernels = found.kernels
    assert kernels is not None, "there is a compiler where these tests run"
    native_weights = NativeDecodeWeights.of(kernels, found.spec, weights)
    plain_weights = DecodeWeights.of(found.spec, weights, "as stored")
    prompts = [torch.randint(0, VOCABULARY, (length,), generator=generator).tolist() for length in LENGTHS]
    owner = torch.arange(len(prompts)).repeat_interleave(torch.tensor(groups))
    with torch.inference_mode():
        plain = DecoderSession(found.spec, found.rope, plain_weights, prompts, owner, 20)
        native = NativeSession(found.spec, found.rope, native_weights, prompts, owner, 20)
        for step in range(20):
            torch.testing.assert_close(native.logits, plain.logits, rtol=1e-4, atol=1e-4)
            if step in KEEP_AT:
                keep = torch.arange(len(plain.logits))[KEEP_AT[step]]
                plain.keep(keep)
                native.keep(keep)
            tokens = torch.randint(0, VOCABULARY, (len(plain.logits),), generator=generator)
            plain.step(tokens)
            native.step(tokens)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("adapted", [False, True])
@MODELS
def test_kernels_beside_packed_weights_decode_what_float32_decodes(
    model: tuple[str, int, int, int], adapted: bool, threads: int
) -> None:
    """A bfloat16 model's logits after every step are at most as far from those of its weights in float32 as the plain
    step's are: with a common prefix, an adapter, rows that leave, more own tokens than a vector holds, several threads."""
    found = model_of(*model, torch.bfloat16)
    kernels, generator = found.paths.attention, torch.Generator().manual_seed(1)
    if kernels is None:
        pytest.skip("this processor has no bfloat16 products")
    layout = lora_layout(found.spec, 4)
    adapter = torch.randn(layout.size, generator=generator).mul_(0.2).bfloat16()
    weights = replace(found.weights(None), adapter=LoraWeights(layout.views(adapter), 4, 2.0) if adapted else None)
    exact = model_of(*model)
    exact.base.copy_(found.base)
    wide = replace(exact.weights(None), kernels=None)
    wide = replace(wide, adapter=LoraWeights(layout.views(adapter.float()), 4, 2.0) if adapted else None)
    common = torch.randint(0, VOCABULARY, (20,), generator=generator).tolist()
    prompts = [common + torch.randint(0, VOCABULARY, (n,), generator=generator).tolist() for n in LENGTHS]
    owner, before = (
        torch.arange(len(prompts)).repeat_interleave(torch.tensor([3, 0, 20, 2, 5])),
        torch.get_num_threads(),
    )
    errors: dict[str, list[float]] = {"plain": [], "packed": []}
    torch.set_num_threads(threads)
    try:
        with torch.inference_mode():
            laid_out = DecodeWeights.of(found.spec, weights, "packed")
            plain = DecoderSession(found.spec, found.rope, laid_out, prompts, owner, 20)
            packed = PackedSession(found.spec, found.rope, laid_out, kernels, prompts, owner, 20)
            right = DecoderSession(
                exact.spec, exact.rope, DecodeWeights.of(exact.spec, wide, "as stored"), prompts, owner, 20
            )
            for step in range(20):
                for name, session in (("plain", plain), ("packed", packed)):
                    errors[name].append(float((session.logits.float() - right.logits).norm() / right.logits.norm()))
                if step in KEEP_AT:
                    keep = torch.arange(len(right.logits))[KEEP_AT[step]]
                    for session in (plain, packed, right):
                        session.keep(keep)
                tokens = torch.randint(0, VOCABULARY, (len(right.logits),), generator=generator)
                for session in (plain, packed, right):
                    session.step(tokens)
    finally:
        torch.set_num_threads(before)
    assert max(errors["packed"]) <= 1.2 * max(errors["plain"])
    assert sum(errors["packed"]) <= 1.1 * sum(errors["plain"])


@MODELS
def test_kernels_give_the_log_probabilities_and_gradients_that_torch_gives(model: tuple[str, int, int, int]) -> None:
    """Prompts with several completions and with one, of one token and of more than a block; of every weight."""
    found, generator = model_of(*model), torch.Generator().manual_seed(5)
    assert found.kernels is not None, "there is a compiler where these tests run"

    def text(length: int) -> tuple[int, ...]:
        return tuple(torch.randint(0, VOCABULARY, (length,), generator=generator).tolist())

    prompts = [text(length) for length in LENGTHS]
    pairs = [(prompts[prompt], text(length)) for prompt, length in ((0, 9), (0, 1), (0, 50), (1, 1), (2, 17), (3, 33))]
    pairs += [(prompts[4], text(length)) for length in (70, 16, 2)]
    packed = pack_micro_batch(pairs, list(range(len(pairs))), torch.device("cpu"))
    grad = torch.randn(len(packed.targets), generator=generator)
    results = []
    for kernels in (found.kernels, None):
        found.kernels = kernels
        leaves = {name: view.clone().requires_grad_() for name, view in found.layout.views(found.base).items()}
        scores = found.token_logprobs(packed, found.weights(leaves), 1.0)
        results.append([scores.logprobs, *torch.autograd.grad(scores.logprobs @ grad, list(leaves.values()))])
    for native, plain in zip(*results, strict=True):
        assert (native - plain).norm() <= 2e-5 * plain.norm()


@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize(
    ("size", "kind"), [(16, torch.float32), (1024, torch.float32), (1021, torch.bfloat16), (5000, torch.bfloat16)]
)
def test_the_compiled_sampler_samples_what_the_exact_one_samples(size: int, kind: Any, temperature: float) -> None:
    """The same tokens for the same numbers but where one lies within rounding of an edge, with their
    log-probabilities."""
    compiled, rows = library.load_kernels(), 4000
    assert compiled is not None
    logits = (torch.randn(rows, size, generator=torch.Generator().manual_seed(2)) * 4).to(kind)
    numbers = draw_uniforms(rows, 1, 3)[:, 0]
    tokens, logprobs = compiled.sample(logits, temperature, numbers)
    exact = (logits.double() / temperature).log_softmax(dim=-1)
    assert (tokens == inverse_cdf(exact.exp(), numbers)).float().mean() > 0.999
    torch.testing.assert_close(logprobs, exact.gather(1, tokens[:, None])[:, 0].float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("number", [0.0, 0.5, 1.0 - 2.0**-53])
def test_the_compiled_sampler_never_samples_a_token_without_weight(number: float) -> None:
    """Not at the edges either, where rounding could leave the target beyond the last token that has some."""
    compiled, generator = library.load_kernels(), torch.Generator().manual_seed(4)
    assert compiled is not None
    logits = torch.full((500, 64), float("-inf"))
    for row in logits:
        row[torch.randperm(64, generator=generator)[:3]] = torch.randn(3, generator=generator)
    tokens, logprobs = compiled.sample(logits, 1.0, torch.full((500,), number, dtype=torch.float64))
    assert logits.gather(1, tokens[:, None]).isfinite().all()
    assert logprobs.isfinite().all()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [7, 64, 1021])
def test_the_compiled_sampler_takes_the_most_probable_token_at_temperature_zero(kind: Any, size: int) -> None:
    """With its log-probability at temperature 1; one logit that is no number makes that none."""
    compiled = library.load_kernels()
    assert compiled is not None
    logits = torch.randn(50, size, generator=torch.Generator().manual_seed(2)).to(kind)
    tokens, logprobs = compiled.sample(logits, 0.0, torch.zeros(50, dtype=torch.float64))
    expected = logits.float().log_softmax(dim=-1).amax(dim=-1)
    torch.testing.assert_close(logits.float().gather(1, tokens[:, None])[:, 0], logits.float().amax(dim=-1))
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    logits[3, 5] = float("nan")
    for temperature in (0.0, 1.0):
        _, logprobs = compiled.sample(logits, temperature, torch.zeros(50, dtype=torch.float64))
        assert logprobs.isnan().nonzero().tolist() == [[3]]


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """library.checked_kernels as a new process finds it, with a cache folder of its own."""
    monkeypatch.setenv("SAPO_HOME", str(tmp_path))
    monkeypatch.setattr(compiler, "_OPTIMISED", "-O0")  # seconds less
    return library.checked_kernels.__wrapped__


def test_the_library_is_compiled_once_and_a_damaged_one_again(fresh: Callable[[], object], tmp_path: Path) -> None:
    assert not compiler.is_there()
    file = compiler.compile_library()
    assert file.is_relative_to(tmp_path)
    assert compiler.is_there()
    file.write_bytes(b"no library")
    assert fresh() is not None
    made = file.stat()
    assert made.st_size > 1000
    assert fresh() is not None
    assert file.stat().st_mtime_ns == made.st_mtime_ns


def test_without_a_compiler_or_with_a_wrong_one_there_are_no_kernels(
    fresh: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is raised and nothing wrong is used: decoding goes its other way."""
    with monkeypatch.context() as patch:
        patch.setattr(library, "_works", lambda found: False)
        assert fresh() is None
    with monkeypatch.context() as patch:
        patch.setenv("PATH", str(tmp_path / "nothing"))
        assert fresh() is None
        assert compiler.is_there(), "nothing to wait for"
    with monkeypatch.context() as patch:
        patch.setattr(compiler, "_run", fails)
        assert fresh() is None


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [7, 64, 300, 50_001])
@pytest.mark.parametrize("threads", [1, 3])
def test_the_kernel_of_the_vocabulary_equals_float64(kind: torch.dtype, vocabulary: int, threads: int) -> None:
    """Log-probabilities, entropies and weighted gradients, each token of a small vocabulary, at two temperatures."""
    generator, kernels = torch.Generator().manual_seed(0), library.load_kernels()
    assert kernels is not None
    logits = torch.randn(min(vocabulary, 70), vocabulary, generator=generator).mul_(6.0).to(kind)
    targets, weights = torch.arange(len(logits)), torch.randn(len(logits), generator=generator)
    targets[-1] = vocabulary - 1
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        for temperature in (1.0, 0.7):
            exact = torch.log_softmax(logits.double() / temperature, dim=-1)
            found = logits.clone()
            untouched = kernels.chosen_logprobs(found, temperature, targets, None)
            assert torch.equal(found, logits)
            chosen, entropy = kernels.chosen_logprobs(found, temperature, targets, weights)
            assert torch.equal(chosen, untouched[0])
            assert torch.equal(entropy, untouched[1])
            torch.testing.assert_close(chosen.double(), exact.gather(1, targets[:, None])[:, 0], rtol=1e-5, atol=1e-5)
            torch.testing.assert_close(entropy.double(), -(exact.exp() * exact).sum(-1), rtol=1e-5, atol=1e-5)
            gradient = torch.nn.functional.one_hot(targets, vocabulary) - exact.exp()
            close = {torch.float32: (1e-5, 1e-6), torch.bfloat16: (2**-8, 1e-7)}[kind]
            wanted = gradient * weights[:, None]
            torch.testing.assert_close(found.double(), wanted, rtol=close[0], atol=close[1])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_logit_that_is_no_number_makes_the_log_probability_none(bad: float) -> None:
    """A broken model must not train on as if nothing were wrong."""
    kernels = library.load_kernels()
    assert kernels is not None
    logits = torch.zeros(3, 40)
    logits[1, 33] = bad
    chosen, _ = kernels.chosen_logprobs(logits, 1.0, torch.tensor([0, 0, 39]), None)
    assert chosen.isnan().tolist() == [False, True, False]


def fails(*command: str) -> bytes:
    raise subprocess.CalledProcessError(1, command)


def test_a_kernel_that_computes_something_else_is_found_out(
    fresh: Callable[[], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The check before the first use fails for a gate that is no gate."""
    shutil.copytree(compiler.FOLDER, tmp_path / "native")
    layers = tmp_path / "native" / "layers.c"
    source = layers.read_text("utf-8")
    layers.write_text(source.replace("return above / (1.0f + e);", "return above;"), "utf-8")
    assert layers.read_text("utf-8") != source
    monkeypatch.setattr(compiler, "FOLDER", tmp_path / "native")
    assert fresh() is None
