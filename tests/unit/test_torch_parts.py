"""Parts of the torch engine that the contract does not see: the sampler's exactness, packing, sharing out of work."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from sapo_backends.torch_backend.fused import rms_norm, rotate, swiglu  # noqa: E402 - after the check for torch
from sapo_backends.torch_backend.packing import pack, plan  # noqa: E402
from sapo_backends.torch_backend.sampler import inverse_cdf, uniforms  # noqa: E402
from sapo_backends.torch_backend.scoring import chosen_logprobs  # noqa: E402
from sapo_backends.torch_backend.workers import Workers, shares  # noqa: E402


@settings(deadline=None)
@given(st.integers(1, 700), st.integers(0, 2**31))
def test_the_sampler_inverts_the_cumulative_distribution(size: int, seed: int) -> None:
    """For any weights with zeros among them it gives the index that a float64 search gives, and never a zero one."""
    rng = np.random.default_rng(seed)
    weights = (rng.random((3, size)) ** 8 * (rng.random((3, size)) < 0.7)).astype(np.float32)
    weights[:, rng.integers(size)] += 0.1
    uniform = np.array([0.0, rng.random(), 1.0 - 2.0**-53])
    found = inverse_cdf(torch.from_numpy(weights), torch.from_numpy(uniform)).numpy()
    edges = weights.astype(np.float64).cumsum(axis=1)
    for row in range(3):
        assert weights[row, found[row]] > 0
        target = uniform[row] * edges[row, -1]
        assert edges[row, found[row]] >= target - 1e-6 * edges[row, -1]
        assert edges[row, found[row]] - weights[row, found[row]] <= target + 1e-6 * edges[row, -1]


def test_a_large_vocabulary_is_sampled_exactly() -> None:
    """Over 150,000 float32 probabilities the index is the one that exact summation gives, or its neighbour."""
    torch.manual_seed(0)
    probabilities = (torch.randn(1, 150_001) * 3).softmax(-1)
    uniform = torch.rand(400, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    found = inverse_cdf(probabilities.expand(400, -1), uniform)
    edges = probabilities[0].double().cumsum(0)
    exact = torch.searchsorted(edges, uniform * edges[-1], right=True)
    assert float((found == exact).double().mean()) > 0.95
    assert float((edges[found] - edges[exact]).abs().max()) < 2e-6


def test_uniforms_of_a_row_do_not_depend_on_the_others() -> None:
    """The same seed gives the same numbers, all in [0, 1)."""
    first = uniforms(4, 6, seed=9)
    assert torch.equal(first, uniforms(4, 6, seed=9))
    assert 0 <= float(first.min()) <= float(first.max()) < 1


PAIRS = st.lists(
    st.tuples(st.sampled_from([(1, 2), (3,), (4, 5, 6)]), st.lists(st.integers(0, 9), max_size=9).map(tuple)),
    max_size=20,
)


@settings(deadline=None)
@given(PAIRS, st.integers(1, 60), st.integers(1, 3))
def test_micro_batches_are_a_partition_within_the_budget(pairs: list, budget: int, workers: int) -> None:
    """Every non-empty completion appears once; a micro-batch exceeds the budget only if it is a single sequence."""
    batches = plan(pairs, budget, workers)
    assert sorted(i for members in batches for i in members) == [i for i, (_, c) in enumerate(pairs) if c]
    for members in batches:
        packed = pack(pairs, members, torch.device("cpu"), torch.float32)
        assert len(members) == 1 or len(packed.ids) <= budget
        assert packed.targets.tolist() == [token for i in members for token in pairs[i][1]]


def test_hand_written_gradients_equal_autograd() -> None:
    """Normalisation, gate, rotation and chunked log-probabilities, in float64."""
    torch.manual_seed(0)
    x, w = (
        torch.randn(5, 8, dtype=torch.float64, requires_grad=True),
        torch.randn(8, dtype=torch.float64, requires_grad=True),
    )
    assert torch.autograd.gradcheck(lambda a, b: rms_norm(a, b, 1e-6), (x, w), atol=1e-5)
    assert torch.autograd.gradcheck(swiglu, (x,))
    angle = torch.randn(5, 1, 4, dtype=torch.float64).repeat(1, 1, 2)
    heads = torch.randn(5, 3, 8, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: rotate(a, angle.cos(), angle.sin()), (heads,))


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_chunked_logprobs_equal_autograd(temperature: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values, entropy and both gradients, whether probabilities are kept or made again chunk by chunk."""
    torch.manual_seed(0)
    head = torch.randn(11, 4, requires_grad=True)
    hidden, targets = torch.randn(9, 4, requires_grad=True), torch.randint(0, 11, (9,))
    weight = torch.randn(9)
    expected = (hidden @ head.t() / temperature).log_softmax(-1)
    chosen = expected.gather(1, targets[:, None])[:, 0]
    wanted = torch.autograd.grad((chosen * weight).sum(), (hidden, head))
    for kept, chunk in ((1 << 20, 1 << 20), (0, 22), (1 << 20, 22)):
        monkeypatch.setattr("sapo_backends.torch_backend.scoring.KEEP_ELEMENTS", kept)
        monkeypatch.setattr("sapo_backends.torch_backend.scoring.CHUNK_ELEMENTS", chunk)
        found = chosen_logprobs(hidden, head, targets, temperature)
        torch.testing.assert_close(found.logprobs, chosen)
        torch.testing.assert_close(found.entropy, -(expected.exp() * expected).sum(-1).detach())
        for got, want in zip(torch.autograd.grad((found.logprobs * weight).sum(), (hidden, head)), wanted, strict=True):
            torch.testing.assert_close(got, want)


@given(st.integers(0, 50), st.integers(1, 9))
def test_shares_cover_everything_once(total: int, count: int) -> None:
    """Consecutive, none empty, sizes within one of each other."""
    parts = shares(total, count)
    assert [i for part in parts for i in part] == list(range(total))
    assert not parts or max(map(len, parts)) - min(map(len, parts)) <= 1


def test_an_error_in_a_shard_waits_for_the_others() -> None:
    """The caller sees the first error only when no shard is still computing."""
    workers = Workers(2, parameters=1, device=torch.device("cpu"))
    finished = threading.Event()

    def work(item: int) -> int:
        if item == 0:
            raise ValueError("shard 0")
        finished.set()
        return item

    with pytest.raises(ValueError, match="shard 0"):
        workers.map(work, [0, 1])
    assert finished.is_set()
    assert workers.map(lambda item: item + 1, [1, 2, 3]) == [2, 3, 4]
    workers.close()
