"""The torch engine's micro-batches: flat tokens without padding, attention in slabs, few shapes of products."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.families import TINY

torch = pytest.importorskip("torch")

from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from sapo_backends.checkpoints.spec import decoder_spec  # noqa: E402
from sapo_backends.common.round_memory import (  # noqa: E402
    COMPILED,
    ModelSize,
    RoundShape,
    bytes_to_update,
    elements_of_masks,
)
from sapo_backends.common.update import bucket_size, flat_tokens, padded_tokens, plan_micro_batches  # noqa: E402
from sapo_backends.torch_backend import packing  # noqa: E402
from sapo_backends.torch_backend.causal_lm import DecoderModel  # noqa: E402
from sapo_backends.torch_backend.decoder import decoder_layout  # noqa: E402
from sapo_backends.torch_backend.packing import SequenceSlab, pack_micro_batch  # noqa: E402
from sapo_backends.torch_backend.transformers_layers import only_keys_and_values  # noqa: E402
from sapo_backends.torch_backend.transformers_lm import (  # noqa: E402
    CompletionStates,
    TransformersModel,
)

CPU = torch.device("cpu")
CONFIG = {
    "architectures": ["Qwen2ForCausalLM"],
    "vocab_size": 70,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
PAIRS = [
    ((1, 2, 3), (4, 5, 6, 7, 8, 9)),
    ((1, 2, 3, 4, 5), (6, 7)),
    ((1, 2, 3), (7,)),
    ((1, 2, 3), (8, 9, 1)),
    ((9,), (5, 5, 5)),
]
UNEVEN = [((1, 2, 3), (4,) * length) for length in [50] * 60 + [4000]]
LAYOUTS = [("plain", True), ("fused", True), ("fused", False)]
"""By products or by the fused kernel; each prompt a slab of its own as on a CPU, or all together as elsewhere."""


def _model(compute: torch.dtype, device: torch.device = CPU) -> DecoderModel:
    spec = decoder_spec(CONFIG)
    layout = decoder_layout(spec)
    base = torch.randn(layout.size, generator=torch.Generator().manual_seed(0)) * 0.3
    return DecoderModel(spec, layout, base.to(device), compute)


def _gradient(model: DecoderModel, pairs: list, members: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities, and the gradient of the sum of each times its position."""
    leaf = model.base.clone().requires_grad_()
    packed = pack_micro_batch(pairs, members, CPU)
    scores = model.token_logprobs(packed, model.weights(model.layout.views(leaf.to(model.compute))), 1.0)
    order = torch.cat([torch.arange(1.0, len(pairs[i][1]) + 1) for i in members])
    return scores.logprobs.detach(), torch.autograd.grad((scores.logprobs * order).sum(), leaf)[0]


