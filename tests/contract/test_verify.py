"""The self-test that a person runs on a device which no automatic test reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, Progress
from sapo_backends.measure.self_check import verify_engine
from sapo_backends.torch_backend import TorchBackend

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from sapo_backends.torch_backend import (  # noqa: E402
    device_check,
    native,
    runtime,
)


@pytest.mark.parametrize("name", ["mlx", "llamacpp"])
def test_a_sound_engine_passes_every_check(name: str, model_folder: Callable[[str], Path]) -> None:
    """On the processor with a tiny model, as it will be on Metal with the starter."""
    if name not in registry.installed_backends():
        pytest.skip(f"the {name} engine is not installed")
    method = "full" if name == "mlx" else "none"
    request = LoadRequest(str(model_folder("qwen2")), method=method, precision="float32", device="cpu", threads=1)
    checks = verify_engine(registry.get_backend(name), registry.get_backend("torch"), request)
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == (7 if name == "mlx" else 5)


def test_an_engine_that_computes_something_else_fails(model_folder: Callable[[str], Path]) -> None:
    """With the weights of another model nothing agrees, and the report says so."""

    class Mistaken(TorchBackend):
        def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
            return super().load(replace(request, model=str(model_folder("llama"))), progress)

    request = LoadRequest(str(model_folder("qwen2")), method="none", precision="float32", device="cpu", threads=1)
    checks = verify_engine(Mistaken, TorchBackend, request)
    assert [check.passed for check in checks] == [True, False, True, False, False]


def test_torch_is_compared_with_torch_without_its_fast_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """C kernels that are wrong are found, though both engines are torch in float32 on the processor."""
    monkeypatch.setattr(device_check, "ensure_device_checked", lambda *_: None)  # it would leave them out
    if native.load_kernels() is None:
        pytest.skip("no C compiler")
    norm, used = native.NativeKernels.rms_norm, []

    def wrong(self: native.NativeKernels, x: Any, weight: Any, eps: float) -> Any:
        used.append(runtime.is_left_out("native"))
        return norm(self, x, weight, eps) * 1.5

    request = LoadRequest("starter-1m", method="none", precision="float32", device="cpu", threads=1)
    assert all(check.passed for check in verify_engine(TorchBackend, TorchBackend, request))
    monkeypatch.setattr(native.NativeKernels, "rms_norm", wrong)
    assert [check.passed for check in verify_engine(TorchBackend, TorchBackend, request)] == [
        True,
        False,
        True,
        False,
        False,
    ]
    assert used
    assert not any(used)


def test_log_probabilities_told_while_sampling_are_compared_with_scored_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_check, "ensure_device_checked", lambda *_: None)
    if native.load_kernels() is None:
        pytest.skip("no C compiler")
    sample = native.NativeKernels.sample

    def wrong(self: native.NativeKernels, *given: Any) -> tuple[Any, Any]:
        tokens, logprobs = sample(self, *given)
        return tokens, logprobs - 0.1

    monkeypatch.setattr(native.NativeKernels, "sample", wrong)
    request = LoadRequest("starter-1m", method="none", precision="float32", device="cpu", threads=1)
    failed = [check.name for check in verify_engine(TorchBackend, TorchBackend, request) if not check.passed]
    assert failed == ["log-probabilities of sampled tokens equal the second engine's"]
