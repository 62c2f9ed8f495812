"""An adapter merged into the integer codes of a quantised GGUF file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("gguf", reason="the package gguf is not installed")

from sapo_backends.base import Engine, LoadRequest, TokenSequence
from sapo_backends.checkpoints import gguf_adapter_merge, locate
from sapo_backends.checkpoints.gguf_adapter_merge import LAYOUTS, Moments, fit_codes, merge_into_codes, why_not_merged
from sapo_backends.checkpoints.gguf_write import write_gguf
from sapo_backends.checkpoints.spec import decoder_spec
from sapo_backends.checkpoints.tokenizer import read_json
from sapo_backends.errors import BackendUnavailable
from sapo_backends.registry import get_backend

HALVES = {"Q6_K": (208,), "Q4_0": (0,), "Q5_0": (0,), "Q8_0": (0,)}
"""Where a block's float16 numbers are, if not at its first two places."""
ALPHA, RANK = 8.0, 4


def load(model: Path) -> Engine:
    request = {"method": "lora", "device": "cpu", "threads": 1, "lora_rank": RANK, "lora_alpha": ALPHA}
    return get_backend("torch")().load(LoadRequest(model=str(model), precision="float32", **request))


@pytest.mark.parametrize("kind", LAYOUTS)
def test_codes_times_steps_are_what_the_gguf_package_reads(kind: str) -> None:
    """And other codes are read back, with the steps as they were."""
    import gguf

    layout, random = LAYOUTS[kind], np.random.default_rng(1)
    blocks = random.integers(0, 256, (12, layout.size), dtype=np.uint8)
    for place in HALVES.get(kind, (0, 2)):
        blocks[:, place : place + 2] = random.uniform(0.001, 0.1, (12, 1)).astype(np.float16).view(np.uint8)
    raw = blocks.reshape(4, -1)
    step, offset = layout.steps(raw)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    np.testing.assert_allclose(step * layout.codes(raw) + offset, expected, rtol=1e-5, atol=1e-6)
    other = random.integers(0, layout.top + 1, step.shape).astype(np.int16)
    changed = layout.with_codes(raw, other)
    np.testing.assert_array_equal(layout.codes(changed), other)
    np.testing.assert_array_equal(layout.steps(changed)[0], step)
    np.testing.assert_array_equal(layout.with_codes(raw, layout.codes(raw)), raw)


def test_fitted_codes_bring_outputs_nearer_than_rounding_and_stay_within_bounds() -> None:
    """Inputs of low rank, as those of one task are; rounding would leave every code as it is."""
    random = np.random.default_rng(2)
    inputs = (random.normal(size=(300, 12)) @ random.normal(size=(12, 256))).astype(np.float32)
    step = np.full((40, 256), 0.1, np.float32)
    codes = random.integers(0, 16, step.shape).astype(np.int16)
    change = (0.007 * random.normal(size=(40, 4)) @ random.normal(size=(4, 256))).astype(np.float32)
    assert (np.rint(change / step) == 0).mean() > 0.9
    fitted = fit_codes(codes, step, 15, change, Moments.of(inputs))
    left = inputs @ ((fitted - codes) * step - change).T
    assert np.square(left).mean() < 0.2 * np.square(inputs @ change.T).mean()
    assert fitted.min() >= 0
    assert fitted.max() <= 15
    still = fit_codes(codes, np.zeros_like(step), 15, change, Moments.of(inputs))
    np.testing.assert_array_equal(still, codes)


@pytest.mark.parametrize("family", ["llama", "qwen2", "phi3", "gemma3_text"])
def test_a_merged_file_answers_like_the_adapter(
    family: str, model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Log-probabilities of texts like those it was fitted on; the file keeps its size, and everything but codes."""
    monkeypatch.setattr(gguf_adapter_merge, "ROWS", 24)
    own, merged = tmp_path / "own.gguf", tmp_path / "merged.gguf"
    write_gguf(model_folder(family), own, "Q4_0", strict=False)
    random = np.random.default_rng(3)
    texts = [TokenSequence(tuple(range(5, 17)), tuple(random.integers(40, 44, 6).tolist())) for _ in range(24)]
    fitted_on, others = texts[:16], texts[16:]
    engine = load(own)
    untrained = engine.logprobs(others)
    adapter = {name: np.asarray(value) for name, value in engine.adapter().items()}
    for name, value in adapter.items():
        adapter[name] = (0.1 * random.normal(size=value.shape)).astype(np.float32)
    engine.set_adapter(adapter, ALPHA)
    trained, inputs = engine.logprobs(others), engine.linear_inputs(fitted_on)
    engine.close()
    spec = decoder_spec(read_json(locate.resolve_model(str(own)) / "config.json"))
    assert why_not_merged(own, spec, adapter) == ""
    merge_into_codes(
        own, merged, spec, adapter, ALPHA / RANK, lambda module: np.asarray(inputs[module], dtype=np.float32)
    )
    assert merged.stat().st_size == own.stat().st_size
    engine = load(merged)
    near = engine.logprobs(others)
    engine.close()
    before = np.abs(np.array(untrained) - trained).mean()
    assert np.abs(np.array(near) - trained).mean() < 0.5 * before


def test_a_file_without_codes_and_a_run_without_an_adapter_say_so(
    model_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    """Such exports go by rounding instead."""
    own = tmp_path / "own.gguf"
    write_gguf(model_folder("llama"), own, "F16", strict=False)
    engine = load(own)
    adapter = engine.adapter()
    engine.close()
    spec = decoder_spec(read_json(locate.resolve_model(str(own)) / "config.json"))
    assert why_not_merged(own, spec, adapter) == "its layers are stored as F16"
    assert why_not_merged(own, spec, {}) == "no adapter was trained"
    fake = get_backend("fake")().load(LoadRequest(model="fake"))
    with pytest.raises(BackendUnavailable, match="shows no inputs"):
        fake.linear_inputs([])


@pytest.mark.parametrize("chats", [0, 2])
def test_an_engine_that_shows_no_inputs_leaves_the_file_to_be_rounded(
    chats: int, model_folder: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As MLX does; and a run whose tasks ask nothing any more. Nothing is answered for it, and nothing is written."""
    from sapo_desktop.services.models.exports import writing
    from sapo_desktop.services.models.exports.job import WriteJob
    from sapo_swarm.config import RunConfig

    own = tmp_path / "own.gguf"
    write_gguf(model_folder("llama"), own, "Q4_0", strict=False)
    engine = load(own)

    def refuse(*_: object) -> None:
        raise BackendUnavailable("shows no inputs")

    async def some(*_: object) -> list[list[dict[str, str]]]:
        return [[{"role": "user", "content": "hi"}]] * chats

    monkeypatch.setattr(engine, "linear_inputs", refuse)
    monkeypatch.setattr(engine, "generate", lambda *_, **__: pytest.fail("answered for nothing"))
    monkeypatch.setattr(writing, "training_chats", some)
    job = WriteJob(
        config=RunConfig(), checkpoint="", format="gguf", quant="same", folder=str(tmp_path), file="to.gguf", questions=0,
        tokens=4,
    )  # fmt: skip
    base = locate.resolve_model(str(own))
    assert not writing._merge_into_own(job, engine, job.config, base, own, lambda *_: None)
    assert not (tmp_path / "to.gguf").exists()
    engine.close()
