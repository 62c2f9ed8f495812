"""Hand-written gradients of the torch engine against autograd, in float64."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest

torch = pytest.importorskip("torch")

from sapo_backends.checkpoints.spec import decoder_spec  # noqa: E402
from sapo_backends.torch_backend.attention import GroupAttention  # noqa: E402
from sapo_backends.torch_backend.ops import (  # noqa: E402
    adapted_mlp,
    apply_rope,
    chosen_logprobs,
    rms_norm,
    swiglu,
    wide_rms_norm,
)
from sapo_backends.torch_backend.packing import pack_micro_batch  # noqa: E402


def test_hand_written_gradients_equal_autograd() -> None:
    """Normalisation, gate, rotation and chunked log-probabilities, in float64."""
    torch.manual_seed(0)
    x, w = (
        torch.randn(5, 8, dtype=torch.float64, requires_grad=True),
        torch.randn(8, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-6), (x, w), atol=1e-5)
    assert torch.autograd.gradcheck(swiglu, (x,))


@pytest.mark.parametrize("biased", [True, False])
def test_an_adapted_mlp_equals_its_formula_in_value_and_gradient(biased: bool) -> None:
    """residual + down(silu(gate x) * up x), each projection with its adapter, against autograd in float64."""
    torch.manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, dtype=torch.float64)

    w_gate_up, c_gate_up, w_down, c_down = random(12, 4), random(12), random(4, 6), random(4)
    if not biased:
        c_gate_up, c_down = torch.zeros_like(c_gate_up), torch.zeros_like(c_down)
    x, residual = random(5, 4), random(5, 4)
    adapter = random(4, 4), random(6, 2), random(6, 2), random(2, 6), random(4, 2)
    leaves = [t.requires_grad_() for t in (x, residual, *adapter)]

    def formula(x: torch.Tensor, residual: torch.Tensor, *adapter: torch.Tensor) -> torch.Tensor:
        a_both, b_gate, b_up, a_down, b_down = adapter
        gate = x @ (w_gate_up[:6] + 0.5 * b_gate @ a_both[:2]).T + c_gate_up[:6]
        up = x @ (w_gate_up[6:] + 0.5 * b_up @ a_both[2:]).T + c_gate_up[6:]
        return residual + torch.nn.functional.silu(gate) * up @ (w_down + 0.5 * b_down @ a_down).T + c_down

    def ours(x: torch.Tensor, residual: torch.Tensor, *adapter: torch.Tensor) -> torch.Tensor:
        biases = (c_gate_up, c_down) if biased else (None, None)
        return adapted_mlp(x, residual, (w_gate_up, biases[0]), (w_down, biases[1]), 0.5, *adapter)

    grad = random(5, 4)
    expected, found = formula(*leaves), ours(*leaves)
    torch.testing.assert_close(found, expected)
    for a, b in zip(*(torch.autograd.grad(y, leaves, grad) for y in (found, expected)), strict=True):
        torch.testing.assert_close(a, b)


def _angles(count: int, size: int) -> tuple[torch.Tensor, torch.Tensor]:
    angle = torch.randn(count, 1, size // 2, dtype=torch.float64)
    return torch.cat((angle.cos(), angle.cos()), -1), torch.cat((-angle.sin(), angle.sin()), -1)


def test_a_rotation_turns_each_plane_and_is_undone_by_the_opposite_one() -> None:
    """Lengths stay, the sum of two angles is one rotation, and -sin rotates back."""
    x = torch.randn(5, 3, 8, dtype=torch.float64)
    cos, sin = _angles(5, 8)
    rotated = x.clone()
    apply_rope(rotated, cos, sin)
    expected = torch.complex(x[..., :4], x[..., 4:]) * torch.complex(cos[..., :4], sin[..., 4:])
    torch.testing.assert_close(rotated, torch.cat((expected.real, expected.imag), -1))
    apply_rope(rotated, cos, -sin)
    torch.testing.assert_close(rotated, x)


SPEC = decoder_spec(
    {
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 10,
        "hidden_size": 16,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
    }
)


@pytest.mark.parametrize(
    ("plain", "separate", "window", "cap"),
    [(True, True, 0, 0.0), (False, True, 0, 0.0), (False, False, 0, 0.0), (True, True, 4, 0.7), (False, False, 4, 0.7)],
)
def test_the_gradient_of_shared_prompt_attention_equals_autograd(
    plain: bool, separate: bool, window: int, cap: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two prompts of different lengths, three completions, grouped heads; by products and by the fused kernel, each
    prompt for itself as on a CPU and all together as elsewhere; with a window and with capped scores."""
    monkeypatch.setattr("sapo_backends.torch_backend.packing.slab_per_prompt", lambda _: separate)
    monkeypatch.setattr("sapo_backends.torch_backend.attention.FULL_SCORES", 1 << 23 if plain else 0)
    torch.manual_seed(0)
    pairs = [((1, 2, 3), (4, 5, 6)), ((1, 2, 3), (7, 8)), ((1, 2, 3, 4, 5), (6, 7, 8))]
    flat = pack_micro_batch(pairs, [0, 1, 2], torch.device("cpu")).flat
    spec = replace(SPEC, window=window, layer_windowed=(window > 0,), softcap=cap)
    attend = GroupAttention(spec, flat.longest, flat.slabs)
    cos, sin = _angles(len(flat.ids), 4)
    rows = torch.randn(len(flat.ids), 4 + 2 * 2, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x: attend(0, 4, x, cos, sin), (rows,))


