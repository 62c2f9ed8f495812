"""Layers that carry a state, by the compiled kernels: beside the same rule in float64, token after token."""

from __future__ import annotations

import os
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from sapo_backends.common import hardware  # noqa: E402
from sapo_backends.torch_backend import recurrence  # noqa: E402
from sapo_backends.torch_backend.native import load_kernels  # noqa: E402

pytestmark = pytest.mark.skipif(
    hardware.c_compiler() is None and os.environ.get("CI") != "true", reason="no C compiler. Fix: apt-get install gcc"
)

ROWS, GROUPS, HEADS = 3, 2, 4
SIZES = [(48, 16, 32), (16, 144, 5), (32, 64, 1), (16, 16, 16), (16, 64, 33)]
"""Keys, values, tokens: whole blocks of columns and a rest, whole spans of tokens and a rest."""


def _given(keys: int, values: int, tokens: int, delta: bool) -> list[Any]:
    torch.manual_seed(keys + values + tokens)
    unit = torch.nn.functional.normalize(torch.randn(2, ROWS, tokens, GROUPS, keys), dim=-1)
    v, state = torch.randn(ROWS, tokens, HEADS, values), torch.randn(ROWS, HEADS, keys, values)
    decay, beta = torch.rand(2, ROWS, tokens, HEADS)
    return [unit[0], unit[1], v, decay, beta if delta else None, state]


@pytest.mark.parametrize("delta", [True, False])
@pytest.mark.parametrize(("keys", "values", "tokens"), SIZES)
@pytest.mark.parametrize("threads", [1, 2])
def test_what_is_read_the_state_and_all_gradients_are_those_of_the_rule(
    keys: int, values: int, tokens: int, delta: bool, threads: int
) -> None:
    found, before = load_kernels(), torch.get_num_threads()
    given = [None if x is None else x.requires_grad_() for x in _given(keys, values, tokens, delta)]
    if threads == 2:  # as they lie where a model's are views of others
        given = [None if x is None else x.detach().mT.contiguous().mT.requires_grad_() for x in given]
    exact = [None if x is None else x.detach().double().requires_grad_() for x in given]
    leaves = [x for x in given if x is not None], [x for x in exact if x is not None]
    torch.set_num_threads(threads)
    try:
        mine = recurrence.NativeRecurrence.apply(found, *given)
        weights = [torch.linspace(-2.0, 3.0, x.numel()).view_as(x) for x in mine]
        gradients = torch.autograd.grad(sum((x * w).sum() for x, w in zip(mine, weights, strict=True)), leaves[0])
    finally:
        torch.set_num_threads(before)
    wanted = recurrence.by_the_rule(*exact)
    expected = torch.autograd.grad(sum((x * w).sum() for x, w in zip(wanted, weights, strict=True)), leaves[1])
    for a, b in zip((*mine, *gradients), (*wanted, *expected), strict=True):
        assert float((a.detach().double() - b.detach()).norm() / b.detach().norm()) < 2e-6


def test_one_token_changes_a_state_that_lies_as_transformers_keeps_it() -> None:
    found = load_kernels()
    q, k, v, decay, _, state = _given(32, 48, 1, False)
    out, after = recurrence.by_the_rule(q, k, v, decay, None, state)
    turned = state.mT.contiguous()
    read = recurrence.step_state(found, q[:, 0], k[:, 0], v[:, 0], decay[:, 0], turned)
    torch.testing.assert_close(read, out[:, 0])
    torch.testing.assert_close(turned.mT, after)


def test_what_decays_to_nothing_is_no_subnormal_number() -> None:
    """Products with such numbers take a hundred times as long."""
    found = load_kernels()
    q, k, v, decay, _, state = _given(16, 16, 64, False)
    recurrence.advance_state(found, q, k * 0.0, v, decay * 0.0 + 0.1, None, state)
    small = state[(state != 0.0) & (state.abs() < torch.finfo(torch.float32).tiny)]
    assert len(small) == 0


def test_a_compiler_that_made_something_else_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its kernels are left out, which is noted, and the model is computed as transformers does."""
    noted = dict[str, str]()
    monkeypatch.setattr(recurrence, "leave_out", lambda name: noted.setdefault(name, ""))
    monkeypatch.setattr(recurrence, "fall_back", noted.__setitem__)
    assert recurrence.kernels_that_work() is not None
    monkeypatch.setattr(recurrence, "_works", recurrence._works.__wrapped__)
    monkeypatch.setattr(recurrence, "advance_state", lambda found, q, k, v, *rest: v * 1.01)
    assert recurrence.kernels_that_work() is None
    assert noted == {"native": "layers with a state come out different"}
