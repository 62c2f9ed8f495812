"""The fake engine learns something real, and can be slow on request."""

from __future__ import annotations

import numpy as np
import pytest

from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TrainSample
from sapo_backends.fake import FakeBackend


def test_it_learns_to_add() -> None:
    """Strict rewards on sums of two numbers rise from rare to usual within forty updates."""
    engine = FakeBackend().load(LoadRequest(model="fake"))
    rng = np.random.default_rng(0)
    means = []
    for seed in range(40):
        pairs = rng.integers(1, 50, (8, 2))
        prompts = [
            engine.tokenizer.encode_chat([{"role": "user", "content": f"Calculate {a} + {b}."}]) for a, b in pairs
        ]
        batch, rewards = [], []
        for prompt, (a, b), group in zip(prompts, pairs, engine.generate(prompts, 8, Sampling(), seed), strict=True):
            right = np.array([float(engine.tokenizer.decode(c.tokens) == f"<answer>{a + b}</answer>") for c in group])
            rewards.append(right.mean())
            advantages = right - right.mean()
            batch += [TrainSample(tuple(prompt), c.tokens, float(x)) for c, x in zip(group, advantages, strict=True)]
        engine.update(batch, PolicyUpdate(1e-5), seed)
        means.append(float(np.mean(rewards)))
    assert np.mean(means[:5]) < 0.3
    assert np.mean(means[-5:]) > 0.7


@pytest.mark.parametrize("model", ["fake", "fake:0.0", "starter"])
def test_any_model_name_loads(model: str) -> None:
    """The node's default model name is accepted, so that a demo needs no other settings."""
    assert FakeBackend().load(LoadRequest(model=model)).info.backend == "fake"
