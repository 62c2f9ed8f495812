"""bfloat16 on long texts: no worse than transformers' own bfloat16, for every family and method.

Rounding errors of rotary angles grow with the position: at 1,500 tokens an angle in bfloat16 is off by several radians.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.support import families
from tests.support.device import DEVICE

from sapo_backends.base import LoadRequest, PolicyUpdate, TokenSequence, TrainSample

torch = pytest.importorskip("torch", reason="the torch engine is not installed")

from safetensors.torch import load_file, save_file  # noqa: E402

from sapo_backends.torch_backend import TorchBackend  # noqa: E402

SHARPER = 4.0
"""Queries are so many times larger than in a random model, so that attention depends on the angles."""
FAMILIES = {row.family: row.cells[0] for row in families.ROWS if row.family != "gpt2"}
"""Family -> who computes it. GPT-2 has no positions so far."""
PROMPT, TOKENS = 100, 1500
TEXT = tuple(int(i) for i in np.random.default_rng(0).integers(0, 250, TOKENS))


def by_transformers(folder: Path, dtype: Any) -> Any:
    """Log-probabilities (T,) of the text behind the prompt, as transformers computes them in that type."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval()
    with torch.no_grad():
        logits = model(torch.tensor([TEXT])).logits[0, PROMPT - 1 : -1].float()
    return logits.log_softmax(-1).gather(1, torch.tensor(TEXT[PROMPT:])[:, None])[:, 0].numpy()


@pytest.fixture(scope="module")
def sharp_folder(
    model_folder: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], Path]:
    """family -> its tiny model with SHARPER queries, made once."""
    made: dict[str, Path] = {}

    def folder(family: str) -> Path:
        if family not in made:
            made[family] = tmp_path_factory.mktemp(f"sharp-{family}") / "model"
            shutil.copytree(model_folder(family), made[family])
            tensors = load_file(made[family] / "model.safetensors")
            for name, tensor in tensors.items():
                if any(part in name for part in ("q_proj", "q_norm", "qkv_proj", "query_key_value")):
                    tensor.mul_(SHARPER)
            save_file(tensors, made[family] / "model.safetensors", {"format": "pt"})
        return made[family]

    return folder


@pytest.fixture(scope="module")
def expected(sharp_folder: Callable[[str], Path]) -> Callable[[str], tuple[Any, float]]:
    """family -> exact log-probabilities, and the mean error of transformers' own bfloat16; computed once."""
    known: dict[str, tuple[Any, float]] = {}

    def of(family: str) -> tuple[Any, float]:
        if family not in known:
            exact = by_transformers(sharp_folder(family), torch.float32)
            rounded = by_transformers(sharp_folder(family), torch.bfloat16)
            known[family] = exact, float(np.abs(rounded - exact).mean())
        return known[family]

    return of


@pytest.mark.parametrize("method", ["full", "lora", "none"])
@pytest.mark.parametrize("family", FAMILIES)
def test_bfloat16_of_torch_is_as_exact_as_transformers_at_1500_tokens(
    family: str,
    method: Any,
    sharp_folder: Callable[[str], Path],
    expected: Callable[[str], tuple[Any, float]],
) -> None:
    exact, allowed = expected(family)
    request = LoadRequest(str(sharp_folder(family)), method=method, precision="bfloat16", device=DEVICE, threads=1)
    engine = TorchBackend().load(request)
    found = np.array(engine.logprobs([TokenSequence(TEXT[:PROMPT], TEXT[PROMPT:])])[0])
    engine.close()
    error = float(np.abs(found - exact).mean())
    assert error <= 1.5 * allowed
    assert engine.info.extra["computed_by"].startswith(
        "own decoder" if FAMILIES[family] == families.EXACT else "transformers"
    )


def test_the_untrained_model_rounds_as_before_the_first_update(model_folder: Callable[[str], Path]) -> None:
    """Without an adapter bfloat16 rounds elsewhere than with one that does nothing yet: a paired comparison would take the
    difference for learning."""
    folder = str(model_folder("qwen2"))
    engine = TorchBackend().load(LoadRequest(folder, method="lora", precision="bfloat16", device=DEVICE, threads=1))
    sequence = TokenSequence(TEXT[:PROMPT], TEXT[PROMPT : PROMPT + 200])
    before = engine.logprobs([sequence])
    engine.update([TrainSample(TEXT[:PROMPT], TEXT[PROMPT : PROMPT + 50], 1.0)], PolicyUpdate(1e-2), 0)
    trained = engine.logprobs([sequence])
    with engine.untrained():
        assert engine.logprobs([sequence]) == before
    assert engine.logprobs([sequence]) == trained != before
