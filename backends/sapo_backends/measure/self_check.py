"""A self-test of an engine on the machine where it will work: does it compute what a second engine computes?

Made for devices that no automatic test reaches, such as Apple's Metal. It takes seconds with the bundled starter.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sapo_backends.base import (
    Backend,
    Engine,
    LoadRequest,
    PolicyUpdate,
    Sampling,
    TokenSequence,
    TrainSample,
)

POLICY = PolicyUpdate(learning_rate=1e-4)
QUESTIONS = tuple(f"What is {i} + {3 * i}?" for i in range(8))
MEAN_DIFFERENCE = {"float32": 1e-3, "bfloat16": 0.05}
"""Mean |difference of log-probabilities| that rounding explains; any other precision may differ by LOOSE_DIFFERENCE."""
LOOSE_DIFFERENCE = 0.2
UPDATES = 3


@dataclass(frozen=True, slots=True)
class Check:
    """name: what was tested. passed: with which figure, in words."""

    name: str
    passed: bool
    figure: str


def _prompts(engine: Engine) -> list[list[int]]:
    return [list(engine.tokenizer.encode_chat([{"role": "user", "content": text}])) for text in QUESTIONS]


def _scores(engine: Engine, sequences: Sequence[TokenSequence]) -> np.ndarray:
    return np.concatenate([np.array(row) for row in engine.logprobs(sequences)])


def _generation(engine: Engine, reference: Engine) -> Iterator[Check]:
    prompts, greedy = _prompts(engine), Sampling(temperature=0.0, max_new_tokens=24)
    answers = [[g[0].tokens for g in e.generate(prompts, 1, greedy, seed=0)] for e in (engine, reference)]
    same = sum(a == b for a, b in zip(*answers, strict=True))
    exact = engine.info.precision == "float32"
    enough = len(prompts) if exact else len(prompts) // 2
    yield Check("greedy answers equal the second engine's", same >= enough, f"{same} of {len(prompts)}")
    began = time.perf_counter()
    sampled = [engine.generate(prompts, 4, Sampling(max_new_tokens=32), seed=1) for _ in range(2)]
    rate = sum(len(c.tokens) for groups in sampled for g in groups for c in g) / (time.perf_counter() - began)
    yield Check(
        "the same seed samples the same", sampled[0] == sampled[1], f"{rate:.0f} tokens/s at width {4 * len(prompts)}"
    )


def _scoring(engine: Engine, reference: Engine) -> Check:
    prompts = _prompts(reference)
    groups = reference.generate(prompts, 2, Sampling(max_new_tokens=24), seed=2)
    sequences = [TokenSequence(tuple(p), c.tokens) for p, g in zip(prompts, groups, strict=True) for c in g]
    difference = float(np.abs(_scores(engine, sequences) - _scores(reference, sequences)).mean())
    bound = MEAN_DIFFERENCE.get(engine.info.precision, LOOSE_DIFFERENCE)
    return Check(
        "log-probabilities equal the second engine's",
        difference <= bound,
        f"mean difference {difference:.1e}, allowed {bound:.0e}",
    )


def _training(engine: Engine) -> Iterator[Check]:
    prompts = _prompts(engine)[:4]
    groups = engine.generate(prompts, 4, Sampling(max_new_tokens=24), seed=3)
    batch = [
        TrainSample(tuple(p), c.tokens, 1.0 if i % 2 else -1.0)
        for p, g in zip(prompts, groups, strict=True)
        for i, c in enumerate(g)
    ]
    sequences = [TokenSequence(s.prompt, s.completion) for s in batch]
    signs = np.concatenate([np.full(len(s.completion), s.advantage) for s in batch])
    with tempfile.TemporaryDirectory(prefix="sapo-verify-") as name:
        start = _scores(engine, sequences)
        engine.save(Path(name))
        stats = [engine.update(batch, POLICY, seed) for seed in range(UPDATES)]
        moved = float(((_scores(engine, sequences) - start) * signs).sum())
        yield Check(
            "updates follow the advantage", moved > 0.0, f"{moved:+.2f} nats, {stats[-1].seconds:.2f} s an update"
        )
        engine.restore(Path(name))
        back = float(np.abs(_scores(engine, sequences) - start).max())
        yield Check("a saved model comes back", back <= 1e-4, f"largest difference {back:.0e}")


def verify(backend: type[Backend], reference: type[Backend], request: LoadRequest) -> list[Check]:
    """Compare an engine as `request` loads it with a second one in float32 on the processor.

    Raises BackendUnavailable and what else loading raises; a failure of the engine itself is a failed check.
    """
    second = LoadRequest(model=request.model, method="none", precision="float32", device="cpu", threads=request.threads)
    other, engine = reference().load(second), backend().load(request)
    checks = [Check("the engine loads", True, f"{engine.info.device}, {engine.info.precision}")]
    steps: list[Callable[[], Iterator[Check]]] = [
        lambda: _generation(engine, other),
        lambda: iter([_scoring(engine, other)]),
    ]
    if backend.CAN_TRAIN and engine.info.method != "none":
        steps.append(lambda: _training(engine))
    try:
        for step in steps:
            try:
                checks += step()
            except Exception as error:  # whatever a broken engine does is a finding
                checks.append(Check("the engine works through", False, f"{type(error).__name__}: {error}"))
    finally:
        engine.close()
        other.close()
    return checks