@pytest.mark.parametrize(("kernel", "separate"), LAYOUTS)
def test_sequences_packed_together_score_and_train_as_if_alone(
    kernel: str, separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities are those of each alone, the gradient is their sum, in every layout."""
    model, everyone = _model(torch.float32), list(range(len(PAIRS)))
    alone = [_gradient(model, PAIRS, [i]) for i in everyone]
    monkeypatch.setattr("sapo_backends.torch_backend.attention.FULL_SCORES", 1 << 23 if kernel == "plain" else 0)
    monkeypatch.setattr(packing, "slab_per_prompt", lambda _: separate)
    logprobs, grad = _gradient(model, PAIRS, everyone)
    torch.testing.assert_close(logprobs, torch.cat([found for found, _ in alone]), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(grad, sum(found for _, found in alone), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("padding", [0, 4, 1000])
def test_every_token_lies_in_one_slab_and_every_prompt_only_once(padding: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However completions are cut into slabs, these cover the real tokens, and only filling lies behind the last."""
    monkeypatch.setattr(packing, "SLAB_PADDING", padding)
    flat = pack_micro_batch(PAIRS, list(range(len(PAIRS))), CPU).flat
    edges = [edge for slab in flat.slabs for edge in (slab.first, slab.end)]
    assert edges == [0, *[edge for edge in edges[1:-1:2] for _ in (0, 1)], flat_tokens(PAIRS, range(len(PAIRS)))]
    assert len(flat.ids) == len(flat.positions) == bucket_size(edges[-1])
    assert not flat.ids[edges[-1] :].any()
    assert sum(slab.sees is None for slab in flat.slabs) == 3


@given(st.lists(st.integers(1, 6), min_size=1, max_size=5))
def test_a_slab_pads_with_zeros(lengths: list[int]) -> None:
    """Row by row the tokens lie left, behind them zeros, and places says which are real."""
    slab = SequenceSlab(0, lengths, CPU)
    x = torch.arange(1.0, sum(lengths) + 1)[:, None]
    padded = slab.padded(x)
    assert [int((row != 0).sum()) for row in padded] == lengths
    assert all(bool((row[:length] != 0).all()) for row, length in zip(padded, lengths, strict=True))
    real = padded.flatten(0, 1) if slab.places is None else padded.flatten(0, 1)[slab.places]
    torch.testing.assert_close(real, x)


@settings(deadline=None)
@given(st.integers(1, 1 << 20))
def test_a_bucket_is_little_larger_than_what_it_holds(count: int) -> None:
    """At most an eighth of the next power of two more, or what is missing to a multiple of 32."""
    assert count <= bucket_size(count) < count + max(32, count / 4)
    assert bucket_size(bucket_size(count)) == bucket_size(count)


def test_buckets_are_few() -> None:
    """Up to a full micro-batch of 2,048 tokens there are 37 sizes."""
    assert len({bucket_size(count) for count in range(1, 2049)}) == 37


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_a_micro_batch_keeps_to_its_budget_with_the_padding_that_it_gets(device: str) -> None:
    """Many short completions do not go beside a long one where all rows of a micro-batch are as wide as the longest, as
    they are everywhere but on a CPU."""
    place = torch.device(device)
    model = _model(torch.bfloat16, place)
    batches = model.micro_batches(UNEVEN, 8192, 1)
    slabs = [slab for members in batches for slab in pack_micro_batch(UNEVEN, members, place).flat.slabs]
    assert sorted(i for members in batches for i in members) == list(range(61))
    assert max(slab.rows * slab.width for slab in slabs) <= 8192
    assert max(slab.bias(torch.bfloat16).nbytes for slab in slabs) <= 4003 * 4000 * 2


def test_a_model_that_transformers_computes_pads_on_a_cpu_too() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(vocab_size=8, n_positions=8, n_embd=4, n_layer=1, n_head=1)
    model = TransformersModel(transformers.GPT2LMHeadModel(config), CPU, torch.float32)
    assert max(padded_tokens(UNEVEN, members) for members in model.micro_batches(UNEVEN, 8192, 1)) <= 8192


def test_where_rows_cannot_share_a_prompt_each_counts_with_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where several tokens cannot continue a layer's state, transformers computes the prompt of every row anew."""
    monkeypatch.setattr(CompletionStates, "_is_the_same", lambda _: False)
    transformers = pytest.importorskip("transformers")
    widths = {"vocab_size": 32, "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.AutoConfig.for_model("lfm2", **widths, num_key_value_heads=2, **TINY["lfm2"])
    model = TransformersModel(transformers.AutoModelForCausalLM.from_config(config), CPU, torch.float32)
    pairs, computed = [((3,) * 200, (row,) * 20) for row in range(16)], list[int]()
    model.module.register_forward_pre_hook(
        lambda _, __, given: computed.append(given["input_ids"].numel()), with_kwargs=True
    )
    for members in model.micro_batches(pairs, 1024, 1):
        model.token_logprobs(pack_micro_batch(pairs, members, CPU), model.weights(None), 1.0)
    assert sum(computed) >= 16 * 219
    assert max(computed) <= 1024


def test_a_config_that_makes_no_cache_keeps_no_model_from_being_loaded() -> None:
    transformers = pytest.importorskip("transformers")
    assert only_keys_and_values(transformers.GPT2Config())
    assert not only_keys_and_values(transformers.AutoConfig.for_model("lfm2", num_hidden_layers=2, **TINY["lfm2"]))
    assert not only_keys_and_values(transformers.AutoConfig.for_model("blt"))


def test_what_a_completion_longer_than_a_micro_batch_is_filled_up_with_and_its_mask_are_planned() -> None:
    """Of 4,096 tokens in bfloat16 the mask is 32 MiB, a tenth of such an update of a small model."""
    size = ModelSize(5_000_000, 470_000, 6, 256, 784, 128, 1024, heads=4)
    shape, meta = RoundShape(1, 4, 64, 4096), torch.device("meta")
    flat = pack_micro_batch([((1,) * 64, (2,) * 4096)], [0], meta).flat
    mask = flat.slabs[-1].bias(torch.bfloat16).nbytes
    of_tokens = len(flat.ids) * (6 * 2 * (10 * 256 + 2 * 784) + 16 * 256)
    assert bytes_to_update(size, shape, compute_bytes=2) > of_tokens + mask + COMPILED
    assert mask <= 2 * elements_of_masks(size, shape, [1]) < 1.01 * mask
    assert elements_of_masks(size, RoundShape(1, 4, 64, 256), [4]) == 0


class _Products(TorchDispatchMode):
    """Notes the shapes of all bfloat16 matrix products, by kind."""

    def __init__(self) -> None:
        super().__init__()
        self.shapes: dict[str, set[tuple[int, ...]]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in ("mm", "addmm", "bmm", "baddbmm", "baddbmm_"):
            shapes = [tuple(x.shape) for x in args if isinstance(x, torch.Tensor) and x.dtype == torch.bfloat16]
            if shapes:
                self.shapes.setdefault(name, set()).add(tuple(size for shape in shapes[-2:] for size in shape))
        return func(*args, **(kwargs or {}))


def test_ever_changing_lengths_give_products_of_few_shapes() -> None:
    """Forty batches of random lengths in bfloat16: attention makes no products that oneDNN compiles, and the linear
    layers make those of a few numbers of rows."""
    rng, model = random.Random(0), _model(torch.bfloat16)
    products, sizes = _Products(), set[int]()
    for _ in range(40):
        prompts = [tuple(rng.choices(range(70), k=rng.randint(3, 40))) for _ in range(4)]
        pairs = [(prompt, tuple(rng.choices(range(70), k=rng.randint(1, 20)))) for prompt in prompts for _ in range(3)]
        for members in plan_micro_batches(pairs, 128, flat=True):
            sizes.add(flat_tokens(pairs, members))
            with products:
                _gradient(model, pairs, members)
    assert len(sizes) > 30  # the lengths did change
    assert products.shapes.keys() == {"mm", "addmm"}
    kinds = 3 * (4 + 1)  # forward and both gradients of four projections and the unembedding
    assert sum(map(len, products.shapes.values())) <= kinds * len({bucket_size(size) for size in range(1, 129)})
