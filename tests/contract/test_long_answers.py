"""Long completions in bounded memory: rows wait for one another, room grows with what is written."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tests.contract.conftest import Case

from sapo_backends.base import Completion, Engine, Sampling

PROMPTS = [list(range(10, 10 + length)) for length in (7, 40, 3)]


def _texts(groups: list[list[Completion]]) -> list[list[tuple[int, ...]]]:
    return [[completion.tokens for completion in group] for group in groups]


def test_rows_that_wait_for_room_are_what_they_would_be_together(
    reader: Case, load: Callable[..., Engine], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With room for two rows at once, groups of three are cut in the middle, and every completion is the same."""
    engine = load(reader)
    sampling = Sampling(max_new_tokens=12)
    together = engine.generate(PROMPTS, 3, sampling, seed=5)
    asked: list[int] = []

    def two(row_bytes: int, budget: int = 0) -> int:
        asked.append(row_bytes)
        return 2

    for module in _users():
        if hasattr(module, "rows_at_once"):
            monkeypatch.setattr(module, "rows_at_once", two)
    assert _texts(engine.generate(PROMPTS, 3, sampling, seed=5)) == _texts(together)
    assert asked
    engine.close()


def _users() -> list[object]:
    found: list[object] = []
    for name in ("torch_backend.generation", "mlx_backend.generation", "llamacpp_backend.engine"):
        try:
            found.append(__import__(f"sapo_backends.{name}", fromlist=["x"]))
        except ImportError:
            continue
    return found


def test_a_text_longer_than_a_step_of_the_cache_is_scored_as_it_was_sampled(
    reader: Case, load: Callable[..., Engine]
) -> None:
    """Room for keys and values is added while a completion grows; finished rows leave in between."""
    from sapo_backends.base import TokenSequence

    engine = load(reader)
    groups = engine.generate(PROMPTS[:2], 2, Sampling(max_new_tokens=300), seed=1)
    rows = [(prompt, c) for prompt, group in zip(PROMPTS, groups, strict=False) for c in group]
    assert max(len(c.tokens) for _, c in rows) > 256
    found = engine.logprobs([TokenSequence(tuple(prompt), c.tokens) for prompt, c in rows])
    for (_, completion), scored in zip(rows, found, strict=True):
        assert scored == pytest.approx(completion.logprobs, abs=2e-3 if "llamacpp" in reader.backend else 1e-4)
    engine.close()
