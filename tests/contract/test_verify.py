"""The self-test that a person runs on a device which no automatic test reaches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, Progress
from sapo_backends.measure.self_check import verify
from sapo_backends.torch_backend import TorchBackend

pytest.importorskip("torch", reason="the torch engine is not installed")


@pytest.mark.parametrize("name", ["mlx", "llamacpp"])
def test_a_sound_engine_passes_every_check(name: str, model_folder: Callable[[str], Path]) -> None:
    """On the processor with a tiny model, as it will be on Metal with the starter."""
    if name not in registry.installed():
        pytest.skip(f"the {name} engine is not installed")
    method = "full" if name == "mlx" else "none"
    request = LoadRequest(str(model_folder("qwen2")), method=method, precision="float32", device="cpu", threads=1)
    checks = verify(registry.backend(name), registry.backend("torch"), request)
    assert [check for check in checks if not check.passed] == []
    assert len(checks) == (6 if name == "mlx" else 4)


def test_an_engine_that_computes_something_else_fails(model_folder: Callable[[str], Path]) -> None:
    """With the weights of another model nothing agrees, and the report says so."""

    class Mistaken(TorchBackend):
        def load(self, request: LoadRequest, progress: Progress | None = None) -> Engine:
            return super().load(replace(request, model=str(model_folder("llama"))), progress)

    request = LoadRequest(str(model_folder("qwen2")), method="none", precision="float32", device="cpu", threads=1)
    checks = verify(Mistaken, TorchBackend, request)
    assert [check.passed for check in checks] == [True, False, True, False]