@pytest.mark.parametrize(("plain", "separate"), [(True, True), (False, True), (False, False)])
def test_shared_prompt_attention_in_bfloat16_is_that_in_float32_but_for_rounding(
    plain: bool, separate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Result and gradient, in every layout: what comes back into a prompt is summed in float32 in between."""
    monkeypatch.setattr("sapo_backends.torch_backend.packing.slab_per_prompt", lambda _: separate)
    monkeypatch.setattr("sapo_backends.torch_backend.attention.FULL_SCORES", 1 << 23 if plain else 0)
    torch.manual_seed(0)
    flat = pack_micro_batch(
        [((1, 2, 3), (4, 5, 6)), ((1, 2, 3), (7, 8)), ((1, 2, 3, 4, 5), (6, 7, 8))], [0, 1, 2], torch.device("cpu")
    ).flat
    angles, rows = _angles(len(flat.ids), 4), torch.randn(len(flat.ids), 8, 4)
    found = []
    for kind in (torch.float32, torch.bfloat16):
        leaf = rows.to(kind).requires_grad_()
        mixed = GroupAttention(SPEC, flat.longest, flat.slabs)(0, 4, leaf, *(x.to(kind) for x in angles))
        found.append((mixed.float(), torch.autograd.grad(mixed.float().square().sum(), leaf)[0].float()))
    for exact, rounded in zip(*found, strict=True):
        torch.testing.assert_close(rounded, exact, atol=0.03, rtol=0.03)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_logprobs_equal_autograd(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, entropy and both gradients, through a trained and a frozen head, whether probabilities are kept or made
    again, by chunks and by blocks of them."""
    torch.manual_seed(0)
    head = torch.randn(11, 4, requires_grad=True)
    hidden, targets = torch.randn(9, 4, requires_grad=True), torch.randint(0, 11, (9,))
    weight = torch.randn(9)
    expected = (hidden @ head.t() / temperature).log_softmax(-1)
    chosen = expected.gather(1, targets[:, None])[:, 0]
    wanted = torch.autograd.grad((chosen * weight).sum(), (hidden, head))
    for kept, chunk, block in product((1 << 20, 0), (1 << 20, 22), (1 << 20, 11)):
        monkeypatch.setattr("sapo_backends.common.round_memory.KEPT_PROBABILITIES", kept)
        monkeypatch.setattr("sapo_backends.common.round_memory.CHUNK", chunk)
        monkeypatch.setattr("sapo_backends.torch_backend.ops.BLOCK_ELEMENTS", block)
        found = chosen_logprobs(hidden, head, targets, temperature)
        torch.testing.assert_close(found.logprobs, chosen)
        torch.testing.assert_close(found.entropy, -(expected.exp() * expected).sum(-1).detach())
        for got, want in zip(torch.autograd.grad((found.logprobs * weight).sum(), (hidden, head)), wanted, strict=True):
            torch.testing.assert_close(got, want)
        frozen = chosen_logprobs(hidden, head.detach(), targets, temperature).logprobs
        torch.testing.assert_close(torch.autograd.grad((frozen * weight).sum(), hidden)[0], wanted[0])


def test_the_norm_that_is_computed_wide_has_gradients_that_are_rounded_once() -> None:
    """Of values in bfloat16, beside autograd in float64."""
    torch.manual_seed(0)
    x, weight, grad = (torch.randn(shape).bfloat16() for shape in ((7, 32), (32,), (7, 32)))
    wide = [tensor.double().requires_grad_() for tensor in (x, weight)]
    normal = wide[0] * (wide[0].square().mean(-1, keepdim=True) + 1e-6).rsqrt() * (1.0 + wide[1])
    expected = torch.autograd.grad((normal * grad.double()).sum(), wide)
    narrow = [tensor.clone().requires_grad_() for tensor in (x, weight)]
    found = wide_rms_norm(*narrow, 1.0, 1e-6)
    torch.testing.assert_close(found.double(), normal, rtol=2**-8, atol=0)
    for mine, theirs in zip(torch.autograd.grad((found * grad).sum(), narrow), expected, strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=2**-7, atol=2**-8)
