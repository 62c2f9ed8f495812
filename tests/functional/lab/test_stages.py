"""Stages in the lab: a swarm relays hints, a node alone too, and what it computes survives a stop."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.support.lab_runs import Play, Stopped, build, experiment, learning, play, rounds_of, scorer

from sapo_backends.base import Engine, TokenSequence, TrainSample, UpdateStats
from sapo_lab.running.run import run_arm
from sapo_swarm.config import RunConfig
from sapo_swarm.sapo.stages import HINTED
from sapo_swarm.scoring.scorer import Scorer

pytestmark = pytest.mark.asyncio(loop_scope="module")
__all__ = ["play", "scorer"]
RUN = {
    **{"trainer": "torch", "model": "starter-1m", "threads": 1, "precision": "float32", "max_new_tokens": 48},
    **{"tasks": ["fraction_simplification", "calendar_arithmetic"], "rounds": 3, "group_size": 2, "eval_every": 0},
    **{"local_groups": 4, "external_groups": 0, "stage_groups": 4},
}
"""The smallest bundled model: it reasons before it answers, and half of its groups of two are dead."""
SMALL: dict[str, Any] = {"nodes": 2, "final_items": 0}


def total(out: Path, figure: str, nodes: int = 2) -> float:
    return sum(e.figures.get(figure, 0.0) for node in range(nodes) for e in rounds_of(out, node).values())


@pytest.mark.parametrize("stage", ["relay_start", "critique"])
async def test_a_swarm_with_a_stage_counts_what_it_did_and_resumes_exactly(
    play: Play, tmp_path: Path, stage: str
) -> None:
    found = experiment([{"name": "a", "stage": stage}], RUN, **SMALL)
    await play(found, tmp_path / "whole")
    with pytest.raises(Stopped):
        await play(found, tmp_path / "broken", 2)
    await play(found, tmp_path / "broken")
    for node in range(2):
        assert learning(tmp_path / "broken", node) == learning(tmp_path / "whole", node)
    assert total(tmp_path / "whole", "stage_attempted") > 0
    if stage != "critique":
        assert 0 < total(tmp_path / "whole", "stage_hinted") <= total(tmp_path / "whole", "stage_dead")
    events = [e for node in range(2) for e in rounds_of(tmp_path / "whole", node).values()]
    assert all(e.completions == 4 * 2 and e.reward_batch == e.reward_local for e in events), "a stage is in no reward"
    assert max(e.tokens_generated for e in events) > 4 * 2 * 48, "its tokens are counted"


async def test_a_node_alone_relays_its_own_earlier_successes(play: Play, tmp_path: Path) -> None:
    found = experiment(
        [{"name": "a", "stage": "relay", "pool_from": "own"}], {**RUN, "rounds": 5}, nodes=1, final_items=0
    )
    await play(found, tmp_path)
    assert total(tmp_path, "stage_attempted", 1) > 0


@pytest.mark.parametrize("stage", ["relay", "relay_start"])
async def test_a_success_after_a_hint_is_trained_on_under_the_plain_prompt_with_old_logprobs_from_it(
    scorer: Scorer, tmp_path: Path, stage: str
) -> None:
    """Two passes over a batch need old log-probabilities: they are those of the prompt that is trained on."""
    batches: list[Sequence[TrainSample]] = []
    generated: list[str] = []

    def recording(config: RunConfig) -> Engine:
        """The engine, which tells what it was given."""
        engine = build(config)
        generate, update = engine.generate, engine.update

        def told_generate(prompts: Sequence[Sequence[int]], *rest: Any) -> Any:
            generated.extend(engine.tokenizer.decode(prompt) for prompt in prompts)
            return generate(prompts, *rest)

        def told_update(batch: Sequence[TrainSample], *rest: Any) -> UpdateStats:
            now = engine.logprobs([TokenSequence(s.prompt, s.completion) for s in batch], config.temperature)
            for sample, fresh in zip(batch, now, strict=True):
                assert sample.old_logprobs == pytest.approx(fresh, abs=1e-4)
            batches.append(batch)
            prompts.extend(engine.tokenizer.decode(sample.prompt) for sample in batch)
            return update(batch, *rest)

        engine.generate, engine.update = told_generate, told_update  # type: ignore[method-assign, assignment]
        return engine

    prompts: list[str] = []
    found = experiment([{"name": "a", "stage": stage}], {**RUN, "rounds": 4, "epochs": 2, "group_size": 4}, **SMALL)
    await run_arm(found, found.arm("a"), 1, tmp_path, scorer, recording, lambda progress: None)
    assert total(tmp_path, "stage_hinted") > 0
    marker = HINTED.split("{question}")[1].split("{shown}")[0].strip()
    assert any(marker in text for text in generated) == (stage == "relay")
    assert prompts
    assert not any(marker in text for text in prompts)
    extra = [sample for batch in batches for sample in batch[4 * 4 :]]
    assert extra, "the stage adds to the batch"
    assert all(sample.advantage != 0 and not sample.external for sample in extra)
    if stage == "relay_start":
        assert total(tmp_path, "stage_revived") > 0
