"""Captured decode steps: what is captured computes the same as a plain step. The capture itself needs a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_backends.base import LoadRequest, Sampling  # noqa: E402
from sapo_backends.torch_backend import TorchBackend, decode_session, runtime  # noqa: E402
from sapo_backends.torch_backend.decode_session import GraphCapture, StepInputs  # noqa: E402

PROMPTS = [[5, 9, 200, 31], [7, 7, 12], [40, 3, 8, 250, 17, 60]]


class Replayed:
    """Computes what a GPU would replay."""

    def __init__(self, inputs: StepInputs, compute: Callable[[StepInputs], Any]) -> None:
        self.inputs, self.compute, self.steps = inputs, compute, 0
        self.logits = self.expected = compute(inputs)

    def step(self, tokens: Any) -> Any:
        self.inputs.advance(tokens)
        self.steps += 1
        return self.compute(self.inputs)


class Here(GraphCapture):
    """Captures on a CPU."""

    def wanted(self, device: Any) -> bool:
        return device not in self.failed


def capture_here(monkeypatch: pytest.MonkeyPatch, kind: type[Replayed]) -> Here:
    here = Here()
    monkeypatch.setattr(decode_session, "CapturedStep", kind)
    monkeypatch.setattr(decode_session, "CAPTURE", here)
    monkeypatch.setattr(decode_session, "CAPTURE", here)
    return here


@pytest.fixture(autouse=True)
def _as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there are no kernels compiled for the processor."""
    monkeypatch.setattr("sapo_backends.torch_backend.paths.load_kernels", lambda: None)


@pytest.mark.parametrize(("family", "method"), [("qwen2", "full"), ("qwen2", "lora"), ("gemma2", "full")])
def test_captured_steps_sample_what_plain_ones_sample(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch, family: str, method: Any
) -> None:
    made: list[Replayed] = []

    class Counted(Replayed):
        def __init__(self, inputs: StepInputs, compute: Callable[[StepInputs], Any]) -> None:
            super().__init__(inputs, compute)
            made.append(self)

    engine = TorchBackend().load(LoadRequest(str(model_folder(family)), method=method, precision="float32", threads=1))
    sampling = Sampling(max_new_tokens=24)
    plain = engine.generate(PROMPTS, 5, sampling, seed=3)
    here = capture_here(monkeypatch, Counted)
    captured = engine.generate(PROMPTS, 5, sampling, seed=3)
    assert [[c.tokens for c in group] for group in captured] == [[c.tokens for c in group] for group in plain]
    for mine, theirs in zip(chain(*captured), chain(*plain), strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5)
    assert not here.failed
    assert sum(one.steps for one in made) > len(made), "steps were replayed"


@pytest.mark.parametrize("wrong", ["raises", "differs", "replays differ"])
def test_a_gpu_that_cannot_capture_decodes_plainly_from_then_on(
    model_folder: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    wrong: str,
) -> None:
    """Whatever goes wrong, completions are those of plain steps, and one line of the log says so."""
    tried: list[int] = []

    class Broken(Replayed):
        def __init__(self, inputs: StepInputs, compute: Callable[[StepInputs], Any]) -> None:
            tried.append(1)
            if wrong == "raises":
                raise RuntimeError("operation not permitted when stream is capturing")
            super().__init__(inputs, compute)
            if wrong == "differs":
                self.logits = self.expected + 1

        def step(self, tokens: Any) -> Any:
            return super().step(tokens) + 1

    engine = TorchBackend().load(LoadRequest(str(model_folder("qwen2")), precision="float32", threads=1))
    plain = engine.generate(PROMPTS, 2, Sampling(max_new_tokens=6), seed=3)
    here = capture_here(monkeypatch, Broken)
    monkeypatch.setattr(runtime, "_FOUND", {})
    found = list(chain(*engine.generate(PROMPTS, 2, Sampling(max_new_tokens=6), seed=3)))
    assert [c.tokens for c in found] == [c.tokens for c in chain(*plain)]
    for mine, theirs in zip(found, chain(*plain), strict=True):
        assert mine.logprobs == pytest.approx(theirs.logprobs, abs=1e-5), "steps before the fall are of another shape"
    assert here.failed == {torch.device("cpu")}
    assert tried == [1]
    assert [record.message.count("CUDA graphs") for record in caplog.records] == [1]


def test_after_a_capture_that_fails_the_stream_of_before_is_the_current_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """With torch.cuda.graph as it is up to torch 2.13."""

    class Stream:
        def wait_stream(self, other: object) -> None: ...

    before, here = Stream(), [Stream()]
    here[0] = before

    @contextmanager
    def on(stream: Stream) -> Iterator[None]:
        was, here[0] = here[0], stream
        try:
            yield
        finally:
            here[0] = was

    class Capture:
        def __init__(self, graph: object) -> None: ...

        def __enter__(self) -> None:
            here[0] = Stream()

        def __exit__(self, *_: object) -> None:
            raise RuntimeError("operation failed due to a previous error during capture")

    replaced = {"device": lambda _: nullcontext(), "Stream": Stream, "current_stream": lambda: here[0], "stream": on}
    for name, what in (replaced | {"CUDAGraph": object, "graph": Capture}).items():
        monkeypatch.setattr(torch.cuda, name, what)
    nothing = torch.zeros(1)
    with pytest.raises(RuntimeError, match="previous error"):
        decode_session.CapturedStep(StepInputs(nothing, nothing, nothing, nothing), lambda _: nothing)
    assert here == [before]


def test_replays_are_compared_with_plain_steps_only_the_first_time_a_device_is_used(
    model_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = TorchBackend().load(LoadRequest(str(model_folder("qwen2")), precision="float32", threads=1))
    here = capture_here(monkeypatch, Replayed)
    for _ in range(3):
        engine.generate(PROMPTS, 2, Sampling(max_new_tokens=12), seed=3)
    assert here.checked == {torch.device("cpu"): decode_session.CHECKED_STEPS}
    assert not here.failed
