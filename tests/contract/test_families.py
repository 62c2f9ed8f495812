"""Every cell of docs/models.md: a family of models on an engine, against transformers in float64."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.contract.conftest import Case, require_backend
from tests.support import families
from tests.support.device import DEVICE

from sapo_backends.base import LoadRequest, PolicyUpdate, Sampling, TokenSequence, TrainSample
from sapo_backends.errors import BackendError

torch = pytest.importorskip("torch", reason="the torch engine is not installed")
pytest.importorskip("transformers")

from sapo_backends.torch_backend.runtime import without_paths  # noqa: E402

SHORT = [list(range(5, 14)), list(range(20, 31)), [7] * 8]
LONG = [list(range(5, 17)), list(range(20, 51)), [7] * 20]
NEW_TOKENS = 9
MAX_ERROR = {"exact": 2e-5, "works": 5e-3}
"""Largest error of a log-probability in float32."""
BF16 = 1.6
"""Median error in bfloat16, in units of that of transformers' own bfloat16. Not the mean: a token that rounding sends to
another expert is far off."""
EAGER = {family: {"experts_implementation": "eager"} for family in ("mixtral", "qwen3_moe", "granitemoe")}
"""What transformers can do in float64 only without its grouped products."""
CELLS = [
    (row.family, mode, cell) for row in families.ROWS for mode, cell in zip(families.MODES, row.cells, strict=True)
]


@pytest.fixture(scope="module")
def by_transformers(model_folder: Callable[[str], Path]) -> Callable[[str, Any], Any]:
    """(family, type) -> the model by transformers, loaded once."""
    from transformers import AutoModelForCausalLM

    known: dict[tuple[str, Any], Any] = {}

    def loaded(family: str, dtype: Any) -> Any:
        if (family, dtype) not in known:
            known[family, dtype] = AutoModelForCausalLM.from_pretrained(
                model_folder(family), dtype=dtype, **EAGER.get(family, {})
            ).eval()
        return known[family, dtype]

    return loaded


def logprobs(model: Any, prompt: list[int], completion: tuple[int, ...]) -> Any:
    """Of the completion at temperature 1 (T,), in transformers' own operations."""
    with torch.no_grad(), without_paths("native"):
        rows = model(torch.tensor([[*prompt, *completion]]), use_cache=False).logits[0, len(prompt) - 1 : -1]
    return rows.double().log_softmax(-1).gather(1, torch.tensor(completion)[:, None])[:, 0].numpy()


@pytest.mark.parametrize(("family", "mode", "cell"), CELLS, ids=[f"{f}, {m}" for f, m, _ in CELLS])
def test_the_page_of_models_says_what_is(
    family: str,
    mode: str,
    cell: str,
    model_folder: Callable[[str], Path],
    by_transformers: Callable[[str, Any], Any],
) -> None:
    """A cell that says no is a refusal in a sentence; every other one samples, scores and learns as the page says."""
    backend, method, precision = families.MODES[mode]
    request = LoadRequest(
        str(model_folder(family)),
        method,
        precision,
        device=DEVICE if backend == "torch" else "cpu",
        threads=1,
        lora_rank=4,  # type: ignore[arg-type]
    )
    builder = require_backend(Case(backend))
    if cell.startswith("no: "):
        with pytest.raises(
            BackendError, match=r"(cannot be written as GGUF here|does not compute|no linear layers).*\."
        ):
            builder().load(request)
        return
    engine = builder().load(request)
    prompts = SHORT if cell == families.WINDOW else LONG
    if cell == families.WINDOW:
        assert engine.info.context_length == families.WINDOW_TOKENS
    if backend == "torch":
        assert engine.info.extra["computed_by"].startswith("own decoder" if cell == "exact" else "transformers")
    if backend == "mlx":
        assert engine.info.extra["computed_by"] == "mlx_lm"
    each = 6 if precision == "bfloat16" else 2  # the median error of fewer tokens is chance
    groups = engine.generate(prompts, each, Sampling(max_new_tokens=NEW_TOKENS), seed=1)
    told = [(prompt, c) for prompt, group in zip(prompts, groups, strict=True) for c in group]
    scored = engine.logprobs([TokenSequence(tuple(prompt), c.tokens) for prompt, c in told])
    exact = by_transformers(family, torch.float64)
    errors, rounded = [], []
    for (prompt, completion), scores in zip(told, scored, strict=True):
        expected = logprobs(exact, prompt, completion.tokens)
        errors += [np.abs(np.subtract(found, expected)) for found in (scores, completion.logprobs)]
        if precision == "bfloat16":
            theirs = logprobs(by_transformers(family, torch.bfloat16), prompt, completion.tokens)
            rounded.append(np.abs(theirs - expected))
    found = np.concatenate(errors)
    if precision == "bfloat16":
        assert np.median(found) <= BF16 * np.median(np.concatenate(rounded))
    else:
        assert found.max() <= MAX_ERROR["works" if "GELU" in cell else "exact"]
    batch = [
        TrainSample(tuple(prompt), c.tokens, -1.0 if i % 2 else 1.0) for i, (prompt, c) in enumerate(told) if c.tokens
    ]
    before = sum(s.advantage * float(np.sum(scores)) for s, scores in zip(batch, scored, strict=True))
    stats = engine.update(batch, PolicyUpdate(1e-3), 0)
    after = engine.logprobs([TokenSequence(s.prompt, s.completion) for s in batch])
    assert stats.steps == 1
    assert sum(s.advantage * float(np.sum(scores)) for s, scores in zip(batch, after, strict=True)) > before
    engine.close()


@pytest.mark.parametrize("family", [row.family for row in families.ROWS if not row.cells[0].startswith("no: ")][3:])
def test_a_family_s_gradient_equals_autograd_in_float64(
    family: str, model_folder: Callable[[str], Path], by_transformers: Callable[[str, Any], Any]
) -> None:
    """Of all weights, by Hugging Face name, for completions that share prompts."""
    engine = require_backend(Case("torch"))().load(
        LoadRequest(str(model_folder(family)), "full", "float32", device=DEVICE, threads=1)
    )
    groups = engine.generate(LONG, 2, Sampling(max_new_tokens=NEW_TOKENS), seed=2)
    batch = [
        TrainSample(tuple(prompt), c.tokens, -1.0 if i else 0.7)
        for prompt, group in zip(LONG, groups, strict=True)
        for i, c in enumerate(group)
    ]
    found: dict[str, Any] = engine.gradient(batch, PolicyUpdate(1e-3))  # type: ignore[attr-defined]
    model, total = by_transformers(family, torch.float64), sum(len(s.completion) for s in batch)
    model.zero_grad()
    model.get_input_embeddings().padding_idx = None
    for s in batch:
        with without_paths("native"):  # in transformers' own operations
            rows = model(torch.tensor([[*s.prompt, *s.completion]]), use_cache=False).logits[0, len(s.prompt) - 1 : -1]
            chosen = rows.log_softmax(-1).gather(1, torch.tensor(s.completion)[:, None])
            (-s.advantage / total * chosen.sum()).backward()
    expected = {name: p.grad.numpy() for name, p in model.named_parameters()}
    assert found.keys() == expected.keys()
    largest = max(float(np.abs(grad).max()) for grad in expected.values())
    for name, grad in expected.items():
        np.testing.assert_allclose(found[name], grad, atol=2e-4 * largest, err_msg=name)
    engine.close()
