"""A checkpoint moves between engines: torch, MLX on the processor, and llama.cpp beside either, with Adam's moments."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from sapo_backends import registry
from sapo_backends.base import Engine, LoadRequest, PolicyUpdate, TokenSequence, TrainSample

pytest.importorskip("mlx.core", reason="the mlx engine is not installed")
pytest.importorskip("torch", reason="the torch engine is not installed")

STEPS = 4
POLICY = PolicyUpdate(learning_rate=3e-3, weight_decay=0.01)


def opened(name: str, model: Path, method: str) -> Engine:
    chosen: dict[str, Any] = {"method": method, "precision": "float32", "device": "cpu", "threads": 1, "lora_rank": 4}
    return registry.get_backend(name)().load(LoadRequest(str(model), **chosen))


def batch(number: int) -> list[TrainSample]:
    rng = np.random.default_rng(number)
    rows = [tuple(int(t) for t in rng.integers(0, 250, 24)) for _ in range(6)]
    return [TrainSample(row[:12], row[12:], 1.0 if i % 2 else -0.7) for i, row in enumerate(rows)]


def scores(engine: Engine) -> NDArray[np.float64]:
    asked = [TokenSequence(s.prompt, s.completion) for s in batch(100)]
    return np.array(engine.logprobs(asked))


def trained(engine: Engine, steps: range) -> Engine:
    for number in steps:
        engine.update(batch(number), POLICY, number)
    return engine


MOVES = [
    *((before, after, architecture, method) for architecture in ("qwen2", "phi3", "gemma3_text")
      for method in ("full", "lora") for before, after in (("torch", "mlx"), ("mlx", "torch"))),
    ("llamacpp+torch", "mlx", "qwen2", "lora"),
    ("mlx", "llamacpp+torch", "qwen2", "lora"),
]  # fmt: skip
"""A pair saves and restores by its trainer: once each way is enough."""


@pytest.mark.parametrize(("before", "after", "architecture", "method"), MOVES)
def test_steps_in_one_engine_and_one_more_in_another_are_steps_in_one(
    model_folder: Callable[[str], Path], tmp_path: Path, before: str, after: str, architecture: str, method: str
) -> None:
    """And an optimizer that started anew would end somewhere else."""
    model = model_folder(architecture)
    first = trained(opened(before, model, method), range(STEPS))
    first.save(tmp_path)
    second = opened(after, model, method)
    second.restore(tmp_path)
    np.testing.assert_allclose(scores(second), scores(first), atol=2e-5)
    trained(second, range(STEPS, STEPS + 1))
    anew = opened(after, model, method)
    for name in first.optimizer_files:
        (tmp_path / name).unlink()
    anew.restore(tmp_path)
    trained(anew, range(STEPS, STEPS + 1))
    trained(first, range(STEPS, STEPS + 1))
    moved, fresh = (float(np.abs(scores(engine) - scores(first)).max()) for engine in (second, anew))
    assert moved < 5e-5
    assert fresh > 0.01


def continued(name: str, model: Path, folder: Path) -> NDArray[np.float64]:
    """Scores after one more step on what lies in the folder."""
    engine = opened(name, model, "lora")
    engine.restore(folder)
    return scores(trained(engine, range(STEPS, STEPS + 1)))


def test_moments_as_older_versions_wrote_them_are_read(
    model_folder: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """MLX's two files by both engines; torch's, which had no names, by torch, and with MLX a sentence says that it starts
    anew."""
    model = model_folder("qwen2")
    first = trained(opened("torch", model, "lora"), range(STEPS))
    first.save(tmp_path)
    file = tmp_path / first.optimizer_files[0]
    named = load_file(file)
    file.unlink()
    anew = continued("mlx", model, tmp_path)
    for moment in ("first", "second"):
        parts = {key.removeprefix(f"{moment}."): t for key, t in named.items() if key.startswith(f"{moment}.")}
        save_file(parts, tmp_path / f"{moment}.safetensors")
    whole = continued("torch", model, tmp_path)
    np.testing.assert_allclose(continued("mlx", model, tmp_path), whole, atol=5e-5)
    assert np.abs(whole - anew).max() > 0.01
    for moment in ("first", "second"):
        (tmp_path / f"{moment}.safetensors").unlink()
    save_file(
        {m: np.concatenate([named[f"{m}.{name}"].ravel() for name in first.adapter()]) for m in ("first", "second")},
        file,
    )
    np.testing.assert_allclose(continued("torch", model, tmp_path), whole, atol=5e-5)
    assert not caplog.messages
    np.testing.assert_allclose(continued("mlx", model, tmp_path), anew, atol=5e-5)
    assert "The optimizer starts anew" in caplog.text
