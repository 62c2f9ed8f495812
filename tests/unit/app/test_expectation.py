"""What trying an untrained model on a task tells."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, write_folder

from sapo_desktop.services.tasks import expectation
from sapo_swarm.config import RunConfig
from sapo_swarm.scoring.scorer import Scorer
from sapo_swarm.tasks.own import library


@pytest.mark.parametrize("tiny", [expectation.TINY, 1])
async def test_the_share_of_mixed_groups_is_that_of_the_success_however_large_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tiny: int
) -> None:
    """Questions that are solved 15 % of the time. tiny: from how many parameters on a model counts as large; this one has few."""
    for name, value in {"TINY": tiny, "PROMPTS": 400, "PROMPTS_OF_LARGE": 400}.items():
        monkeypatch.setattr(expectation, name, value)
    rows = [{"question": f"Calculate {n // 20} + {n % 20}.", "answer": n // 20 + n % 20} for n in range(401)]
    write_folder(tmp_path / "easy", '[[verifier]]\nkind = "number"\n', rows[:400], rows[400:])
    config = RunConfig(model="fake", trainer="fake", tasks=("easy",), temperature=0.88, max_new_tokens=8)
    with library_in(tmp_path):
        async with Scorer() as scorer:
            found = await expectation.measure(library.find("easy"), config, scorer)
    assert found is not None
    assert (found.prompts, found.rate) == (400, pytest.approx(0.15, abs=0.03))
    assert found.mixed == pytest.approx(expectation.chance_of_mixed(found.rate, config.group_size), abs=0.1)
