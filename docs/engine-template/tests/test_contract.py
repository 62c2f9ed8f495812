"""What an engine promises, on a model that sapo-desktop brings along: python -m pytest"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import numpy as np
import pytest
from my_engine import MyBackend

from sapo_backends import reference
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample, token_weight

PROMPTS = [[5, 9, 200, 31], [7, 12]]
SAMPLING = Sampling(max_new_tokens=8)
POLICY = PolicyUpdate(learning_rate=1e-2)


@pytest.fixture
def engine() -> Iterator[Engine]:
    """A fresh one, with an adapter to train."""
    loaded = MyBackend().load(LoadRequest("starter-1m", "lora", "float32", "cpu", threads=1))
    yield loaded
    loaded.close()


def sampled(engine: Engine) -> tuple[list[TokenSequence], list[list[float]]]:
    """Two completions of each prompt, and the log-probabilities that generation gave their tokens."""
    groups = engine.generate(PROMPTS, 2, SAMPLING, seed=1)
    told = [(tuple(prompt), one) for prompt, group in zip(PROMPTS, groups, strict=True) for one in group]
    return [TokenSequence(prompt, one.tokens) for prompt, one in told], [list(one.logprobs) for _, one in told]


def test_what_was_sampled_is_scored_the_same_beside_other_rows_and_alone(engine: Engine) -> None:
    """Else importance weights are wrong."""
    sequences, logprobs = sampled(engine)
    assert sampled(engine)[0] == sequences, "the same seed gives the same text"
    for sequence, row, known in zip(sequences, engine.logprobs(sequences), logprobs, strict=True):
        np.testing.assert_allclose(row, known, atol=1e-4)
        np.testing.assert_allclose(engine.logprobs([sequence])[0], row, atol=1e-5)


def test_an_update_minimises_the_loss_of_the_reference(engine: Engine) -> None:
    """And what is preferred becomes more probable."""
    sequences, logprobs = sampled(engine)
    batch = [
        TrainSample(s.prompt, s.completion, advantage, old_logprobs=tuple(value - 0.1 for value in row))
        for s, row, advantage in zip(sequences, logprobs, cycle((1.0, -0.5)))
    ]
    before = [np.array(row) for row in engine.logprobs(sequences)]
    stats = engine.update(batch, POLICY, seed=0)
    expected = -sum(
        token_weight(sample, batch, POLICY) * reference.sample_term(sample, row, POLICY).value.sum()
        for sample, row in zip(batch, before, strict=True)
    )
    assert stats.loss == pytest.approx(expected, abs=1e-4)
    after = [np.array(row) for row in engine.logprobs(sequences)]
    gained = [float((new - old).sum()) * s.advantage for new, old, s in zip(after, before, batch, strict=True)]
    assert sum(gained) > 0
