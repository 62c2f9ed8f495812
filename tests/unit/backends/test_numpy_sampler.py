"""The sampler over NumPy logits, against the float64 reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sapo_backends import reference
from sapo_backends.base import Sampling
from sapo_backends.common import sampling


@settings(max_examples=40, deadline=None)
@given(
    st.integers(1, 1500),
    st.integers(0, 2**32 - 1),
    st.sampled_from([0.3, 1.0, 1.7]),
    st.sampled_from([0.2, 0.9, 1.0]),
    st.floats(0.0, 1.0, exclude_max=True),
)
def test_a_uniform_picks_the_token_that_the_cumulative_distribution_says(
    size: int, seed: int, temperature: float, top_p: float, uniform: float
) -> None:
    """For any vocabulary, temperature and top_p; the log-probability is that of the untruncated policy."""
    logits = np.random.default_rng(seed).normal(0, 4, (2, size)).astype(np.float32)
    tokens, logprobs = sampling.sample_tokens(logits, Sampling(temperature, top_p), np.array([uniform, 0.5]))
    for row, token, logprob, u in zip(logits, tokens, logprobs, (uniform, 0.5), strict=True):
        expected = reference.sampling_distribution(row, temperature, top_p)
        edges = np.cumsum(expected)
        assert expected[token] > 0.0
        assert (edges[token - 1] if token else 0.0) - 1e-5 <= u <= edges[token] + 1e-5
        assert logprob == pytest.approx(reference.log_softmax(row, temperature)[token], abs=1e-5)


def test_the_nucleus_of_a_flat_distribution_reaches_beyond_the_first_candidates() -> None:
    """Thousands of equal tokens: the search for the mass goes on until it is found."""
    kept = sampling.filter_top_p(np.ones((1, 20_000), np.float32), 0.5)
    assert int(kept.sum()) == 10_000


def test_greedy_takes_the_first_largest_logit() -> None:
    """Its log-probability is at temperature 1."""
    logits = np.array([[1.0, 3.0, 3.0, 0.0]], np.float32)
    tokens, logprobs = sampling.sample_tokens(logits, Sampling(temperature=0.0), np.array([0.9]))
    assert tokens.tolist() == [1]
    assert logprobs[0] == pytest.approx(reference.log_softmax(logits[0])[1], abs=1e-6)
