"""Examples first on a real model, from the untrained base to the first round of practice."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.support.own_tasks import library_in, write_folder
from tests.support.watched_node import follow, make

from sapo_backends.base import LoadRequest
from sapo_swarm.config import RunConfig
from sapo_swarm.events import Evaluated, Event, ExamplesRead, RoundFinished, TrialMeasured
from sapo_swarm.node import examples_phase

RATED = {
    "good": ("I love this {}.", "The {} works very well.", "Thank you, the {} is wonderful."),
    "bad": ("I hate this {}.", "The {} broke on the first day.", "The {} is a waste of money."),
}
THINGS = ("lamp", "kettle", "phone", "chair", "radio", "clock", "knife", "jacket", "tent", "bottle")


async def test_a_real_model_that_answers_nothing_right_learns_a_table_from_its_rows(
    real_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SmolLM2 never writes the form that is asked for; after some steps on 45 rows most held-out rows are right."""
    from sapo_backends.torch_backend import TorchBackend

    monkeypatch.setattr(examples_phase, "MOST_PASSES", 4)
    rows = [
        {"question": template.format(thing), "answer": answer}
        for thing in THINGS
        for answer, templates in RATED.items()
        for template in templates
    ]
    toml = 'prompt = "Is this review good or bad? {question}"\n[[verifier]]\nkind = "exact"\n'
    write_folder(tmp_path / "tasks" / "reviews", toml, rows[:48], rows[48:])
    config = RunConfig(
        model=str(real_model),
        trainer="torch",
        method="lora",
        tasks=("reviews",),
        group_size=4,
        local_groups=4,
        max_new_tokens=16,
        eval_every=10,
        eval_items=12,
        rounds=1,
    )
    engine = TorchBackend().load(LoadRequest(model=str(real_model), method="lora", device="cpu", threads=1))
    seen: list[Event] = []
    with library_in(tmp_path / "tasks"):
        await follow(make(tmp_path / "run", engine, config), seen.append)
    (trial,) = (e for e in seen if isinstance(e, TrialMeasured))
    base, trained, _ = (e for e in seen if isinstance(e, Evaluated))
    last = [e for e in seen if isinstance(e, ExamplesRead)][-1]
    assert (trial.right, trial.plan) == (0, "examples")
    assert last.over
    assert base.pass_at_1 <= 0.1
    assert trained.pass_at_1 >= 0.5
    assert sum(not e.examples for e in seen if isinstance(e, RoundFinished)) == 1
