"""A self-test of an engine on the machine where it will run: does it compute the same as a second engine?

For devices that no automated test reaches, such as Apple's Metal. It takes seconds with the bundled starter. The second
engine runs without speed-only optimisations (Backend.plainly), so that torch can test its own fast paths.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from sapo_backends.base import (
    Backend,
    Completion,
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
"""Mean |difference of log-probabilities| that rounding explains; for any other precision LOOSE_DIFFERENCE applies."""
LOOSE_DIFFERENCE = 0.2
UPDATES = 3


@dataclass(frozen=True, slots=True)
class CheckResult:
    """name: what was tested. figure: the measured figure, in words."""

    name: str
    passed: bool
    figure: str


@dataclass(frozen=True, slots=True)
class ReferenceEngine:
    """The second engine. plainly: its backend's; every call is made inside it, since both engines may have the same
    backend."""

    engine: Engine
    plainly: Callable[[], AbstractContextManager[None]]

    def generate(self, prompts: list[list[int]], size: int, sampling: Sampling, seed: int) -> list[list[Completion]]:
        """See Engine.generate."""
        with self.plainly():
            return self.engine.generate(prompts, size, sampling, seed)

    def scores(self, sequences: Sequence[TokenSequence]) -> np.ndarray:
        """Log-probabilities of all completions' tokens, concatenated."""
        with self.plainly():
            return _scores(self.engine, sequences)


def _sequences(prompts: list[list[int]], groups: list[list[Completion]]) -> list[TokenSequence]:
    return [TokenSequence(tuple(p), c.tokens) for p, g in zip(prompts, groups, strict=True) for c in g]


def _agrees(name: str, engine: Engine, found: np.ndarray, expected: np.ndarray) -> CheckResult:
    """Whether log-probabilities agree within the engine's rounding."""
    difference = float(np.abs(found - expected).mean())
    bound = MEAN_DIFFERENCE.get(engine.info.precision, LOOSE_DIFFERENCE)
    return CheckResult(name, difference <= bound, f"mean difference {difference:.1e}, allowed {bound:.0e}")


def _prompts(engine: Engine) -> list[list[int]]:
    return [list(engine.tokenizer.encode_chat([{"role": "user", "content": text}])) for text in QUESTIONS]


def _scores(engine: Engine, sequences: Sequence[TokenSequence]) -> np.ndarray:
    return np.concatenate([np.array(row) for row in engine.logprobs(sequences)])


def _generation(engine: Engine, reference: ReferenceEngine) -> Iterator[CheckResult]:
    prompts, greedy = _prompts(engine), Sampling(temperature=0.0, max_new_tokens=24)
    answers, expected = engine.generate(prompts, 1, greedy, 0), reference.generate(prompts, 1, greedy, 0)
    same = sum(a[0].tokens == b[0].tokens for a, b in zip(answers, expected, strict=True))
    exact = engine.info.precision == "float32"
    enough = len(prompts) if exact else len(prompts) // 2
    yield CheckResult("greedy answers equal the second engine's", same >= enough, f"{same} of {len(prompts)}")
    began = time.perf_counter()
    sampled = [engine.generate(prompts, 4, Sampling(max_new_tokens=32), seed=1) for _ in range(2)]
    rate = sum(len(c.tokens) for groups in sampled for g in groups for c in g) / (time.perf_counter() - began)
    yield CheckResult(
        "the same seed samples the same", sampled[0] == sampled[1], f"{rate:.0f} tokens/s at width {4 * len(prompts)}"
    )
    reported = np.array([p for groups in sampled[0] for c in groups for p in c.logprobs])
    scored = reference.scores(_sequences(prompts, sampled[0]))
    yield _agrees("log-probabilities of sampled tokens equal the second engine's", engine, reported, scored)


def _scoring(engine: Engine, reference: ReferenceEngine) -> CheckResult:
    prompts = _prompts(engine)
    sequences = _sequences(prompts, reference.generate(prompts, 2, Sampling(max_new_tokens=24), seed=2))
    logprobs, expected = _scores(engine, sequences), reference.scores(sequences)
    return _agrees("log-probabilities equal the second engine's", engine, logprobs, expected)


def _training(engine: Engine) -> Iterator[CheckResult]:
    prompts = _prompts(engine)[:4]
    groups = engine.generate(prompts, 4, Sampling(max_new_tokens=24), seed=3)
    separate = engine.separate_generator
    batch = [
        TrainSample(tuple(p), c.tokens, 1.0 if i % 2 else -1.0, behaviour_logprobs=c.logprobs if separate else None)
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
        yield CheckResult(
            "updates follow the advantage", moved > 0.0, f"{moved:+.2f} nats, {stats[-1].seconds:.2f} s an update"
        )
        engine.restore(Path(name))
        back = float(np.abs(_scores(engine, sequences) - start).max())
        yield CheckResult("a saved model comes back", back <= 1e-4, f"largest difference {back:.0e}")


def verify_engine(backend: type[Backend], reference: type[Backend], request: LoadRequest) -> list[CheckResult]:
    """Compare the engine that `request` loads with a second one in float32 on the processor, without its fast paths.

    Raises BackendUnavailable and whatever else loading raises; a failure of the engine itself is a failed check.
    """
    second = LoadRequest(model=request.model, method="none", precision="float32", device="cpu", threads=request.threads)
    with reference.plainly():
        other = reference().load(second)
    engine, compared = backend().load(request), ReferenceEngine(other, reference.plainly)
    checks = [CheckResult("the engine loads", True, f"{engine.info.device}, {engine.info.precision}")]
    steps: list[Callable[[], Iterator[CheckResult]]] = [
        lambda: _generation(engine, compared),
        lambda: iter([_scoring(engine, compared)]),
    ]
    if backend.CAN_TRAIN and engine.info.method != "none":
        steps.append(lambda: _training(engine))
    try:
        for step in steps:
            try:
                checks += step()
            except Exception as error:  # any exception from a broken engine is a finding
                checks.append(CheckResult("the engine works through", False, f"{type(error).__name__}: {error}"))
    finally:
        engine.close()
        other.close()
    return checks
