"""Hostile completions against every dataset on the allow-list, through the real scorer worker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from sapo_swarm.scoring.scorer import ScoredTexts, Scorer
from sapo_swarm.tasks.catalogue import CATALOGUE
from sapo_swarm.types import TaskRef

TASKS = [(name, next(iter(presets))) for name, presets in sorted(CATALOGUE.items())]
SEEDS = (1, 77_777)


def attacks(canary: Path) -> dict[str, str]:
    """Answers by what they try."""
    python = f"__import__('os').system('touch {canary}')"
    return {
        "run a command": python,
        "write a file": f"open({str(canary)!r}, 'w').write('x')",
        "run a command as a matrix row": f"[[{python}]]",
        "run a command from a generator": f"[[x for x in [{python}]]]",
        "reach a command through classes": "().__class__.__base__.__subclasses__()",
        "raise SystemExit": "exit()",
        "huge exponent": "1e999999999",
        "huge fraction": "1e999999999/3",
        "power tower": "9**9**9**9",
        "400 digits": "9" * 400,
        "5000 digits": "9" * 5000,
        "26 variables": " ∨ ".join("abcdefghijklmnopqrstuvwxyz"),
        "300 names of one variable": " ∨ ".join("A" * n for n in range(1, 120)),
        "deep nesting": "[" * 4000 + "]" * 4000,
        "deep parentheses": "(" * 4000 + "A" + ")" * 4000,
        "deep negation": "¬" * 2500 + "A",
        "many moves": "U R U' " * 1300,
        "repeat count": "U99999999 (R U)99999999",
        "json bomb": "{" + ",".join(f'"{i}":{i}' for i in range(900)) + "}",
        "not a number": "nan",
        "list of NaN": "[" + ", ".join(["NaN"] * 5) + "]",
        "infinity": "inf",
        "negative infinity": "-Infinity",
        "null byte": "\x00",
        "lone surrogate": "\ud800",
        "escape sequence": "\x1b]52;c;AAAA\x07",
        "junk": "any text at all",
        "integral": "Integral(x, x)",
        "blank": " \n ",
        "tags inside": "<answer><answer>" * 200,
    }


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scorer() -> AsyncIterator[Scorer]:
    async with Scorer() as started:
        await started.ready()
        yield started


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("task", TASKS, ids=[name for name, _ in TASKS])
async def test_no_attack_scores_runs_code_or_stops_the_scorer(
    task: tuple[str, str], scorer: Scorer, tmp_path: Path
) -> None:
    """Every attack is a verdict of 0 within the deadline, nothing is written, the worker lives on."""
    canary = tmp_path / "canary"
    named = attacks(canary)
    groups = [(TaskRef(*task, seed), (f"so <answer>{text}</answer>",)) for seed in SEEDS for text in named.values()]
    results = await scorer.score_many(groups)
    for name, result in zip([n for _ in SEEDS for n in named], results, strict=True):
        assert isinstance(result, ScoredTexts), (name, result)
        assert result.rewards == (0.0,), name
    assert not canary.exists()
    assert scorer.worker.restarts == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_text_of_megabytes_and_thousands_of_tags_is_scored_in_linear_time(scorer: Scorer) -> None:
    """The quadratic search of the library's own extractor is not in the path."""
    ref = TaskRef("basic_arithmetic", "starter", 5)
    texts = ["<answer>" * 10_000, "<answer>" * 200_000 + "</answer>", "x" * 2**21 + "<answer>0</answer>"]
    assert await scorer.score(ref, texts) == ScoredTexts(
        (0.0, 0.0, 0.0), (False, False, True), (await scorer.score(ref, ())).prompt
    )
